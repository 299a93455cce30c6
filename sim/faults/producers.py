"""Mixes about producers: weak ack levels, impatience, silence, and programs that publish."""

from __future__ import annotations

import random
from dataclasses import replace

from seriatim_broker.core.values.events import AckLevel

from .options import Options

FEW = 14
"""How many producers brokers remember in worlds in which they forget some."""

WITH_PROMISE = (int(AckLevel.REPLICATED), int(AckLevel.REPLICATED_FLUSHED))
"""The ack levels that carry the promise; the second alone outlives the memory of all members."""


def weak_levels(rng: random.Random, options: Options) -> Options:
    """Producers end and are replaced, and each asks for another ack level, most of them for less than the promise."""
    return replace(
        options,
        kinds={**options.kinds, "producer_crash": 3, "crash": 3, "complaint": 1},
        fault_count=options.fault_count + rng.choice((2, 4)),
        levels=tuple(int(level) for level in AckLevel),
        producer_count=max(2, options.producer_count),
        restart_us_max=rng.choice((15_000, 150_000)),
        send_gap_us=rng.choice((2_000, 10_000)),
        batches_per_producer=12,
    )


def suspects(rng: random.Random, options: Options) -> Options:
    """The topic does not flush before it commits: a member that crashes loses what it held in memory."""
    return replace(
        options,
        flush=False,
        kinds={"crash": 3, "crash_group": 4, "crash_torn": 1, "cut": 1, "slow_disk": 2, "plan": 1, "consumer_crash": 1},
        fault_count=rng.choice((2, 4, 6)),
        machine_share=rng.choice((0.3, 0.7, 1.0)),
        certificate_never_share=rng.choice((0.0, 0.3)),
        restart_us_max=rng.choice((20_000, 150_000, 600_000)),
        send_gap_us=rng.choice((2_000, 5_000)),
        flush_us_min=rng.choice((100, 10_000)),
        flush_us_max=rng.choice((10_000, 30_000)),
        batches_per_producer=16,
        wipe_share=0.0,
        levels=rng.choice((WITH_PROMISE, WITH_PROMISE[:1], WITH_PROMISE[1:])),
    )


def suspects_restart(rng: random.Random, options: Options) -> Options:
    """As `suspects`, but members restart again while they settle, and read the chain record late."""
    return replace(
        suspects(rng, options),
        kinds={"crash_group": 3, "crash": 6},
        fault_count=rng.choice((8, 14)),
        fault_span_us=1_200_000,
        machine_share=1.0,
        certificate_never_share=rng.choice((0.0, 0.5, 1.0)),
        restart_us_max=rng.choice((20_000, 150_000)),
        coordinator_us_max=100_000,
        read_lost_share=0.0,
        late_group=False,
    )


def frozen_masters(rng: random.Random, options: Options) -> Options:
    """Masters freeze, and nothing else fails. The producer asks other brokers about the silent master."""
    return replace(
        options,
        kinds={"freeze_master": 1},
        fault_count=30,
        fault_span_us=4_000_000,
        suspicious_us=160_000,
        group_count=rng.choice((2, 3)),
        partition_count=1,
        producer_count=1,
        window_batches=4,
        send_gap_us=20_000,
        batches_per_producer=300,
        latency_us_max=1_000,
        latency_rare_share=0.0,
        flush_us_max=rng.choice((500, 4_000)),
        coordinator_us_max=2_000,
        txn_lost_share=0.0,
        txn_answer_lost_share=0.0,
        txn_late_share=0.0,
        read_lost_share=0.0,
        late_group=False,
    )


def mixed_levels(rng: random.Random, options: Options) -> Options:
    """Each batch of a producer asks for another ack level, on topics that flush before they commit, and that do not."""
    flushing = rng.random() < 0.5
    return replace(
        suspects(rng, options), flush=flushing, levels=tuple(int(level) for level in AckLevel), mixed_levels=True
    )


def impatient(rng: random.Random, options: Options) -> Options:
    """Producers give up: brokers are away, or refuse, for longer than a send may take."""
    return replace(
        options,
        kinds={"client_break": 3, "crash": 2, "crash_group": 1, "cut": 1, "isolate": 1, "complaint": 2},
        fault_count=rng.choice((6, 9)),
        delivery_timeout_ms=rng.choice((60, 150, 400)),
        send_gap_us=rng.choice((3_000, 10_000)),
        batches_per_producer=16,
        producers_wait=True,
    )


def idle_producers(rng: random.Random, options: Options) -> Options:
    """Many producers that send a few batches each, some of them with long pauses, so that brokers forget them."""
    span_us = rng.choice((2_500_000, 4_000_000))
    return replace(
        options,
        producers_max=FEW,
        producer_count=rng.choice((20, 35, 60)),
        producers_start_us=span_us,
        batches_per_producer=rng.choice((1, 3, 5)),
        send_gap_us=rng.choice((30_000, 900_000, 2_200_000)),
        delivery_timeout_ms=400,
        fault_span_us=span_us,
        fault_count=rng.choice((2, 5, 8)),
        restart_us_max=rng.choice((20_000, 300_000)),
        partition_count=1,
        wipe_share=0.0,
        kinds={"crash": 4, "crash_group": 1, "plan": 3, "complaint": 2, "cut": 1, "slow_disk": 1},
        certificate_never_share=rng.choice((0.0, 0.3)),
    )


def idle_clocks(rng: random.Random, options: Options) -> Options:
    """As `idle_producers`, but the clocks of masters are set, so that append time leaps forward and is set back."""
    return replace(
        idle_producers(rng, options),
        kinds={"clock_jump": 6, "crash": 2, "complaint": 3, "plan": 3},
        fault_count=rng.choice((8, 14)),
    )


def publications(rng: random.Random, options: Options) -> Options:
    """Programs publish while segments move, brokers fall, and staged data comes and goes.

    All brokers know publications: nothing is decided before they do.
    """
    kinds = {
        "crash": 3,
        "crash_group": rng.choice((0, 1, 2)),
        "freeze": 2,
        "cut": 1,
        "cut_one_way": 1,
        "break": 1,
        "slow_disk": 1,
        "isolate": 1,
        "coordinator_down": 1,
        "coordinator_refuses": rng.choice((0, 0, 1)),
        "complaint": 3,
        "plan": 3,
        "switch_away": 1,
        "race": 1,
        "prepared_restart": rng.choice((0, 1)),
        "hung_disk": rng.choice((0, 0, 1)),
        "full_disk": rng.choice((0, 0, 1)),
    }
    return replace(
        options,
        kinds=kinds,
        writers=rng.choice((1, 1, 2)),
        publications=rng.choice((2, 4, 8)),
        partition_count=rng.choice((1, 2, 3)),
        producer_count=rng.choice((1, 2)),
        fault_count=rng.choice((4, 10, 20)),
        fault_span_us=rng.choice((1_200_000, 3_000_000)),
        drain_us=20_000_000,
        producers_max=FEW * (rng.random() < 0.3),
        txn_lost_share=rng.choice((0.02, 0.1)),
        txn_late_share=rng.choice((0.02, 0.15)),
        flush=True,
        levels=(int(AckLevel.REPLICATED_FLUSHED),),
        mixed_levels=False,
        wipe_share=0.0,
    )


def late_publications(rng: random.Random, options: Options) -> Options:
    """Publications that take long, among producers that are forgotten after a second or two.

    No group is lost as a whole: a segment with an incomplete table would be open for longer than producers are known.
    """
    return replace(
        publications(rng, options),
        publications=rng.choice((1, 2)),
        producers_max=FEW,
        producer_count=rng.choice((2, 4)),
        batches_per_producer=40,
        send_gap_us=150_000,
        delivery_timeout_ms=400,
        fault_span_us=6_000_000,
        fault_count=rng.choice((3, 7)),
        partition_count=2,
        kinds={"crash": 6, "plan": 1, "freeze": 2, "complaint": 2, "cut": 1},
    )


def many_writers(rng: random.Random, options: Options) -> Options:
    """More programs publish than a partition remembers writers, and questions about early ones come late.

    Masters protect a writer for seconds. Few faults strike, because each switch begins that time again.
    """
    return replace(
        late_publications(rng, options),
        writers=rng.choice((2, 3, 4, 6)),
        producers_start_us=rng.choice((20_000, 5_000_000, 12_000_000)),
        publications=rng.choice((1, 2)),
        producers_max=rng.choice((4, 8)),
        producer_count=2,
        partition_count=rng.choice((1, 2)),
        fault_count=rng.choice((0, 2, 5)),
        drain_us=40_000_000,
    )


def lost_publications(rng: random.Random, options: Options) -> Options:
    """Publications while all disks of a broker group are lost, and an administrator declares a gap."""
    options = publications(rng, options)
    return replace(
        options,
        kinds={"lose_group": 3, "crash": 4, "complaint": 1, "plan": 2, "cut": 1},
        fault_count=rng.choice((4, 6, 9)),
        disk_loss_max=rng.choice((2, 4)),
        wipe_share=rng.choice((0.0, 0.3)),
        may_lose_groups=True,
        restart_us_max=rng.choice((50_000, 300_000)),
        certificate_never_share=rng.choice((0.0, 0.3)),
        late_group=True,
    )


def unflushed_publications(rng: random.Random, options: Options) -> Options:
    """Publications on topics that commit before they flush.

    No disk hangs here: if a broker group fell and its members are suspects, its segment waits for both disks.
    """
    options = publications(rng, options)
    return replace(options, flush=False, kinds=options.kinds | {"hung_disk": 0})
