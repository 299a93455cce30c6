"""Mixes about links, clocks, certificates and the coordinator."""

from __future__ import annotations

import random
from dataclasses import replace

from .options import Options


def parts(rng: random.Random, options: Options) -> Options:
    """Tables travel in parts; switchers race, and links end while parts are on their way."""
    return replace(
        options,
        part_bytes=rng.choice((60, 100, 300)),
        producer_count=rng.choice((4, 8)),
        batches_per_producer=rng.choice((3, 6)),
        send_gap_us=rng.choice((10_000, 30_000)),
        group_count=rng.choice((2, 3)),
        fault_count=rng.choice((4, 8)),
        fault_span_us=rng.choice((200_000, 500_000)),
        restart_us_max=20_000,
        partition_count=1,
        kinds={"break": 5, "crash": 4, "complaint": 5, "plan": 3, "cut": 2},
    )


def broken_links(rng: random.Random, options: Options) -> Options:
    """Connections break while disks are slow, and processes end and lose all that was not flushed."""
    return replace(
        options,
        kinds={"break": 8, "slow_disk": 5, "crash": 1},
        fault_count=rng.choice((9, 14)),
        machine_share=1.0,
        send_gap_us=rng.choice((2_000, 5_000)),
        flush_us_min=10_000,
        flush_us_max=rng.choice((20_000, 50_000)),
        batches_per_producer=24,
    )


def stalled_lanes(rng: random.Random, options: Options) -> Options:
    """One lane of a link stops carrying, and the other continues; members have to copy what they missed."""
    return replace(
        options,
        kinds={"stalled_lane": 5, "crash": 2, "plan": 1, "complaint": 1, "consumer_crash": 1},
        fault_count=rng.choice((4, 6, 9)),
        restart_us_max=rng.choice((20_000, 300_000)),
        send_gap_us=rng.choice((10_000, 40_000)),
        batches_per_producer=rng.choice((16, 32)),
        certificate_never_share=0.0,
        late_group=True,
    )


def clocks(rng: random.Random, options: Options) -> Options:
    """Wall clocks are set, under switches of all kinds and members that restart with nothing in their logs."""
    return replace(
        options,
        kinds={"clock_jump": 6, "crash": 2, "crash_group": 1, "complaint": 2, "plan": 1},
        fault_count=rng.choice((6, 12)),
        restart_us_max=rng.choice((20_000, 150_000)),
        certificate_never_share=0.0,
        certificate_us_max=30_000,
        send_gap_us=rng.choice((2_000, 10_000)),
        batches_per_producer=24,
        wipe_share=0.0,
    )


def false_certificates(rng: random.Random, options: Options) -> Options:
    """Runs that live are certified to have ended, connected or cut off; their disks are given up, or are not.

    No other process ends, and all other brokers read the certificate at once: see `Injector.inject_false_certificate`.
    """
    return replace(
        options,
        kinds={"false_certificate": 5, "complaint": 2, "slow_disk": 2, "break": 1, "plan": 1, "consumer_crash": 1},
        group_count=rng.choice((2, 3)),
        member_count=rng.choice((2, 2, 3)),
        fault_count=rng.choice((4, 6, 9)),
        restart_us_max=rng.choice((50_000, 300_000)),
        wipe_share=rng.choice((0.3, 0.7)),
        disk_loss_max=3,
        send_gap_us=rng.choice((2_000, 5_000)),
        flush_us_max=rng.choice((4_000, 20_000)),
        batches_per_producer=24,
        certificate_never_share=0.0,
    )


def refusing(rng: random.Random, options: Options) -> Options:
    """The coordinator reads and refuses to write while members end, are complained about and come back."""
    return replace(
        options,
        kinds={
            "coordinator_refuses": 5, "crash": 4, "crash_group": 1, "complaint": 2, "two_complaints": 1, "plan": 2,
            "cut": 1, "consumer_crash": 1,
        },
        fault_count=rng.choice((5, 8, 11)),
        fault_span_us=rng.choice((800_000, 1_600_000)),
        certificate_never_share=rng.choice((0.0, 0.3)),
        restart_us_max=rng.choice((15_000, 150_000, 600_000)),
        send_gap_us=rng.choice((2_000, 10_000, 40_000)),
        txn_late_share=rng.choice((0.1, 0.5)),
        txn_lost_share=rng.choice((0.02, 0.2)),
        batches_per_producer=12,
    )  # fmt: skip


def restored(rng: random.Random, options: Options) -> Options:
    """The coordinator goes back in time, or comes back empty, while messages continue; then it is rebuilt."""
    return replace(
        options,
        kinds={"restore": 3, "crash": 3, "complaint": 2, "plan": 3, "consumer_crash": 1},
        group_count=rng.choice((2, 3, 3)),
        fault_count=rng.choice((5, 8)),
        fault_span_us=rng.choice((1_200_000, 2_400_000)),
        certificate_never_share=0.0,
        wipe_share=0.0,
        machine_share=0.0,
        restart_us_max=rng.choice((15_000, 150_000)),
        send_gap_us=rng.choice((10_000, 40_000)),
        txn_late_share=0.0,
        batches_per_producer=24,
        delivery_timeout_ms=60_000,
    )


def revisions_again(rng: random.Random, options: Options) -> Options:
    """A record is rebuilt at the revision at which a broker knows the lost one; members end and join, so it writes."""
    return replace(
        restored(rng, options),
        kinds={"restore": 4, "crash": 6, "consumer_crash": 1, "break": 2},
        restart_us_max=15_000,
        revisions_again=True,
    )


def restored_alone(rng: random.Random, options: Options) -> Options:
    """The coordinator goes back when one broker alone has read what its own unanswered transaction wrote."""
    return replace(
        restored(rng, options),
        kinds={"restore": 2, "complaint": 5, "plan": 3},
        fault_count=20,
        restart_us_max=1_500_000,
        partition_count=1,
        txn_answer_lost_share=0.5,
        restores_when_alone=True,
        late_group=False,
    )


def restored_unanswered(rng: random.Random, options: Options) -> Options:
    """The same, and many transactions have no answer: switches wait behind them while the coordinator goes back."""
    return replace(
        restored(rng, options),
        kinds={"restore": 4, "complaint": 5, "plan": 3, "crash": 1},
        fault_count=rng.choice((8, 12)),
        restart_us_max=15_000,
        txn_lost_share=0.05,
        txn_answer_lost_share=rng.choice((0.15, 0.3)),
    )
