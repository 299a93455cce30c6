"""Decides what to do: pure functions from what is desired and observed to a list of actions."""
