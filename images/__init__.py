"""Container images: their contents, and the program that builds them."""
