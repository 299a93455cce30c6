"""Worlds with a consumer group in which order is by key, beside the exclusive ones."""

from __future__ import annotations

import random
from dataclasses import replace

from .chains import servers_lost
from .options import Options
from .ordinary import as_it_is, disks_are_lost, groups_die, restarts, switchers_race
from .serving import half_copies, late_words, servers_fall, slow_links, slow_reads


def modes(rng: random.Random, options: Options) -> Options:
    """Consumers of a shared group and of an at-most-once group, through the same faults."""
    return replace(keyed(rng, options), keyed_consumers=0, mode_consumers=rng.randint(1, 3))


def modes_blind(rng: random.Random, options: Options) -> Options:
    """The same consumers, and members that hold a segment alone with what consumers have acknowledged die."""
    drawn = servers_lost(rng, options)
    return replace(drawn, mode_consumers=rng.randint(1, 3), one_version=True, may_lose_groups=False)


def keyed(rng: random.Random, options: Options) -> Options:
    """Several consumers share the partitions, through faults of all kinds but lost segments."""
    kinds = (
        as_it_is, groups_die, groups_die, switchers_race, restarts, disks_are_lost, half_copies, servers_fall,
        late_words, slow_links, slow_reads,
    )  # fmt: skip
    drawn = rng.choice(kinds)(rng, options)
    return replace(drawn, keyed_consumers=rng.randint(1, 4), one_version=True, may_lose_groups=False)


def keyed_parked(rng: random.Random, options: Options) -> Options:
    """Keys are parked after few failed attempts; people list, release and skip them, through the same faults."""
    return replace(keyed(rng, options), keyed_attempts=rng.choice((1, 1, 2)))
