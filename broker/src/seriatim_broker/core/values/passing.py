"""Which batches readers pass, whatever reads: consumers of any mode, and ranges."""

from __future__ import annotations

from collections.abc import Container

from seriatim_api.batch import FLAG_CONTROL, FLAG_DELAYED, BatchHeader


def is_passed_by(header: BatchHeader, for_it: Container[int]) -> bool:
    """Whether readers pass the batch: it is not due yet, only for another consumer group, or for brokers alone.

    Args:
        header: Of the batch.
        for_it: The values of `BatchHeader.for_group` with which a batch is for the reader.

    Rule `not-before-due` (D4): readers get a delayed message when it is fired, which is a batch of its own. Without it:
      1. k:5 is due tomorrow. A consumer group has it now.
      2. Tomorrow it is fired as k:9, and the consumer group has it a second time.

    Rule `for-one-group` (J4): a replayed copy is only for the consumer group that failed on the message. Without it:
      1. Groups g and h have message k:5. g fails on it, and it goes to the dead-letter topic of g.
      2. An administrator replays it. Its copy is k:9.
      3. h, which has worked on k:5 long ago, is given k:9.
    """
    return bool(header.flags & (FLAG_DELAYED | FLAG_CONTROL)) or header.for_group not in for_it
