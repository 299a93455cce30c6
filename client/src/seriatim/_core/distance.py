"""How much a producer may have on its way to a broker: more over a distance, or its rate would fall with it. Pure.

A batch is answered when another member has it too. That member is taken to be as far from the master as the client is,
so an answer takes two round trips. Twice that is counted, because packets that are late hold up those after them.

Without it:

1. A broker is 25 ms away, so an answer takes 100 ms.
2. A partition has 16 batches of 256 KiB on their way, because a broker's producer table knows no more.
3. So it sends at most 40 MB/s, whatever disks and networks could do.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NEAR_US: Final = 10_000
"""A round trip below this is no distance: the broker is in the same place, or was busy when it answered."""

ANSWER_TRIPS: Final = 4
RATE_BYTES_PER_S: Final = 100_000_000
"""What one partition should be able to send. It is about what the brokers of one group take."""

SMALL_BATCH_US: Final = 500
"""The rough cost of a small batch for a client and a broker."""

WINDOW_BATCHES: Final = 16

PARTITION_BYTES_NEAR: Final = 7 << 20
"""The most bytes of a partition on their way to a broker that is near. Over a distance it is more, up to the broker's
credit."""


class Distance(NamedTuple):
    """What a round trip adds to the limits of a link and of its partitions.

    Attributes:
        link_bytes: Bytes on their way on the link, over all partitions; and of each partition.
        link_batches: Batches on their way on the link, over all partitions.
        batch_bytes: Payload of a full batch.
    """

    link_bytes: int
    link_batches: int
    batch_bytes: int


def distance_of(round_trip_us: int) -> Distance:
    """What a broker that answers after `round_trip_us` adds to the limits; nothing if it is near."""
    answer_us = ANSWER_TRIPS * max(0, round_trip_us - NEAR_US)
    size_bytes = RATE_BYTES_PER_S * answer_us // 1_000_000
    return Distance(size_bytes, answer_us // SMALL_BATCH_US, size_bytes // WINDOW_BATCHES)
