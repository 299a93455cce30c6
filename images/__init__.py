"""Container images: what they are made of, and the program that makes them."""
