"""Data directories, and the side streams in them beside source and target."""
