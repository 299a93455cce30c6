"""Worlds with consumer groups in which order is by key, beside the exclusive ones."""

from __future__ import annotations

import random
from dataclasses import replace

from .chains import gaps, servers_lost
from .links import restored
from .options import Options
from .ordinary import as_it_is, disks_are_lost, groups_die, restarts, switchers_race
from .retention import group_operations, late_operations, moved_and_dropped, retention, stubs_copied, unread
from .servers import half_copies, late_words, servers_fall, serving, slow_links, slow_reads, two_servers

KEYED_DRAIN_US = 20_000_000
"""One hand may fail and be slow again and again, on one key."""

RESTING_DRAIN_US = 40_000_000
"""On one key, message after message may rest for up to 1.5 s, or wait for the end of a grant of 1 s, because the word
that gives it back is lost. Of 120 worlds, the slowest took 13 s after the last fault."""


def modes(rng: random.Random, options: Options) -> Options:
    """Consumers of a shared group and of an at-most-once group, through the same faults."""
    return replace(keyed(rng, options), keyed_consumers=0, mode_consumers=rng.randint(1, 3))


def modes_blind(rng: random.Random, options: Options) -> Options:
    """The same consumers, and members that hold a segment alone with what consumers have acknowledged die."""
    drawn = servers_lost(rng, options)
    return replace(drawn, mode_consumers=rng.randint(1, 3), may_lose_groups=False)


def yields(rng: random.Random, options: Options) -> Options:
    """Partitions are spread over consumers that come and go, through crossings, take-overs, rewinds and lost disks."""
    kinds = (
        as_it_is, groups_die, switchers_race, restarts, servers_fall, late_words, slow_links, slow_reads,
        group_operations, two_servers,
    )  # fmt: skip
    once = rng.random() < 0.5
    drawn = (keyed if once else rng.choice(kinds))(rng, options)
    return replace(
        drawn,
        keyed_consumers=0,
        mode_consumers=rng.randint(1, 2) if once else 0,
        spread_consumers=rng.randint(1, 3),
        take_us=0,
        credit_bytes=1 << 30,
        may_lose_groups=False,
        partition_count=rng.choice((1, 2, 2, 3)),
        batches_per_producer=rng.choice((12, 24)),
    )


def keyed(rng: random.Random, options: Options) -> Options:
    """Several consumers share the partitions, through faults of all kinds but lost segments."""
    kinds = (
        as_it_is, groups_die, groups_die, switchers_race, restarts, disks_are_lost, half_copies, servers_fall,
        late_words, slow_links, slow_reads,
    )  # fmt: skip
    drawn = rng.choice(kinds)(rng, options)
    return replace(
        drawn,
        keyed_consumers=rng.randint(1, 4),
        may_lose_groups=False,
        drain_us=max(drawn.drain_us, KEYED_DRAIN_US),
    )


def keyed_parked(rng: random.Random, options: Options) -> Options:
    """Keys are parked after few failed attempts; administrators list, release and skip them, through the same
    faults."""
    return replace(keyed(rng, options), keyed_attempts=rng.choice((1, 1, 2)))


def keyed_rests(rng: random.Random, options: Options) -> Options:
    """Consumers hold messages that they do not begin, give grants back, and end, through the same faults."""
    drawn = replace(keyed(rng, options), keyed_rests=rng.choice((0.1, 0.3)), keyed_failures=0.02)
    return replace(drawn, drain_us=max(drawn.drain_us, RESTING_DRAIN_US))


def with_keys(rng: random.Random, options: Options) -> Options:
    """One or several consumer groups in which order is by key, of few or many consumers, on this mix."""
    return replace(
        options,
        keyed_consumers=rng.randint(1, 4),
        keyed_groups=rng.choice((1, 1, 2, 3)),
        keyed_limits=rng.random() < 0.4,
        keyed_failures=rng.choice((0.02, 0.08, 0.08, 0.3)),
        drain_us=max(options.drain_us, KEYED_DRAIN_US),
    )


def keyed_moved(rng: random.Random, options: Options) -> Options:
    """Administrators rewind, skip and pause consumer groups while keys are set aside, delayed or granted."""
    drawn = rng.choice((group_operations, group_operations, group_operations, late_operations))(rng, options)
    return with_keys(rng, drawn)


def keyed_dropped(rng: random.Random, options: Options) -> Options:
    """Retention drops messages that are live, granted or set aside; in some worlds administrators move groups as
    well."""
    drawn = rng.choice((retention, retention, moved_and_dropped, unread, stubs_copied))(rng, options)
    return with_keys(rng, drawn)


def keyed_gone(rng: random.Random, options: Options) -> Options:
    """Retention drops messages that are granted for the second or third time, and servers die soon after."""
    drawn = with_keys(rng, retention(rng, options))
    return replace(
        drawn, kinds={**drawn.kinds, "trim": 8, "crash": 4}, keyed_failures=0.3, keyed_groups=3, fault_count=30
    )


def keyed_waits(rng: random.Random, options: Options) -> Options:
    """Keys wait longer than the world lasts, and retention drops the messages on which consumers failed."""
    drawn = with_keys(rng, rng.choice((retention, unread))(rng, options))
    return replace(drawn, keyed_waits=rng.choice((0.3, 0.7)), keyed_failures=rng.choice((0.08, 0.3)))


def keyed_lost(rng: random.Random, options: Options) -> Options:
    """All disks with a segment are lost, with what was set aside there or handed over to it."""
    return with_keys(rng, rng.choice((gaps, gaps, servers_lost))(rng, options))


def keyed_full(rng: random.Random, options: Options) -> Options:
    """Windows, memories and lists are full all the time, because consumers fail on every third message."""
    kinds = (as_it_is, groups_die, switchers_race, restarts, half_copies, servers_fall)
    drawn = with_keys(rng, rng.choice(kinds)(rng, options))
    return replace(
        drawn, keyed_limits=True, keyed_failures=0.3, may_lose_groups=False,
        batches_per_producer=max(drawn.batches_per_producer, 24),
    )  # fmt: skip


def keyed_delayed(rng: random.Random, options: Options) -> Options:
    """One key waits all the time, with more messages after it than keys may wait. All other keys continue."""
    kinds = (as_it_is, groups_die, switchers_race, restarts, servers_fall)
    drawn = with_keys(rng, rng.choice(kinds)(rng, options))
    return replace(
        drawn, keyed_delayed=True, keyed_limits=True, keyed_failures=0.02, partition_count=1, may_lose_groups=False,
        batches_per_producer=max(drawn.batches_per_producer, 40),
    )  # fmt: skip


def keyed_frames(rng: random.Random, options: Options) -> Options:
    """Frames have room for few of the messages that are granted at once."""
    kinds = (as_it_is, groups_die, switchers_race, restarts, servers_fall)
    drawn = with_keys(rng, rng.choice(kinds)(rng, options))
    return replace(drawn, frame_bytes=rng.choice((8, 20, 40)), may_lose_groups=False)


def keyed_restored(rng: random.Random, options: Options) -> Options:
    """The coordinator goes back in time, or comes back empty, and is rebuilt."""
    return with_keys(rng, restored(rng, options))


def dropped_restored(rng: random.Random, options: Options) -> Options:
    """The same, while retention drops messages and the consumers of a group are away: its cursor may be left behind."""
    drawn = keyed_restored(rng, options)
    return replace(
        drawn,
        kinds={**drawn.kinds, "restore": 2, "trim": 8, "group_leaves": 6, "plan": 4},
        fault_count=rng.choice((14, 20)),
        fault_span_us=2_400_000,
        retention_ms=150,
    )


def keyed_halves(rng: random.Random, options: Options) -> Options:
    """Members that join again get half of a server's state; then the server ends."""
    drawn = serving(rng, options, {"half_state": 5}, 16)
    return replace(
        with_keys(rng, drawn),
        take_us=rng.choice((30_000, 60_000)),
        fault_span_us=4_000_000,
        batches_per_producer=60,
        certificate_never_share=0.0,
        certificate_us_max=5_000,
        restart_us_max=600_000,
    )


def keyed_slow(rng: random.Random, options: Options) -> Options:
    """Flushes take long, and several consumer groups are handed over at the same time."""
    kinds = (as_it_is, switchers_race, restarts)
    drawn = with_keys(rng, rng.choice(kinds)(rng, options))
    return replace(
        drawn, keyed_groups=3, keyed_failures=0.3, flush_us_max=60_000, partition_count=1, may_lose_groups=False,
        batches_per_producer=max(drawn.batches_per_producer, 24),
    )  # fmt: skip


def keyed_late(rng: random.Random, options: Options) -> Options:
    """Writes of cursors are carried out long after they count as unanswered; needless rebuilds come meanwhile."""
    drawn = with_keys(rng, options)
    return replace(
        drawn,
        kinds={"plan": 6, "complaint": 6, "needless_rebuild": 12, "consumer_crash": 1},
        fault_count=30,
        fault_span_us=3_000_000,
        keyed_failures=0.3,
        txn_lost_share=0.45,
        txn_late_share=0.33,
        partition_count=1,
        may_lose_groups=False,
        batches_per_producer=40,
        send_gap_us=20_000,
    )


def keyed_left(rng: random.Random, options: Options) -> Options:
    """The same writes. All consumers end while one is under way, and others come before it is carried out."""
    return replace(keyed_late(rng, options), kinds={"plan": 6, "complaint": 6, "late_alone": 12})


def keyed_silent(rng: random.Random, options: Options) -> Options:
    """The same writes. Their server removes a silent member before it may deliver again."""
    drawn = replace(keyed_late(rng, options), kinds={"plan": 6, "complaint": 6, "late_and_silent": 12})
    return replace(drawn, txn_lost_share=0.3, certificate_never_share=0.0, coordinator_us_max=60_000)


def keyed_words(rng: random.Random, options: Options) -> Options:
    """A server that was replaced reaches a member that has just started, with acknowledgements that no other has."""
    drawn = with_keys(rng, late_words(rng, options))
    return replace(
        drawn,
        kinds={"word_to_server": 3, "complaint": 1},
        fault_count=4,
        member_count=2,
        keyed_consumers=rng.randint(2, 4),
        keyed_failures=0.08,
        may_lose_groups=False,
        take_us=rng.choice((10_000, 30_000, 60_000)),
    )


def keyed_begins(rng: random.Random, options: Options) -> Options:
    """Servers that begin with what was handed over end before another member knows that they have begun.

    Lists are full, so a server reads few keys of its own segment. It would give no message of them before its first
    record is common, and what is queued after them waits.
    """
    return replace(
        with_keys(rng, options),
        kinds={"plan": 4, "complaint": 4, "begun_alone": 12},
        fault_count=30,
        fault_span_us=3_000_000,
        keyed_consumers=rng.randint(2, 4),
        keyed_failures=0.08,
        keyed_limits=True,
        partition_count=1,
        may_lose_groups=False,
        batches_per_producer=40,
        send_gap_us=20_000,
        txn_lost_share=0.0,
        certificate_never_share=0.0,
        certificate_us_max=5_000,
        restart_us_max=600_000,
        wipe_share=0.0,
        late_group=False,
    )


def keyed_further(rng: random.Random, options: Options) -> Options:
    """One broker group has all segments, so its disks know how far consumer groups were when cursors go back."""
    return replace(
        keyed_restored(rng, options),
        kinds={"restore": 4, "complaint": 4, "plan": 2, "consumer_crash": 2},
        group_count=1,
        partition_count=1,
        fault_count=16,
        fault_span_us=2_400_000,
        batches_per_producer=40,
        send_gap_us=20_000,
        take_us=30_000,
    )
