"""Worlds with consumer groups in which order is by key, beside the exclusive ones."""

from __future__ import annotations

import random
from dataclasses import replace

from .chains import gaps, servers_lost
from .links import restored
from .options import Options
from .ordinary import as_it_is, disks_are_lost, groups_die, restarts, switchers_race
from .retaining import group_operations, late_operations, moved_and_dropped, retention, stubs_copied, unread
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


def _with_keys(rng: random.Random, options: Options) -> Options:
    """One or several consumer groups in which order is by key, of few or many consumers, on this mix."""
    return replace(
        options,
        keyed_consumers=rng.randint(1, 4),
        keyed_groups=rng.choice((1, 1, 2, 3)),
        keyed_limits=rng.random() < 0.4,
        keyed_failures=rng.choice((0.02, 0.08, 0.08, 0.3)),
        drain_us=max(options.drain_us, 20_000_000),  # one hand may fail and be slow again and again, on one key
        one_version=True,
    )


def keyed_moved(rng: random.Random, options: Options) -> Options:
    """People rewind, skip and pause consumer groups while keys are set aside, delayed or granted."""
    drawn = rng.choice((group_operations, group_operations, group_operations, late_operations))(rng, options)
    return _with_keys(rng, drawn)


def keyed_dropped(rng: random.Random, options: Options) -> Options:
    """Retention drops messages that are live, granted or set aside; in some worlds people move groups as well."""
    drawn = rng.choice((retention, retention, moved_and_dropped, unread, stubs_copied))(rng, options)
    return _with_keys(rng, drawn)


def keyed_lost(rng: random.Random, options: Options) -> Options:
    """All disks with a segment are lost, with what was set aside there or handed over to it."""
    return _with_keys(rng, rng.choice((gaps, gaps, servers_lost))(rng, options))


def keyed_full(rng: random.Random, options: Options) -> Options:
    """Windows, memories and lists are full all the time, because consumers fail on every third message."""
    kinds = (as_it_is, groups_die, switchers_race, restarts, half_copies, servers_fall)
    drawn = _with_keys(rng, rng.choice(kinds)(rng, options))
    return replace(
        drawn, keyed_limits=True, keyed_failures=0.3, may_lose_groups=False,
        batches_per_producer=max(drawn.batches_per_producer, 24),
    )  # fmt: skip


def keyed_restored(rng: random.Random, options: Options) -> Options:
    """The coordinator goes back in time, or comes back empty, and is rebuilt."""
    return _with_keys(rng, restored(rng, options))
