"""Staging rows, and publishing what was staged."""
