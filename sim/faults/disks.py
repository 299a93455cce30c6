"""Mixes about disks: failing, hung, full, damaged, older, and copied."""

from __future__ import annotations

import random
from dataclasses import replace

from .options import Options


def failing_disks(rng: random.Random, options: Options) -> Options:
    """Flushes fail, under processes that end and start again."""
    return replace(options, kinds={"fsync_error": 4, "crash": 1, "slow_disk": 1}, fault_count=rng.choice((4, 6)))


def hung_disks(rng: random.Random, options: Options) -> Options:
    """A disk completes no write for seconds, while its process runs and answers heartbeats."""
    return replace(
        options,
        kinds={"hung_disk": 4, "plan": 2, "complaint": 2, "consumer_crash": 2, "crash": 1, "slow_disk": 1, "break": 1},
        fault_count=rng.choice((3, 5, 8)),
        restart_us_max=rng.choice((20_000, 300_000)),
        send_gap_us=rng.choice((10_000, 40_000)),
        batches_per_producer=rng.choice((8, 16)),
        certificate_never_share=0.0,
        wipe_share=0.0,
        late_group=True,
    )


def full_disks(rng: random.Random, options: Options) -> Options:
    """A disk, or both of a group, have reached their reserve, while other groups have room."""
    return replace(
        options,
        kinds={"full_disk": 4, "consumer_crash": 1, **rng.choice(({}, {"complaint": 1, "crash": 1, "break": 1}))},
        fault_count=rng.choice((3, 5, 8)),
        restart_us_max=rng.choice((20_000, 300_000)),
        send_gap_us=rng.choice((200_000, 400_000)),
        batches_per_producer=40,
        certificate_never_share=0.0,
        wipe_share=0.0,
        drain_us=15_000_000,
    )


def older_disks(rng: random.Random, options: Options) -> Options:
    """Both members of the open segment go down, and one comes back with a copy of its disk from within its run.

    It has forgotten control records too, which nothing tells: so consumers come afterwards.
    """
    return replace(
        options,
        kinds={"older_disk": 1},
        fault_count=2,
        partition_count=1,
        send_gap_us=rng.choice((5_000, 20_000)),
        batches_per_producer=rng.choice((24, 48)),
        certificate_never_share=rng.choice((0.0, 1.0)),
        wipe_share=0.0,
        readers_after_us=2_500_000,
        latency_rare_share=0.0,
        txn_lost_share=0.0,
        txn_late_share=0.0,
        coordinator_us_max=2_000,
    )


def contradicted(rng: random.Random, options: Options) -> Options:
    """An older copy of a disk decides a length alone, and then the member comes back that knows better."""
    return replace(
        older_disks(rng, options),
        kinds={"contradicted": 1},
        certificate_never_share=0.0,
        fault_span_us=2_400_000,
        readers_after_us=4_000_000,
    )


def started_copies(rng: random.Random, options: Options) -> Options:
    """A copy of the directory of a broker that runs is started. It may not know control records: see `older_disks`."""
    return replace(
        options,
        kinds={"started_copy": 1},
        fault_span_us=4_000_000,
        partition_count=1,
        outage_us_max=4_000_000,
        wipe_share=0.0,
        readers_after_us=6_000_000,
    )


def recent_copies(rng: random.Random, options: Options) -> Options:
    """Copies of disks from within their last run come back, beside all that happens otherwise."""
    return replace(
        options,
        kinds={"recent_copy": 6, "crash": 2, "plan": 1, "break": 1, "coordinator_down": 1, "roll": 1},
        fault_count=rng.choice((6, 12)),
        wipe_share=0.0,
    )


def damage(rng: random.Random, options: Options) -> Options:
    """Bits flip in stored batches, during switches and restarts."""
    return replace(
        options,
        kinds={"bit_flip": 6, "complaint": 2, "crash": 1, "consumer_crash": 2, "lonely": 1},
        fault_count=rng.choice((6, 12)),
        wipe_share=0.0,
    )
