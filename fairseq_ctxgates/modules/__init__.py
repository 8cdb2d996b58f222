"""Layers that any model may use."""
