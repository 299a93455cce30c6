"""Mixes about topics and consumer groups: made again, moved by administrators, and emptied by retention."""

from __future__ import annotations

import random
from dataclasses import replace

from .options import Options
from .servers import two_servers


def topics_again(rng: random.Random, options: Options) -> Options:
    """The topic is deleted and made again, under crashes and cuts, while batches are under way and consumers read."""
    return replace(
        options,
        deleted_kept_s=rng.choice((None, 0.0, 0.3)),
        kinds={
            "remake_topic": 6,
            "crash": 2,
            "slow_disk": 4,
            "cut": 1,
            "isolate": rng.choice((0, 1)),
            "complaint": 2,
            "plan": 2,
            "consumer_crash": 1,
        },
        fault_span_us=rng.choice((1_000_000, 2_000_000)),
        restart_us_max=rng.choice((50_000, 300_000)),
        certificate_never_share=0.0,
        wipe_share=0.0,
    )


def groups_again(rng: random.Random, options: Options) -> Options:
    """Consumer groups are deleted and made again under traffic and crashes; deleted cursors expire soon, or stay."""
    return replace(
        options,
        deleted_kept_s=rng.choice((None, 0.0, 0.0, 0.3)),
        kinds={
            "remake_group": 6,
            "crash": 2,
            "slow_disk": 2,
            "cut": 1,
            "isolate": rng.choice((0, 1)),
            "complaint": 2,
            "plan": 2,
            "consumer_crash": 1,
        },
        fault_count=rng.choice((9, 14)),
        fault_span_us=rng.choice((2_000_000, 4_000_000)),
        restart_us_max=rng.choice((50_000, 300_000)),
        certificate_never_share=0.0,
        wipe_share=0.0,
        late_group=True,
    )


def topics_grow(rng: random.Random, options: Options) -> Options:
    """The topic gets more partitions, under crashes and cuts, while consumers come and go."""
    return replace(
        options,
        kinds={
            "grow_topic": 4,
            "crash": 2,
            "slow_disk": 2,
            "cut": 1,
            "isolate": rng.choice((0, 1)),
            "complaint": 2,
            "plan": 2,
            "consumer_crash": 3,
        },
        fault_count=rng.choice((6, 10)),
        fault_span_us=rng.choice((1_000_000, 2_000_000)),
        restart_us_max=rng.choice((50_000, 300_000)),
        certificate_never_share=0.0,
        wipe_share=0.0,
        late_group=True,
    )


def group_operations(rng: random.Random, options: Options) -> Options:
    """Administrators rewind, skip, pause and resume groups all the time, while servers change, fall and are cut off."""
    kinds = {
        "crash": 2,
        "crash_group": rng.choice((0, 1)),
        "freeze": 2,
        "cut": 1,
        "cut_one_way": 1,
        "break": 1,
        "slow_disk": 1,
        "isolate": 1,
        "coordinator_down": 1,
        "coordinator_refuses": rng.choice((0, 0, 1)),
        "complaint": 2,
        "plan": 2,
        "two_servers": 2,
        "server_falls": rng.choice((0, 1)),
        "client_break": 1,
        "consumer_crash": 2,
        "hung_disk": rng.choice((0, 0, 1)),
        "lose_group": rng.choice((0, 0, 1)),
    }
    kinds["operate_group"] = sum(kinds.values())
    is_slow = rng.random() < 0.3
    return replace(
        options,
        kinds=kinds,
        fault_count=rng.choice((12, 20, 30)),
        fault_span_us=rng.choice((1_500_000, 3_000_000)),
        batches_per_producer=rng.choice((8, 20)),
        ack_lag=rng.choice((0, 2, 5)),
        credit_bytes=600 if is_slow else 1 << 30,
        take_us=2_000 if is_slow else 0,
        txn_lost_share=rng.choice((0.02, 0.1)),
        txn_late_share=rng.choice((0.02, 0.15)),
        may_lose_groups=bool(kinds["lose_group"]),
        reservation_messages=rng.choice((4, 1_000)),
    )


def late_operations(rng: random.Random, options: Options) -> Options:
    """Rewinds are written late and without an answer, while their server is cut off and another one takes over."""
    return replace(
        two_servers(rng, options),
        kinds={"late_operation": 4, "operate_group": 2, "complaint": 1, "plan": 1},
        fault_count=rng.choice((4, 6)),
        fault_span_us=2_400_000,
    )


def retention(rng: random.Random, options: Options) -> Options:
    """Messages are dropped while they are sent and read: by faults among bare cores, by their duty in complete brokers.

    Readers come late or are slow; segments end often, some before they have a length; members are away meanwhile.
    """
    credit_bytes, take_us = rng.choice(((1 << 30, 0), (400, 5_000), (1_500, 40_000)))
    return replace(
        options,
        kinds={
            "trim": 8, "crash": 3, "complaint": 2, "plan": 2, "consumer_crash": 2, "cut": 1, "slow_disk": 1,
            **rng.choice(
                ({}, {"crash_group": 2, "crash_torn": 2}, {"race": 2, "two_servers": 1}, {"consumer_crash": 12})
            ),
        },
        fault_count=rng.choice((8, 14, 20)),
        batches_per_producer=16,
        send_gap_us=rng.choice((5_000, 20_000)),
        fault_span_us=1_200_000,
        certificate_never_share=0.0,
        certificate_us_max=rng.choice((2_000, 30_000)),
        restart_us_max=rng.choice((50_000, 300_000, 900_000)),
        wipe_share=rng.choice((0.0, 0.0, 0.2)),
        credit_bytes=credit_bytes,
        take_us=take_us,
        readers_after_us=rng.choice((0, 0, 300_000, 900_000)),
        retention_ms=rng.choice((150, 400, 1_000)),
    )  # fmt: skip


def moved_and_dropped(rng: random.Random, options: Options) -> Options:
    """Administrators rewind and skip groups while messages are dropped."""
    found = retention(rng, options)
    return replace(found, kinds={**found.kinds, "operate_group": 8, "late_operation": rng.choice((0, 2))})


def unread(rng: random.Random, options: Options) -> Options:
    """Slow readers come and go, and are far behind when retention drops messages that they have not read."""
    return replace(
        retention(rng, options),
        kinds={"trim": 6, "consumer_crash": 9, "complaint": 4},
        fault_count=rng.choice((14, 24)),
        credit_bytes=400,
        take_us=rng.choice((40_000, 90_000)),
        readers_after_us=0,
        ack_lag=rng.choice((0, 4)),
    )


def unread_kept(rng: random.Random, options: Options) -> Options:
    """A topic keeps what groups have not read, while servers are cut off from members that lack acknowledgements."""
    return replace(
        unread(rng, options),
        kinds={"cut": 5, "cut_one_way": 5, "freeze": 3, "break": 2, "crash": 2, "slow_disk": 2, "isolate": 1},
        fault_count=rng.choice((14, 24)),
        take_us=rng.choice((5_000, 20_000)),
        retention_ms=rng.choice((50, 150)),
        retain_unread=True,
        ack_lag=0,
        wipe_share=0.0,
    )


def stubs_copied(rng: random.Random, options: Options) -> Options:
    """Disks are lost while messages are dropped: new copies begin where retention did, on slow disks that end soon."""
    return replace(
        retention(rng, options),
        kinds={"trim": 8, "crash": 6, "crash_torn": 2, "slow_disk": 3, "complaint": 2, "plan": 2},
        restart_us_max=rng.choice((15_000, 50_000)),
        wipe_share=0.6,
        disk_loss_max=3,
        flush_us_max=20_000,
    )
