"""Makes the definitions of our kinds from the models."""
