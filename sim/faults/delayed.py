"""Worlds in which batches are sent with due times, and some of them are cancelled."""

from __future__ import annotations

import random
from dataclasses import replace

from .chains import servers_lost
from .options import Options
from .ordinary import as_it_is, disks_are_lost, groups_die, restarts, switchers_race
from .retention import retention
from .servers import servers_fall, slow_links, slow_reads, two_servers

DELAYED_DRAIN_US = 20_000_000
"""What is delayed is due within 3 s after the faults."""


def delayed(rng: random.Random, options: Options) -> Options:
    """Due times and cancellations, through faults of all kinds but lost disks."""
    kinds = (
        as_it_is, groups_die, groups_die, groups_die, switchers_race, switchers_race, restarts, restarts, slow_links,
        slow_reads, two_servers, retention, retention, retention,
    )  # fmt: skip
    return replace(_delayed(rng, rng.choice(kinds)(rng, options)), wipe_share=0.0)


def delayed_three(rng: random.Random, options: Options) -> Options:
    """The same in groups of three."""
    return replace(delayed(rng, options), member_count=3)


def delayed_retention(rng: random.Random, options: Options) -> Options:
    """The same, and retention drops most before it is due, so that servers move it; sometimes a ledger is lost."""
    may_lose = rng.random() < 0.3
    kinds = (servers_lost, servers_fall) if may_lose else (retention, retention, restarts, two_servers)
    drawn = rng.choice(kinds)(rng, retention(rng, options))
    moved = replace(_delayed(rng, drawn), moves_delayed=True, kinds={**drawn.kinds, "trim": 12}, may_lose_groups=False)
    return moved if may_lose else replace(moved, wipe_share=0.0)


def delayed_blind(rng: random.Random, options: Options) -> Options:
    """The same, and members that alone have the ledger of a segment end, or lose their disks."""
    kinds = servers_fall, servers_fall, servers_lost, disks_are_lost
    return replace(_delayed(rng, rng.choice(kinds)(rng, options)), may_lose_groups=False)


def _delayed(rng: random.Random, drawn: Options) -> Options:
    return replace(
        drawn,
        keyed_consumers=rng.choice((0, 0, 1, 2)),
        range_readers=rng.random() < 0.3,
        delayed_share=rng.choice((0.3, 0.6, 0.9)),
        one_clock_wrong=rng.random() < 0.5,
        retention_ms=0,
        batches_per_producer=max(drawn.batches_per_producer, 10),
        drain_us=max(drawn.drain_us, DELAYED_DRAIN_US),
    )
