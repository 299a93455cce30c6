"""Observe, plan, apply, report: one pass over one cluster object."""
