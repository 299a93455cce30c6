"""Mixes about chains: long ones, those with many switches, gaps, and segments that move."""

from __future__ import annotations

import random
from dataclasses import replace

from .options import Options
from .ordinary import groups_die


def gaps(rng: random.Random, options: Options) -> Options:
    """Disks are lost one after another, each when the last loss is repaired, and once all disks of a group."""
    return replace(
        options,
        kinds={"lose_group": 3, "crash": 4, "consumer_crash": 1, "complaint": 1, "plan": 1, "cut": 1},
        fault_count=rng.choice((4, 6, 9)),
        fault_span_us=rng.choice((1_200_000, 2_400_000)),
        wipe_share=rng.choice((0.0, 0.3, 0.6)),
        disk_loss_max=rng.choice((2, 4)),
        may_lose_groups=True,
        restart_us_max=rng.choice((50_000, 300_000)),
        certificate_never_share=rng.choice((0.0, 0.3)),
        send_gap_us=rng.choice((10_000, 40_000)),
        batches_per_producer=rng.choice((12, 24)),
        late_group=True,
    )


def long_chains(rng: random.Random, options: Options) -> Options:
    """One switch after another, and records that hold few segments: most of a chain is in pages."""
    return replace(
        options,
        kinds={"plan": 8, "crash": 2, "crash_group": 1, "isolate": 1, "complaint": 2, "consumer_crash": 1},
        fault_count=20,
        certificate_never_share=0.0,
        restart_us_max=rng.choice((50_000, 150_000)),
        outage_us_max=100_000,
        wipe_share=rng.choice((0.0, 0.1)),
        record_segments_max=rng.choice((2, 4)),
    )


def thousands(rng: random.Random, options: Options) -> Options:
    """Ordinary faults on partitions that have had thousands of segments."""
    return replace(
        options,
        kinds={
            "crash": 5, "crash_group": 2, "isolate": 2, "cut": 2, "complaint": 2, "two_complaints": 1, "plan": 2,
            "server_falls": 1, "consumer_crash": 1,
        },
        fault_count=rng.choice((4, 8)),
        partition_count=1,
        wipe_share=rng.choice((0.0, 0.2)),
        certificate_never_share=0.0,
        old_segments=rng.choice((500, 1500, 3000)),
        drain_us=20_000_000,
    )  # fmt: skip


def chatty(rng: random.Random, options: Options) -> Options:
    """A broken client complains all the time about masters that are well, and next to nothing is sent meanwhile."""
    return replace(
        options,
        kinds={
            "complaint": 30, "two_complaints": 6, "plan": 4, "race": 1, "crash": 5, "crash_group": 1, "cut": 1,
            "consumer_crash": 3, "client_break": 2,
        },
        fault_count=rng.choice((40, 80)),
        fault_span_us=rng.choice((2_000_000, 4_000_000)),
        partition_count=1,
        send_gap_us=rng.choice((40_000, 400_000)),
        batches_per_producer=rng.choice((8, 16)),
        outage_us_max=200_000,
        restart_us_max=rng.choice((50_000, 600_000)),
        certificate_us_max=30_000,
        certificate_never_share=rng.choice((0.0, 0.2)),
        wipe_share=rng.choice((0.0, 0.1)),
        record_segments_max=rng.choice((0, 2, 4)),
        flush=rng.random() < 0.8,
        ack_lag=rng.choice((0, 2)),
        drain_us=20_000_000,
    )  # fmt: skip


def torn_and_chatty(rng: random.Random, options: Options) -> Options:
    """The same, and members of the open segment are torn apart while batches come: empty segments keep a tail."""
    found = chatty(rng, options)
    return replace(
        found,
        kinds={**found.kinds, "crash_torn": 12, "slow_disk": 4},
        send_gap_us=rng.choice((5_000, 20_000)),
        batches_per_producer=24,
        flush_us_max=20_000,
        certificate_never_share=0.0,
        restart_us_max=rng.choice((200_000, 600_000)),
        wipe_share=rng.choice((0.1, 0.2)),
    )


def fences(rng: random.Random, options: Options) -> Options:
    """Members are fenced, restart, and are left alone with each other and their clients."""
    return replace(
        options,
        kinds={"fenced_apart": 3, "crash": 1},
        fault_count=rng.choice((2, 4)),
        restart_us_max=rng.choice((15_000, 40_000)),
        send_gap_us=rng.choice((2_000, 5_000)),
        batches_per_producer=24,
        flush_us_max=2_000,
        coordinator_us_max=2_000,
        wipe_share=0.0,
    )


def prepared(rng: random.Random, options: Options) -> Options:
    """Members restart between being prepared and being opened, and are left alone with their clients afterwards."""
    return replace(
        fences(rng, options),
        kinds={"prepared_restart": 1},
        fault_count=rng.choice((1, 2)),
        group_count=2,
        partition_count=1,
        fault_span_us=800_000,
        certificate_never_share=0.0,
        certificate_us_max=2_000,
        outage_us_max=2_000_000,
        send_gap_us=10_000,
        batches_per_producer=120,
        latency_rare_share=0.0,
    )


def balanced(rng: random.Random, options: Options) -> Options:
    """The controller spreads open segments and masters all the time, so there are several partitions."""
    return replace(
        options,
        balanced=True,
        group_count=rng.choice((2, 2, 3)),
        partition_count=rng.choice((3, 4, 6)),
    )


def groups_change(rng: random.Random, options: Options) -> Options:
    """Broker groups are cordoned, drained, taken back and added, disks are replaced, during all other faults."""
    return replace(
        options,
        kinds={
            "cordon": 2,
            "drain": 4,
            "activate": 3,
            "older_operator": 1,
            "add_group": rng.choice((0, 2)),
            "gated_roll": 6,
            "crash": 3,
            "crash_group": rng.choice((0, 1)),
            "cut": 1,
            "complaint": 1,
            "plan": 1,
            "isolate": 1,
            "consumer_crash": 1,
            "leases_end": rng.choice((0, 1)),
            "lonely": rng.choice((0, 1)),
        },
        group_count=rng.choice((2, 3, 3, 4)),
        fault_count=rng.choice((9, 14)),
        fault_span_us=rng.choice((1_200_000, 2_400_000)),
        wipe_share=rng.choice((0.0, 0.3)),
        restart_us_max=rng.choice((50_000, 300_000)),
        certificate_never_share=0.0,
        batches_per_producer=24,
        late_group=True,
    )


def servers_lost(rng: random.Random, options: Options) -> Options:
    """Segments are sealed at the length of one disk, and that disk is lost before another member has copied from it."""
    return replace(
        groups_die(rng, options),
        kinds={"crash_torn": 4, "lose_server": 4, "crash_group": 1, "crash": 1, "consumer_crash": 1},
        fault_count=rng.choice((4, 6)),
        wipe_share=0.0,
        disk_loss_max=3,
    )


def nothing_fails(rng: random.Random, options: Options) -> Options:
    """The open segment goes from group to group, mostly without messages, and nothing fails.

    Empty segments are folded. So the members of the next group have shared nothing for some time, and exchange few
    heartbeats until their segment opens.
    """
    return replace(
        options,
        kinds={"plan": 1},
        nothing_fails=True,
        fault_count=40,
        fault_span_us=8_000_000,
        group_count=rng.choice((3, 4)),
        partition_count=1,
        producer_count=1,
        batches_per_producer=4,
        send_gap_us=30_000,
        readers_after_us=8_000_000,
        latency_us_max=rng.choice((20_000, 30_000)),
        latency_rare_share=0.0,
        flush_us_max=4_000,
        coordinator_us_max=6_000,
        txn_lost_share=0.0,
        txn_answer_lost_share=0.0,
        txn_late_share=0.0,
        read_lost_share=0.0,
        late_group=False,
    )
