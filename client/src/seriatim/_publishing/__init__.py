"""Staging rows, and publishing staged rows."""
