"""Runs the passes over objects. Each pass observes, plans, applies and reports."""
