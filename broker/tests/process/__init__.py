"""Tests on real broker processes."""
