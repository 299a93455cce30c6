"""What may go wrong in a run, as one record of numbers. Times are virtual microseconds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from seriatim_broker.core.values.events import AckLevel


@dataclass(frozen=True, slots=True)
class Options:
    """The mix of one run.

    A run draws `fault_count` faults at random times of the first `fault_span_us`. Then everything heals, and consumers
    must drain all segments within `drain_us`.

    Attributes:
        kinds: Each kind of fault with its weight.
        flush: Whether the topic flushes before it commits.
        levels: The ack levels that producers ask for, one each; with `mixed_levels` each batch asks for its own.
        disk_loss_max: How many disks may be lost, one at a time. The next one may go when all data of the last one has
            two copies again.
        may_lose_groups: Also both disks of a broker group may be lost at once, for ever. Then an administrator declares
            a gap.
        record_segments_max: How many segments a chain's record holds before older ones go to pages; 0: as in
            production (complete brokers only).
        credit_bytes: How many bytes a consumer takes at once.
        take_us: How long that keeps a consumer busy.
        balanced: The controller moves open segments all the time, by traffic (complete brokers only).
        producers_max: How many producers brokers remember, each protected for less than a second; a quarter of it
            writers, and as many forwarders. 0: as many as in production, for as long.
        part_bytes: Messages with producer tables travel in parts of this size; 0: whole (bare cores only).
        old_segments: How many empty segments are in each chain from the beginning. Every broker has to take them up
            (bare cores only).
        range_readers: A reader without a consumer group reads each partition.
        keyed_consumers: How many consumers of each consumer group in which order is by key read each partition.
        keyed_groups: How many such consumer groups there are, if `keyed_consumers` is not 0.
        keyed_limits: The windows, memories and lists of these consumer groups are so small that they are often full.
        keyed_attempts: After this many failed attempts a key is parked; 0: it is tried for ever.
        dead_letters: Consumers of that group give messages up for good (bare cores only).
        keyed_failures: The share of messages on which these consumers fail.
        keyed_rests: The share of messages that these consumers do not begin when they could: they begin them later, or
            give them back.
        keyed_delayed: These consumers always fail on one key, which is not tried again while the world lasts. It has
            more messages than keys may wait.
        keyed_waits: After this share of the failures a key waits longer than the world lasts. When the faults are over,
            administrators release each key that they find in a list.
        people_name_keys: Administrators also ask for one key by its name.
        early_consumers: While administrators change the mode of a group, some consumers begin too early.
        delayed_share: The share of batches that are sent with a due time (bare cores only).
        moves_delayed: Retention has delayed messages moved, and does not wait for them; some delays are longer.
        one_clock_wrong: The wall clocks of all brokers but one are right.
        letters_away: The dead-letter topic takes nothing before the faults are over.
        consumer_away_us_max: How long it may take until another consumer comes for one that ended.
        frame_bytes: How many bytes are read for one delivery; 0: as in production.
        mode_consumers: How many consumers of a shared group, and of an at-most-once group, read each partition (bare
            cores only).
        spread_consumers: Partitions are spread over the consumers of exclusive groups. This many more of them come, and
            one comes and goes all the time (bare cores only).
        producers_start_us: The time within which producers begin to send, and programs to publish.
        copy_bytes: The size of one answer to a member that copies.
        readers_after_us: How long after the beginning consumers come.
        second_member_us: How long a disk that was just started waits for the other member before it decides a length.
        deleted_kept_s: How long deleted cursors and tombstones stay; None: days, as in production. Otherwise the
            controller looks ten times a second (complete brokers only).
        retention_ms: How long the topic keeps messages, if brokers drop them by themselves (complete brokers only); 0:
            for ever.
        retain_unread: What a group has not read is kept for longer than that.
        restores_when_alone: An older copy of the coordinator comes back when one broker alone knows what the answer
            that was lost would have reported (complete brokers only).
        revisions_again: An administrator rebuilds the coordinator before most brokers notice the loss, and a chain gets
            the revision at which a broker knows the lost record (complete brokers only).
        suspicious_us: A producer asks about a master that owes answers and sent none for this long; 0: it does not ask.
        grows: The controller has open segments get the members of their groups that they lack (bare cores only).
        nothing_fails: No fault is drawn that makes a broker slow, silent or unreachable.
        producers_wait: Producers take more batches than may be sent, and these wait outside of the core, as messages do
            that wait for a batch.
        far_us_max: Each link of a client has a latency of its own, from 0.1 ms up to this, and each link of brokers up
            to half of it. Brokers and clients have the times of production. 0: no link has (bare cores only).
        writers: How many programs publish `publications` each (bare cores only).
    """

    group_count: int = 2
    member_count: int = 2
    grows: bool = False
    partition_count: int = 1
    producer_count: int = 2
    batches_per_producer: int = 6
    messages_per_batch_max: int = 3
    window_batches: int = 3
    send_gap_us: int = 40_000
    fault_span_us: int = 1_200_000
    fault_count: int = 6
    drain_us: int = 8_000_000
    kinds: dict[str, int] = field(default_factory=dict)

    far_us_max: int = 0
    latency_us_min: int = 200
    latency_us_max: int = 3_000
    latency_us_rare: int = 40_000
    latency_rare_share: float = 0.02
    flush_us_min: int = 100
    flush_us_max: int = 4_000
    coordinator_us_max: int = 6_000

    txn_lost_share: float = 0.02
    txn_answer_lost_share: float = 0.04
    txn_late_share: float = 0.02
    read_lost_share: float = 0.01

    outage_us_max: int = 500_000
    restart_us_max: int = 600_000
    machine_share: float = 0.3
    certificate_never_share: float = 0.3
    certificate_us_max: int = 200_000
    wipe_share: float = 0.0
    late_group: bool = True
    readers_after_us: int = 0
    second_member_us: int = 200_000
    ack_lag: int = 2
    credit_bytes: int = 1 << 30
    take_us: int = 0
    reservation_messages: int = 4
    delivery_timeout_ms: int = 60_000

    flush: bool = True
    levels: tuple[int, ...] = (int(AckLevel.REPLICATED_FLUSHED),)
    mixed_levels: bool = False
    producers_wait: bool = False
    disk_loss_max: int = 1
    may_lose_groups: bool = False
    record_segments_max: int = 0
    balanced: bool = False
    producers_max: int = 0
    part_bytes: int = 0
    old_segments: int = 0
    range_readers: bool = False
    keyed_consumers: int = 0
    keyed_groups: int = 1
    keyed_limits: bool = False
    keyed_attempts: int = 0
    dead_letters: bool = False
    keyed_failures: float = 0.08
    keyed_rests: float = 0.0
    keyed_delayed: bool = False
    keyed_waits: float = 0.0
    people_name_keys: bool = False
    early_consumers: bool = False
    letters_away: bool = False
    delayed_share: float = 0.0
    moves_delayed: bool = False
    one_clock_wrong: bool = False
    consumer_away_us_max: int = 400_000
    frame_bytes: int = 0
    mode_consumers: int = 0
    spread_consumers: int = 0
    producers_start_us: int = 20_000
    copy_bytes: int = 1 << 20
    retention_ms: int = 0
    retain_unread: bool = False
    deleted_kept_s: float | None = None
    restores_when_alone: bool = False
    revisions_again: bool = False
    suspicious_us: int = 0
    nothing_fails: bool = False
    writers: int = 0
    publications: int = 0


def draw_latency_us(rng: random.Random, options: Options) -> int:
    """How long something takes from one process to another."""
    if options.latency_rare_share and rng.random() < options.latency_rare_share:
        return rng.randint(options.latency_us_max, options.latency_us_max + options.latency_us_rare)
    return rng.randint(options.latency_us_min, options.latency_us_max)
