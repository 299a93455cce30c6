"""Mixes about servers: which member may deliver, and what a new server knows."""

from __future__ import annotations

import random
from dataclasses import replace

from .chains import gaps
from .options import Options
from .ordinary import as_it_is, disks_are_lost, groups_die, restarts, switchers_race


def two_servers(rng: random.Random, options: Options) -> Options:
    """Consumers are slow, and their servers are cut off from all others, while others take over."""
    return replace(
        options,
        kinds={"two_servers": 3, "complaint": 1},
        fault_count=4,
        fault_span_us=1_200_000,
        partition_count=1,
        late_group=True,
        send_gap_us=2_000,
        batches_per_producer=40,
        outage_us_max=3_000_000,
        credit_bytes=800,
        reservation_messages=1_000,
        take_us=rng.choice((150_000, 250_000)),
        drain_us=40_000_000,
        wipe_share=0.0,
    )


def held_frames(rng: random.Random, options: Options) -> Options:
    """Active consumers are cut off in silence while much is sent to them; their servers end, others take over."""
    return replace(
        options,
        kinds={"held_frames": 3, "complaint": 1},
        fault_count=rng.choice((2, 3)),
        fault_span_us=8_000_000,
        partition_count=1,
        late_group=True,
        send_gap_us=rng.choice((5_000, 15_000)),
        batches_per_producer=40,
        drain_us=40_000_000,
        wipe_share=0.0,
    )


def serving(rng: random.Random, options: Options, kinds: dict[str, int], fault_count: int) -> Options:
    """Sealed segments that slow consumers read for as long as the faults last."""
    return replace(
        options,
        kinds={**kinds, "complaint": 1},
        fault_count=fault_count,
        fault_span_us=1_600_000,
        partition_count=1,
        late_group=True,
        send_gap_us=2_000,
        batches_per_producer=40,
        outage_us_max=600_000,
        credit_bytes=800,
        take_us=rng.choice((60_000, 150_000)),
        drain_us=40_000_000,
        wipe_share=0.0,
    )


def slow_links(rng: random.Random, options: Options) -> Options:
    """Messages to servers take long, while others take over."""
    return replace(
        serving(rng, options, {}, 4), kinds={"slow_link": 1}, fault_span_us=3_000_000, reservation_messages=1_000
    )


def cut_short(rng: random.Random, options: Options) -> Options:
    """Servers lose all connections in one moment, and some of their consumers with them."""
    return replace(serving(rng, options, {"cut_short": 3}, 5), reservation_messages=1_000)


def slow_reads(rng: random.Random, options: Options) -> Options:
    """Servers wait for their disks while others take over."""
    return replace(serving(rng, options, {"slow_reads": 3}, 4), reservation_messages=1_000)


def servers_fall(rng: random.Random, options: Options) -> Options:
    """Servers end one after another in groups of three, each when it reached one of the other members only."""
    return replace(
        serving(rng, options, {"server_falls": 4}, 6),
        take_us=rng.choice((10_000, 30_000)),
        member_count=3,
        certificate_never_share=0.0,
        certificate_us_max=5_000,
        restart_us_max=rng.choice((50_000, 400_000)),
    )


def half_copies(rng: random.Random, options: Options) -> Options:
    """Disks are lost one after another, copies take many steps, and members with in-sync copies end meanwhile."""
    return replace(
        disks_are_lost(rng, options),
        kinds={"crash": 6, "consumer_crash": 3, "client_break": 3, "complaint": 1},
        fault_count=12,
        fault_span_us=2_000_000,
        partition_count=1,
        disk_loss_max=4,
        wipe_share=0.5,
        copy_bytes=150,
        certificate_never_share=0.0,
        certificate_us_max=3_000,
        latency_us_max=10_000,
        batches_per_producer=30,
        send_gap_us=5_000,
        credit_bytes=800,
        take_us=30_000,
        late_group=True,
    )


def late_words(rng: random.Random, options: Options) -> Options:
    """A server that was replaced reaches a member that has just started and has heard of no other server."""
    return replace(
        servers_fall(rng, options),
        kinds={"late_word": 3, "complaint": 1},
        fault_count=3,
        fault_span_us=2_400_000,
        restart_us_max=20_000,
        batches_per_producer=60,
    )


def told_first(rng: random.Random, options: Options) -> Options:
    """Servers that were passed over hear so from other brokers only, and from them not all that they missed."""
    return replace(serving(rng, options, {"told_first": 3}, 3), fault_span_us=3_000_000, reservation_messages=1_000)


def any_serving(rng: random.Random, options: Options) -> Options:
    """One of those that are about servers."""
    return rng.choice((slow_links, cut_short, slow_reads, servers_fall, half_copies, late_words))(rng, options)


def groups_left_behind(rng: random.Random, options: Options) -> Options:
    """Broker groups die one after another and come back, so segments are settled of which old members hear nothing."""
    return replace(
        groups_die(rng, options),
        kinds={"crash_group": 4, "crash": 1},
        group_count=rng.choice((3, 4)),
        fault_count=6,
        fault_span_us=2_400_000,
        restart_us_max=400_000,
        batches_per_producer=30,
        send_gap_us=30_000,
        range_readers=True,
    )


def ranges(rng: random.Random, options: Options) -> Options:
    """Readers without a group read beside the others, through faults of all kinds."""
    kinds = (
        as_it_is, groups_die, groups_left_behind, switchers_race, restarts, disks_are_lost, half_copies, gaps,
        any_serving,
    )  # fmt: skip
    return replace(rng.choice(kinds)(rng, options), range_readers=True)
