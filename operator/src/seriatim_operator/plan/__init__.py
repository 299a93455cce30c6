"""Decisions: desired and observed in, one list of actions out. Pure."""
