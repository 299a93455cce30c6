"""Reads ranges of partitions without a consumer group: `questions` (offsets, plans), `opening`, `reading`."""
