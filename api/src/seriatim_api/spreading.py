"""Spreading: which consumer of an exclusive consumer group reads which partition of a topic.

One pure function of the number of partitions and the names of the consumers. So each server decides alone, and servers
that know the same consumers come to the same result.

It is a rendezvous: each pair of a partition and a name has a score, and pairs are taken from the highest score down. A
consumer takes at most its share, which is the number of partitions divided by the number of consumers, rounded down;
the remainder goes to as many consumers, one partition each. If a consumer comes or goes, most partitions stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

PAIRS_MAX: Final = 65_536
"""Scores are compared for at most this many pairs, because a broker does nothing else meanwhile: 60 ms for all of them.
Above, consumers take the partitions in turn, in the order of the hashes of their names. That gives each one its share
too, but more partitions move when a consumer comes or goes."""

_KEPT: Final = 256
"""Maximum number of results that are kept: a server asks once for each of its partitions."""

_64_BITS: Final = (1 << 64) - 1
_PARTITION_STEP: Final = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: neighbours get bits that differ
_FIRST_FACTOR: Final = 0xBF58476D1CE4E5B9  # this one and the next one are those of splitmix64
_SECOND_FACTOR: Final = 0x94D049BB133111EB


def reader_of(partition: int, partition_count: int, names: Sequence[str]) -> str:
    """The name of the consumer that reads a partition.

    Args:
        partition: The partition's number in its topic.
        partition_count: How many partitions the topic has.
        names: The names of the consumers, sorted, each once; at least one.
    """
    return readers(partition_count, tuple(names))[partition]


@lru_cache(_KEPT)
def readers(partition_count: int, names: tuple[str, ...]) -> tuple[str, ...]:
    """For each partition, in the order of their numbers, the name of the consumer that reads it."""
    hashes = [_hash(name) for name in names]
    if partition_count * len(names) > PAIRS_MAX:
        in_turn = [name for _, name in sorted(zip(hashes, names, strict=True))]
        return tuple(in_turn[number % len(in_turn)] for number in range(partition_count))
    share, extra = divmod(partition_count, len(names))
    taken = [0] * len(names)
    found = [""] * partition_count
    left = partition_count
    for _, number, place in _pairs(partition_count, hashes):
        if found[number] or taken[place] > share or (taken[place] == share and not extra):
            continue
        extra -= taken[place] == share
        taken[place] += 1
        found[number] = names[place]
        left -= 1
        if not left:
            break
    return tuple(found)


def _pairs(partition_count: int, hashes: Sequence[int]) -> list[tuple[int, int, int]]:
    """(score, number of the partition, place of the name) of all pairs, the highest score first."""
    steps = [(number + 1) * _PARTITION_STEP & _64_BITS for number in range(partition_count)]
    return sorted(
        (
            (_score(hashed ^ step), number, place)
            for number, step in enumerate(steps)
            for place, hashed in enumerate(hashes)
        ),
        reverse=True,
    )


def _score(bits: int) -> int:
    """64 bits of which each depends on each bit of the argument, as the end of splitmix64 makes them."""
    bits = (bits ^ (bits >> 30)) * _FIRST_FACTOR & _64_BITS
    bits = (bits ^ (bits >> 27)) * _SECOND_FACTOR & _64_BITS
    return bits ^ (bits >> 31)


def _hash(name: str) -> int:
    """64 bits of a name. Python's own `hash` differs between processes."""
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "big")
