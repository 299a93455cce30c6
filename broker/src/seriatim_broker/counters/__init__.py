"""Counts in memory, to which the code that does the work adds. `metrics` makes series of them.

broker           what a broker does: batches, bytes, refusals, durations
consumer_groups  what consumer groups do
"""
