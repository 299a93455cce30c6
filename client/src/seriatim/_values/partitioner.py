"""Chooses the partition of a message if the application does not name one.

With a key: CRC-32C of the key, modulo the number of partitions. CRC-32C spreads keys evenly, because each output bit
depends on all input bits. It is a checksum that Seriatim needs anyway, and costs one processor instruction for eight
bytes. It has one definition in every language, so a client in another language can compute it bit for bit. It does not
protect against an attacker who chooses keys with malice. No hash with a public seed does.

Without a key: messages go to one partition until its batch is full or is sent, then to the next partition. So there are
large batches for few partitions, and not small ones for all.
"""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

Partitioner = Callable[[bytes, int], int]
"""`partitioner(key, partition_count) -> partition`. The same key and count always give the same partition."""


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The default partitioner: CRC-32C of the key, modulo the number of partitions."""
    value: int = google_crc32c.value(key)
    return value % partition_count
