"""The mechanisms, one a file, and the layers that compose them."""
