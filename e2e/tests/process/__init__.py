"""Whole clusters of real processes under faults, judged by the history checker."""
