"""Reads ranges of partitions without a consumer group.

No module here knows a consumer group.

    questions  asks brokers for offsets, retained ranges and plans
    opening    finds where a range starts and ends, and makes its reader
    reader     the reader as users see it
    records    the plain values about places and ranges
"""

from typing import Final

QUESTION_DEADLINE_S: Final = 10.0
"""Seconds for the answer to a question about places and ranges. A switch that is under way ends in this time."""
