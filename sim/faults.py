"""What may go wrong in a run, as one record of numbers drawn from the seed.

Each seed draws its own mix: which kinds of fault there are, how many, how slow things are. A world in which everything
fails all the time would reach few deep states, because faults interrupt it before. Times are virtual microseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from seriatim_broker.core.values.events import AckLevel

KINDS: tuple[str, ...] = (
    "crash",
    "crash_group",
    "crash_torn",
    "freeze",
    "cut",
    "cut_one_way",
    "break",
    "slow_disk",
    "isolate",
    "coordinator_down",
    "complaint",
    "two_complaints",
    "race",
    "plan",
    "switch_away",
    "client_break",
    "lonely",
    "consumer_crash",
    "island",
    "fenced_apart",
    "prepared_restart",
    "two_servers",
    "coordinator_refuses",
    "restore",
)
"""The faults that may be drawn; each is a method `inject_<kind>` of `sim.injector.Injector`."""

RUNTIME_KINDS: tuple[str, ...] = (
    "starve",
    "disk_full",
    "compact",
    "leases_end",
    "older_copy",
    "bit_flip",
    "roll",
)
"""Those that only whole brokers can meet; methods of `sim.whole.injector.RuntimeInjector`."""


MORE_KINDS: tuple[str, ...] = (
    "producer_crash",
    "lose_group",
    "false_certificate",
    "clock_jump",
    "hung_disk",
    "full_disk",
    "older_disk",
    "contradicted",
    "held_frames",
    "started_copy",
    "stalled_lane",
    "remake_topic",
    "remake_group",
    "operate_group",
    "late_operation",
    "trim",
    "lose_server",
)
"""Those that a world meets only if it has something more than an ordinary one (`with_something_more`)."""


DISK_KINDS: tuple[str, ...] = ("fsync_error",)
"""Those that only the storage adapter can meet; methods of `sim.whole.injector.DisksInjector`."""


SERVING_KINDS: tuple[str, ...] = ("slow_link", "cut_short", "slow_reads", "server_falls", "late_word", "told_first")
"""Those that meet a server; methods of `sim.serving_faults.ServingFaults`."""


GROUP_KINDS: tuple[str, ...] = ("cordon", "drain", "activate", "older_operator", "add_group", "gated_roll")
"""Those of an operator that changes what it wants of broker groups; methods of `sim.whole.injector.GroupsInjector`."""


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
        may_lose_groups: Also both disks of a broker group may be lost at once, for ever. Then a person declares a gap.
        record_segments_max: How many segments a chain's record holds before older ones go to pages; 0: as in
            production (whole brokers only).
        credit_bytes: How many bytes a consumer takes at once.
        take_us: How long that keeps a consumer busy.
        balanced: The controller moves open segments all the time, by traffic (whole brokers only).
        producers_idle: Brokers forget producers that are idle for a second or two.
        part_bytes: Messages with producer tables travel in parts of this size; 0: whole (bare cores only).
        old_segments: How many empty segments are in each chain from the beginning. Every broker has to take them up
            (bare cores only).
        range_readers: A reader without a consumer group reads each partition (bare cores only).
        producers_start_us: The time within which producers begin to send.
        copy_bytes: The size of one answer to a member that copies.
        readers_after_us: How long after the beginning consumers come.
        deleted_kept_s: How long deleted cursors and tombstones stay; None: days, as in production. Otherwise the
            controller looks ten times a second (whole brokers only).
        one_version: All brokers read everything that this version reads; otherwise some may be older.
        retention_ms: How long the topic keeps messages, if brokers drop them by themselves (whole brokers only); 0: for
            ever.
        writers: How many programs publish `publications` each (bare cores only).
    """

    group_count: int = 2
    member_count: int = 2
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

    latency_us_min: int = 200
    latency_us_max: int = 3_000
    latency_us_rare: int = 40_000
    latency_rare_share: float = 0.02
    sync_us_min: int = 100
    sync_us_max: int = 4_000
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
    ack_lag: int = 2
    credit_bytes: int = 1 << 30
    take_us: int = 0
    reservation_messages: int = 4
    delivery_timeout_ms: int = 60_000

    flush: bool = True
    levels: tuple[int, ...] = (int(AckLevel.REPLICATED_FLUSHED),)
    mixed_levels: bool = False
    disk_loss_max: int = 1
    may_lose_groups: bool = False
    record_segments_max: int = 0
    balanced: bool = False
    producers_idle: bool = False
    part_bytes: int = 0
    old_segments: int = 0
    range_readers: bool = False
    producers_start_us: int = 20_000
    copy_bytes: int = 1 << 20
    one_version: bool = False
    retention_ms: int = 0
    deleted_kept_s: float | None = None
    writers: int = 0
    publications: int = 0


WITH_PROMISE = (int(AckLevel.REPLICATED), int(AckLevel.REPLICATED_FLUSHED))
"""The ack levels that carry the promise; the second alone outlives the memory of all members."""


def draw_latency_us(rng: random.Random, options: Options) -> int:
    """How long something takes from one process to another."""
    if options.latency_rare_share and rng.random() < options.latency_rare_share:
        return rng.randint(options.latency_us_max, options.latency_us_max + options.latency_us_rare)
    return rng.randint(options.latency_us_min, options.latency_us_max)


MORE_SHARE = 0.25
"""Of the seeds without a profile, so many have something more than an ordinary world."""


THREE_MEMBERS_SHARE = 0.2
"""Of the seeds without a profile, so many have groups of a master and two slaves."""


def draw(rng: random.Random, profile: str = "", more: random.Random | None = None) -> Options:
    """A mix for one seed: half of the seeds have everything, the others are made for what is rare otherwise.

    With `profile` (a name of `PROFILES`) the mix is of that kind. `more` is a source of chance of its own, by which a
    world without a profile gets something more. So the other draws are the same as without it.
    """
    chosen = profile or rng.choices(list(PROFILES), [profile.weight for profile in PROFILES.values()])[0]
    options = PROFILES[chosen].draw(rng, _anything(rng))
    if profile or more is None:
        return options
    if more.random() < MORE_SHARE:
        options = PROFILES[more.choice(MORE)].draw(more, options)
    return replace(options, member_count=3) if more.random() < THREE_MEMBERS_SHARE else options


BATCHES_A_RUN = (40, 150, 400, 800)
"""Batches of one run of whole brokers, unless the command line says how many. Short runs meet more beginnings, and
long runs meet more of what builds up."""


BALANCED_SHARE = 0.25
"""Of the seeds without a profile, so many worlds of whole brokers are balanced."""


def draw_for_brokers(
    rng: random.Random, profile: str = "", batch_count: int = 0, more: random.Random | None = None
) -> Options:
    """A mix for a world of whole brokers: more traffic, and faults for as long as it lasts."""
    options = draw(rng, profile, more)
    if not profile and more is not None and more.random() < BALANCED_SHARE:
        options = _balanced(more, options)
    batches = (batch_count or rng.choice(BATCHES_A_RUN)) // (options.producer_count * options.partition_count)
    gap_us = rng.choice((2_000, 2_000, 4_000, 8_000))
    long_kinds = {"started_copy", "remake_topic", "remake_group", "restore"}
    is_long = options.producers_idle or not long_kinds.isdisjoint(options.kinds)
    span_us = max(options.fault_span_us if is_long else 400_000, batches * gap_us)
    kinds = dict(options.kinds)
    kinds.pop("trim", None)  # it is the brokers' own duty here
    if not profile or profile == "anything":
        for kind in ("island", "clock_jump", *RUNTIME_KINDS):
            if rng.random() < 0.4:
                kinds[kind] = rng.choice((1, 1, 2))
    return replace(
        options,
        kinds=kinds,
        batches_per_producer=max(1, batches),
        window_batches=rng.choice((1, 4, 6, 10, 10)),
        send_gap_us=gap_us,
        fault_span_us=span_us,
        fault_count=max(2, span_us // rng.choice((40_000, 60_000, 90_000))) * (3 if options.record_segments_max else 1),
        drain_us=30_000_000,
    )


def _as_it_is(_rng: random.Random, options: Options) -> Options:
    return options


def _restarts(rng: random.Random, options: Options) -> Options:
    """Members end one at a time while batches are under way, and are back before another broker notices."""
    return replace(
        options,
        kinds={"crash": 5, "slow_disk": 2, "cut": 1, "complaint": 1},
        fault_count=rng.choice((4, 6)),
        restart_us_max=rng.choice((15_000, 40_000, 150_000)),
        send_gap_us=rng.choice((2_000, 5_000)),
        sync_us_max=rng.choice((4_000, 20_000)),
        batches_per_producer=16,
    )


def _disks_are_lost(rng: random.Random, options: Options) -> Options:
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


def _groups_die(rng: random.Random, options: Options) -> Options:
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


def _switchers_race(rng: random.Random, options: Options) -> Options:
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


def _anything(rng: random.Random) -> Options:
    kinds: dict[str, int] = {}
    for kind in KINDS[:-6]:  # the others are drawn for whole brokers, or asked for
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
        sync_us_max=rng.choice((500, 4_000, 20_000)),
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


def _islands(rng: random.Random, options: Options) -> Options:
    """The members of the open segment are cut off together, again and again, and end sometimes."""
    return replace(
        options,
        kinds={"island": 4, "crash": 2, "crash_group": 1},
        fault_count=rng.choice((4, 8)),
        certificate_never_share=0.0,
        wipe_share=0.0,
        batches_per_producer=12,
    )


# ---- worlds that have something more than an ordinary one -----------------------------------------------


def _weak_levels(rng: random.Random, options: Options) -> Options:
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


def _gaps(rng: random.Random, options: Options) -> Options:
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


def _long_chains(rng: random.Random, options: Options) -> Options:
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


def _thousands(rng: random.Random, options: Options) -> Options:
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


def _chatty(rng: random.Random, options: Options) -> Options:
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
        one_version=True,
    )  # fmt: skip


def _torn_and_chatty(rng: random.Random, options: Options) -> Options:
    """The same, and members of the open segment are torn apart while batches come: empty segments keep a tail."""
    found = _chatty(rng, options)
    return replace(
        found,
        kinds={**found.kinds, "crash_torn": 12, "slow_disk": 4},
        send_gap_us=rng.choice((5_000, 20_000)),
        batches_per_producer=24,
        sync_us_max=20_000,
        certificate_never_share=0.0,
        restart_us_max=rng.choice((200_000, 600_000)),
        wipe_share=rng.choice((0.1, 0.2)),
    )


def _refusing(rng: random.Random, options: Options) -> Options:
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


def _idle_producers(rng: random.Random, options: Options) -> Options:
    """Many producers that send a few batches each, some of them with long pauses, so that brokers forget them."""
    span_us = rng.choice((2_500_000, 4_000_000))
    return replace(
        options,
        producers_idle=True,
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


def _parts(rng: random.Random, options: Options) -> Options:
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


def _restored(rng: random.Random, options: Options) -> Options:
    """The coordinator goes back in time, or comes back empty, while messages go on; then it is rebuilt."""
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


def _three_members(rng: random.Random, options: Options) -> Options:
    """Groups have a master and two slaves."""
    return replace(options, member_count=3, fault_count=options.fault_count + rng.choice((0, 2)))


def _suspects(rng: random.Random, options: Options) -> Options:
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
        sync_us_min=rng.choice((100, 10_000)),
        sync_us_max=rng.choice((10_000, 30_000)),
        batches_per_producer=16,
        wipe_share=0.0,
        levels=rng.choice((WITH_PROMISE, WITH_PROMISE[:1], WITH_PROMISE[1:])),
    )


def _mixed_levels(rng: random.Random, options: Options) -> Options:
    """Each batch of a producer asks for another ack level, on topics that flush before they commit, and that do not."""
    flushing = rng.random() < 0.5
    return replace(
        _suspects(rng, options), flush=flushing, levels=tuple(int(level) for level in AckLevel), mixed_levels=True
    )


def _impatient(rng: random.Random, options: Options) -> Options:
    """Producers give up: brokers are away, or refuse, for longer than a send may take."""
    return replace(
        options,
        kinds={"client_break": 3, "crash": 2, "crash_group": 1, "cut": 1, "isolate": 1, "complaint": 2},
        fault_count=rng.choice((6, 9)),
        delivery_timeout_ms=rng.choice((60, 150, 400)),
        send_gap_us=rng.choice((3_000, 10_000)),
        batches_per_producer=16,
    )


def _failing_disks(rng: random.Random, options: Options) -> Options:
    """Flushes fail, under processes that end and start again."""
    return replace(options, kinds={"fsync_error": 4, "crash": 1, "slow_disk": 1}, fault_count=rng.choice((4, 6)))


def _hung_disks(rng: random.Random, options: Options) -> Options:
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


def _full_disks(rng: random.Random, options: Options) -> Options:
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


def _older_disks(rng: random.Random, options: Options) -> Options:
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


def _contradicted(rng: random.Random, options: Options) -> Options:
    """An older copy of a disk decides a length alone, and then the member comes back that knows better."""
    return replace(
        _older_disks(rng, options),
        kinds={"contradicted": 1},
        certificate_never_share=0.0,
        fault_span_us=2_400_000,
        readers_after_us=4_000_000,
    )


def _started_copies(rng: random.Random, options: Options) -> Options:
    """A copy of the directory of a broker that runs is started. It may not know control records: see `_older_disks`."""
    return replace(
        options,
        kinds={"started_copy": 1},
        fault_span_us=4_000_000,
        partition_count=1,
        outage_us_max=4_000_000,
        wipe_share=0.0,
        readers_after_us=6_000_000,
    )


def _topics_again(rng: random.Random, options: Options) -> Options:
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


def _groups_again(rng: random.Random, options: Options) -> Options:
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


def _damage(rng: random.Random, options: Options) -> Options:
    """Bits flip in stored batches, during switches and restarts."""
    return replace(
        options,
        kinds={"bit_flip": 6, "complaint": 2, "crash": 1, "consumer_crash": 2, "lonely": 1},
        fault_count=rng.choice((6, 12)),
        wipe_share=0.0,
    )


def _fences(rng: random.Random, options: Options) -> Options:
    """Members are fenced, restart, and are left alone with each other and their clients."""
    return replace(
        options,
        kinds={"fenced_apart": 3, "crash": 1},
        fault_count=rng.choice((2, 4)),
        restart_us_max=rng.choice((15_000, 40_000)),
        send_gap_us=rng.choice((2_000, 5_000)),
        batches_per_producer=24,
        sync_us_max=2_000,
        coordinator_us_max=2_000,
        wipe_share=0.0,
    )


def _prepared(rng: random.Random, options: Options) -> Options:
    """Members restart between being prepared and being opened, and are left alone with their clients afterwards."""
    return replace(
        _fences(rng, options),
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


def _clocks(rng: random.Random, options: Options) -> Options:
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


def _two_servers(rng: random.Random, options: Options) -> Options:
    """Consumers are slow, and their servers are cut off from everybody but them, while others take over."""
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


def _held_frames(rng: random.Random, options: Options) -> Options:
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


def _broken_links(rng: random.Random, options: Options) -> Options:
    """Connections break while disks are slow, and processes end and lose all that was not flushed."""
    return replace(
        options,
        kinds={"break": 8, "slow_disk": 5, "crash": 1},
        fault_count=rng.choice((9, 14)),
        machine_share=1.0,
        send_gap_us=rng.choice((2_000, 5_000)),
        sync_us_min=10_000,
        sync_us_max=rng.choice((20_000, 50_000)),
        batches_per_producer=24,
    )


def _stalled_lanes(rng: random.Random, options: Options) -> Options:
    """One lane of a link stops carrying, and the other goes on; members have to copy what they missed."""
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


def _serving(rng: random.Random, options: Options, kinds: dict[str, int], fault_count: int) -> Options:
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


def _slow_links(rng: random.Random, options: Options) -> Options:
    """Messages to servers take long, while others take over."""
    return replace(
        _serving(rng, options, {}, 4), kinds={"slow_link": 1}, fault_span_us=3_000_000, reservation_messages=1_000
    )


def _cut_short(rng: random.Random, options: Options) -> Options:
    """Servers lose all connections in one moment, and some of their consumers with them."""
    return replace(_serving(rng, options, {"cut_short": 3}, 5), reservation_messages=1_000)


def _slow_reads(rng: random.Random, options: Options) -> Options:
    """Servers wait for their disks while others take over."""
    return replace(_serving(rng, options, {"slow_reads": 3}, 4), reservation_messages=1_000)


def _servers_fall(rng: random.Random, options: Options) -> Options:
    """Servers end one after another in groups of three, each when it reached one of the other members only."""
    return replace(
        _serving(rng, options, {"server_falls": 4}, 6),
        take_us=rng.choice((10_000, 30_000)),
        member_count=3,
        certificate_never_share=0.0,
        certificate_us_max=5_000,
        restart_us_max=rng.choice((50_000, 400_000)),
    )


def _half_copies(rng: random.Random, options: Options) -> Options:
    """Disks are lost one after another, copies take many steps, and members with whole copies end meanwhile."""
    return replace(
        _disks_are_lost(rng, options),
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


def _late_words(rng: random.Random, options: Options) -> Options:
    """A server that was replaced reaches a member that has just started and has heard of no other server."""
    return replace(
        _servers_fall(rng, options),
        kinds={"late_word": 3, "complaint": 1},
        fault_count=3,
        fault_span_us=2_400_000,
        restart_us_max=20_000,
        batches_per_producer=60,
    )


def _told_first(rng: random.Random, options: Options) -> Options:
    """Servers that were passed over hear so from other brokers only, and from them not all that they missed."""
    return replace(_serving(rng, options, {"told_first": 3}, 3), fault_span_us=3_000_000, reservation_messages=1_000)


def _any_serving(rng: random.Random, options: Options) -> Options:
    """One of those that are about servers."""
    return rng.choice((_slow_links, _cut_short, _slow_reads, _servers_fall, _half_copies, _late_words))(rng, options)


def _balanced(rng: random.Random, options: Options) -> Options:
    """The controller spreads open segments and masters all the time, so there are several partitions."""
    return replace(
        options,
        balanced=True,
        group_count=rng.choice((2, 2, 3)),
        partition_count=rng.choice((3, 4, 6)),
    )


def _false_certificates(rng: random.Random, options: Options) -> Options:
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
        sync_us_max=rng.choice((4_000, 20_000)),
        batches_per_producer=24,
        certificate_never_share=0.0,
    )


def _groups_change(rng: random.Random, options: Options) -> Options:
    """Broker groups are cordoned, drained, taken back and added, disks are replaced, during all other faults."""
    return replace(
        options,
        kinds={
            "cordon": 2,
            "drain": 4,
            "activate": 3,
            "older_operator": 1,
            "add_group": rng.choice((0, 2)),
            "gated_roll": 3,
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


def _publications(rng: random.Random, options: Options) -> Options:
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
        one_version=True,
        writers=rng.choice((1, 1, 2)),
        publications=rng.choice((2, 4, 8)),
        partition_count=rng.choice((1, 2, 3)),
        producer_count=rng.choice((1, 2)),
        fault_count=rng.choice((4, 10, 20)),
        fault_span_us=rng.choice((1_200_000, 3_000_000)),
        drain_us=20_000_000,
        producers_idle=rng.random() < 0.3,
        txn_lost_share=rng.choice((0.02, 0.1)),
        txn_late_share=rng.choice((0.02, 0.15)),
        flush=True,
        levels=(int(AckLevel.REPLICATED_FLUSHED),),
        mixed_levels=False,
        wipe_share=0.0,
    )


def _late_publications(rng: random.Random, options: Options) -> Options:
    """Publications that take long, among producers that are forgotten after a second or two.

    No group is lost as a whole: a segment with an incomplete table would be open for longer than producers are known.
    """
    return replace(
        _publications(rng, options),
        publications=rng.choice((1, 2)),
        producers_idle=True,
        producer_count=rng.choice((2, 4)),
        batches_per_producer=40,
        send_gap_us=150_000,
        delivery_timeout_ms=400,
        fault_span_us=6_000_000,
        fault_count=rng.choice((3, 7)),
        partition_count=2,
        kinds={"crash": 6, "plan": 1, "freeze": 2, "complaint": 2, "cut": 1},
    )


def _lost_publications(rng: random.Random, options: Options) -> Options:
    """Publications while all disks of a broker group are lost, and a person declares a gap."""
    options = _publications(rng, options)
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


def _unflushed_publications(rng: random.Random, options: Options) -> Options:
    """Publications on topics that commit before they flush.

    No disk hangs here: if a broker group fell and its members are suspects, its segment waits for both disks.
    """
    options = _publications(rng, options)
    return replace(options, flush=False, kinds=options.kinds | {"hung_disk": 0})


def _group_operations(rng: random.Random, options: Options) -> Options:
    """People rewind, skip, pause and resume groups all the time, while servers change, fall and are cut off."""
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
        one_version=rng.random() < 0.7,
        may_lose_groups=bool(kinds["lose_group"]),
        reservation_messages=rng.choice((4, 1_000)),
    )


def _late_operations(rng: random.Random, options: Options) -> Options:
    """Rewinds are written late and without an answer, while their server is cut off and another one takes over."""
    return replace(
        _two_servers(rng, options),
        kinds={"late_operation": 4, "operate_group": 2, "complaint": 1, "plan": 1},
        fault_count=rng.choice((4, 6)),
        fault_span_us=2_400_000,
        one_version=True,
    )


def _retention(rng: random.Random, options: Options) -> Options:
    """Messages are dropped while they are sent and read: by faults among bare cores, by their duty in whole brokers.

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
        one_version=True,
    )  # fmt: skip


def _moved_and_dropped(rng: random.Random, options: Options) -> Options:
    """People rewind and skip groups while messages are dropped."""
    found = _retention(rng, options)
    return replace(found, kinds={**found.kinds, "operate_group": 8, "late_operation": rng.choice((0, 2))})


def _unread(rng: random.Random, options: Options) -> Options:
    """Slow readers come and go, and are far behind when retention drops messages that they have not read."""
    return replace(
        _retention(rng, options),
        kinds={"trim": 6, "consumer_crash": 9, "complaint": 4},
        fault_count=rng.choice((14, 24)),
        credit_bytes=400,
        take_us=rng.choice((40_000, 90_000)),
        readers_after_us=0,
        ack_lag=rng.choice((0, 4)),
    )


@dataclass(frozen=True)
class Profile:
    """A kind of mix, and how often it is drawn."""

    draw: Callable[[random.Random, Options], Options]
    weight: int


def _stubs_copied(rng: random.Random, options: Options) -> Options:
    """Disks are lost while messages are dropped: new copies begin where retention did, on slow disks that end soon."""
    return replace(
        _retention(rng, options),
        kinds={"trim": 8, "crash": 6, "crash_torn": 2, "slow_disk": 3, "complaint": 2, "plan": 2},
        restart_us_max=rng.choice((15_000, 50_000)),
        wipe_share=0.6,
        disk_loss_max=3,
        sync_us_max=20_000,
    )


def _servers_lost(rng: random.Random, options: Options) -> Options:
    """Segments are sealed at the length of one disk, and that disk is lost before another member has copied from it."""
    return replace(
        _groups_die(rng, options),
        kinds={"crash_torn": 4, "lose_server": 4, "crash_group": 1, "crash": 1, "consumer_crash": 1},
        fault_count=rng.choice((4, 6)),
        wipe_share=0.0,
        disk_loss_max=3,
    )


def _ranges(rng: random.Random, options: Options) -> Options:
    """Readers without a group read beside the others, through faults of all kinds."""
    kinds = (
        _as_it_is, _groups_die, _groups_die, _switchers_race, _restarts, _disks_are_lost, _half_copies, _gaps,
        _any_serving,
    )  # fmt: skip
    return replace(rng.choice(kinds)(rng, options), range_readers=True)


PROFILES: dict[str, Profile] = {
    "anything": Profile(_as_it_is, 5),
    "groups-die": Profile(_groups_die, 2),
    "switchers-race": Profile(_switchers_race, 2),
    "restarts": Profile(_restarts, 2),
    "lost-disks": Profile(_disks_are_lost, 1),
    "islands": Profile(_islands, 0),
    "impatient": Profile(_impatient, 0),
    "suspects": Profile(_suspects, 0),
    "mixed-levels": Profile(_mixed_levels, 0),
    "gaps": Profile(_gaps, 0),
    "long-chains": Profile(_long_chains, 0),
    "thousands": Profile(_thousands, 0),
    "ranges": Profile(_ranges, 0),
    "chatty": Profile(_chatty, 0),
    "torn-and-chatty": Profile(_torn_and_chatty, 0),
    "producers-crash": Profile(_weak_levels, 0),
    "three-members": Profile(_three_members, 0),
    "idle-producers": Profile(_idle_producers, 0),
    "tables-in-parts": Profile(_parts, 0),
    "failing-disks": Profile(_failing_disks, 0),
    "damage": Profile(_damage, 0),
    "hung-disks": Profile(_hung_disks, 0),
    "full-disks": Profile(_full_disks, 0),
    "older-disks": Profile(_older_disks, 0),
    "contradicted": Profile(_contradicted, 0),
    "started-copies": Profile(_started_copies, 0),
    "topics-again": Profile(_topics_again, 0),
    "groups-again": Profile(_groups_again, 0),
    "publications": Profile(_publications, 0),
    "late-publications": Profile(_late_publications, 0),
    "lost-publications": Profile(_lost_publications, 0),
    "unflushed-publications": Profile(_unflushed_publications, 0),
    "group-operations": Profile(_group_operations, 0),
    "late-operations": Profile(_late_operations, 0),
    "fences": Profile(_fences, 0),
    "prepared": Profile(_prepared, 0),
    "two-servers": Profile(_two_servers, 0),
    "held-frames": Profile(_held_frames, 0),
    "refusing": Profile(_refusing, 0),
    "restored": Profile(_restored, 0),
    "clocks": Profile(_clocks, 0),
    "broken-links": Profile(_broken_links, 1),
    "stalled-lanes": Profile(_stalled_lanes, 0),
    "slow-links": Profile(_slow_links, 0),
    "cut-short": Profile(_cut_short, 0),
    "slow-reads": Profile(_slow_reads, 0),
    "servers-fall": Profile(_servers_fall, 0),
    "half-copies": Profile(_half_copies, 0),
    "late-words": Profile(_late_words, 0),
    "told-first": Profile(_told_first, 0),
    "serving": Profile(_any_serving, 1),
    "groups-change": Profile(_groups_change, 0),
    "false-certificates": Profile(_false_certificates, 0),
    "balance": Profile(_balanced, 0),
    "retention": Profile(_retention, 0),
    "servers-lost": Profile(_servers_lost, 0),
    "stubs-copied": Profile(_stubs_copied, 0),
    "unread": Profile(_unread, 0),
    "moved-and-dropped": Profile(_moved_and_dropped, 0),
}

MORE: tuple[str, ...] = (
    "suspects",
    "gaps",
    "producers-crash",
    "three-members",
    "long-chains",
    "refusing",
    "clocks",
    "hung-disks",
    "idle-producers",
    "full-disks",
    "stalled-lanes",
)
"""Profiles that may be drawn on top of another one; see `draw`."""
