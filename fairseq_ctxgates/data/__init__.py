"""Data directories, and the side streams that lie in them beside source and target."""
