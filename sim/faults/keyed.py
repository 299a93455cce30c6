"""Worlds with a consumer group in which order is by key, beside the exclusive ones."""

from __future__ import annotations

import random
from dataclasses import replace

from .options import Options
from .ordinary import as_it_is, disks_are_lost, groups_die, restarts, switchers_race
from .serving import half_copies, late_words, servers_fall, slow_links, slow_reads


def keyed(rng: random.Random, options: Options) -> Options:
    """Several consumers share the partitions, through faults of all kinds but lost segments."""
    kinds = (
        as_it_is, groups_die, groups_die, switchers_race, restarts, disks_are_lost, half_copies, servers_fall,
        late_words, slow_links, slow_reads,
    )  # fmt: skip
    drawn = rng.choice(kinds)(rng, options)
    return replace(drawn, keyed_consumers=rng.randint(1, 4), one_version=True, may_lose_groups=False)
