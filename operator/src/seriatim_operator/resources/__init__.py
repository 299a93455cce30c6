"""Builders: one function for each kind of child object, pure, from a model to a manifest."""
