"""Tests of the storage and of the data directory's passport."""
