"""Tests of the storage and of the data directory's identity file."""
