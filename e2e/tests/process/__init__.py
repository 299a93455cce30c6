"""Whole clusters of real processes under faults. The history checker judges them."""
