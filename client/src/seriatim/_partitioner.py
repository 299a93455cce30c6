"""Which partition a message goes to when the application does not say.

With a key: CRC-32C of the key, modulo the number of partitions. CRC-32C spreads evenly (each output bit depends on all
input bits), is the checksum that we carry anyway, costs one processor instruction for eight bytes, and has one
definition in every language, which a client in another language must repeat bit for bit. It is not meant to withstand
keys chosen with malice; neither is any hash whose seed is public.

Without a key: one partition until its batch is full or its time has come, then the next: large batches to few places
rather than small ones to all.
"""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

Partitioner = Callable[[bytes, int], int]
"""`partitioner(key, partition_count) -> partition`; the same for the same key as long as the count is the same."""


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The default partitioner."""
    value: int = google_crc32c.value(key)
    return value % partition_count
