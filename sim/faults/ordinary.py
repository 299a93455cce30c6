"""Mixes with the faults that any world may have: processes that end, and disks and links that fail."""

from __future__ import annotations

import random
from dataclasses import replace

from .kinds import KINDS
from .options import Options


def as_it_is(_rng: random.Random, options: Options) -> Options:
    """The mix that was drawn first."""
    return options


def restarts(rng: random.Random, options: Options) -> Options:
    """Members end one at a time while batches are under way, and are back before another broker notices."""
    return replace(
        options,
        kinds={"crash": 5, "slow_disk": 2, "cut": 1, "complaint": 1},
        fault_count=rng.choice((4, 6)),
        restart_us_max=rng.choice((15_000, 40_000, 150_000)),
        send_gap_us=rng.choice((2_000, 5_000)),
        flush_us_max=rng.choice((4_000, 20_000)),
        batches_per_producer=16,
    )


def disks_are_lost(rng: random.Random, options: Options) -> Options:
    """The first disk that may be lost is lost. The other member goes away as well, and comes back."""
    return replace(
        options,
        kinds={"crash": 3, "crash_group": 1, "crash_torn": 1, "consumer_crash": 1},
        fault_count=rng.choice((2, 3)),
        wipe_share=0.7,
        restart_us_max=rng.choice((50_000, 300_000)),
        send_gap_us=rng.choice((5_000, 20_000)),
        batches_per_producer=12,
        fault_span_us=600_000,
    )


def groups_die(rng: random.Random, options: Options) -> Options:
    """Whole broker groups end and are certified: segments are opened over, tables are incomplete, settlers meet."""
    return replace(
        options,
        kinds={"crash_group": 2, "crash_torn": 3, "crash": 2, "cut": 1, "complaint": 1, "consumer_crash": 1},
        fault_count=rng.choice((2, 3, 5)),
        certificate_never_share=0.0,
        certificate_us_max=rng.choice((2_000, 30_000)),
        restart_us_max=rng.choice((200_000, 900_000)),
        send_gap_us=rng.choice((5_000, 20_000)),
        batches_per_producer=12,
        wipe_share=rng.choice((0.0, 0.0, 0.1)),
    )


def switchers_race(rng: random.Random, options: Options) -> Options:
    """Several brokers switch at once and reach different members of the segment, while batches are under way."""
    return replace(
        options,
        kinds={"race": 4, "two_complaints": 2, "cut": 1, "cut_one_way": 1, "slow_disk": 1, "plan": 1, "lonely": 1},
        fault_count=rng.choice((4, 6, 9)),
        send_gap_us=rng.choice((2_000, 5_000)),
        batches_per_producer=16,
        latency_us_max=rng.choice((1_000, 3_000)),
        latency_rare_share=rng.choice((0.05, 0.15)),
        txn_answer_lost_share=rng.choice((0.0, 0.1, 0.3)),
        txn_lost_share=rng.choice((0.0, 0.2)),
        coordinator_us_max=rng.choice((2_000, 20_000)),
    )


def anything(rng: random.Random) -> Options:
    kinds: dict[str, int] = {}
    for kind in KINDS[:-6]:  # the others are drawn for complete brokers, or asked for
        if rng.random() < 0.55:
            kinds[kind] = rng.choice((1, 1, 2, 4))
    kinds.setdefault("crash", 1)
    return Options(
        group_count=rng.choice((2, 2, 2, 3)),
        partition_count=rng.choice((1, 1, 1, 2)),
        producer_count=rng.choice((1, 2, 2)),
        batches_per_producer=rng.choice((4, 6, 8)),
        window_batches=rng.choice((1, 2, 3, 4)),
        send_gap_us=rng.choice((5_000, 30_000, 80_000)),
        fault_span_us=rng.choice((400_000, 800_000, 1_200_000)),
        fault_count=rng.choice((2, 4, 6, 9)),
        kinds=kinds,
        latency_us_max=rng.choice((1_000, 3_000, 10_000)),
        latency_rare_share=rng.choice((0.0, 0.02, 0.1)),
        flush_us_max=rng.choice((500, 4_000, 20_000)),
        coordinator_us_max=rng.choice((2_000, 6_000, 30_000)),
        txn_lost_share=rng.choice((0.0, 0.02, 0.1)),
        txn_answer_lost_share=rng.choice((0.0, 0.05, 0.2)),
        txn_late_share=rng.choice((0.0, 0.02, 0.1)),
        read_lost_share=rng.choice((0.0, 0.02)),
        machine_share=rng.choice((0.0, 0.3, 0.7)),
        certificate_never_share=rng.choice((0.0, 0.3, 1.0)),
        certificate_us_max=rng.choice((5_000, 200_000)),
        wipe_share=rng.choice((0.0, 0.0, 0.15)),
        late_group=rng.random() < 0.7,
        ack_lag=rng.choice((0, 1, 4)),
        delivery_timeout_ms=rng.choice((60_000, 60_000, 60_000, 150, 400)),
    )


def islands(rng: random.Random, options: Options) -> Options:
    """The members of the open segment are cut off together, again and again, and end sometimes."""
    return replace(
        options,
        kinds={"island": 4, "crash": 2, "crash_group": 1},
        fault_count=rng.choice((4, 8)),
        certificate_never_share=0.0,
        wipe_share=0.0,
        batches_per_producer=12,
    )


def growth(rng: random.Random, options: Options) -> Options:
    """The only group has three members. Links between them are cut, or one of them ends and comes back."""
    return replace(
        options,
        grows=True,
        group_count=1,
        member_count=3,
        partition_count=rng.choice((1, 6)),
        producer_count=2,
        batches_per_producer=12,
        send_gap_us=400_000,
        kinds=rng.choice(({"cut": 1}, {"crash": 1}, {"cut": 2, "crash": 2, "freeze": 1, "complaint": 1})),
        fault_count=4,
        fault_span_us=10_000_000,
        outage_us_max=5_000_000,
        restart_us_max=2_000_000,
        drain_us=max(options.drain_us, 20_000_000),
        wipe_share=0.0,
        late_group=True,
    )


def three_members(rng: random.Random, options: Options) -> Options:
    """Groups have a master and two slaves."""
    return replace(options, member_count=3, fault_count=options.fault_count + rng.choice((0, 2)))
