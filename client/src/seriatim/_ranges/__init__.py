"""Reads ranges of partitions without a consumer group: `questions` (offsets, plans), `opening`, `reading`."""

from typing import Final

QUESTION_DEADLINE_S: Final = 10.0
"""Seconds for the answer to a question about places and ranges. A switch that is under way ends in this time."""
