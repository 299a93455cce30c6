"""Builds the child objects of a cluster: one pure function for each kind, from a model to a manifest."""
