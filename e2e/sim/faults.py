"""What may go wrong in a run, as one record of numbers drawn from the seed.

Each seed draws its own mix (which kinds of fault there are, how many, how slow things are), for a world in which
everything fails all the time reaches few deep states: most of it is spent in the shallow ones. Times are virtual
microseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from seriatim_broker.core.events import AckLevel

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
)
"""The faults that may be drawn; each is a method `inject_<kind>` of `e2e.sim.injector.Injector`."""

RUNTIME_KINDS: tuple[str, ...] = (
    "clock_jump",
    "starve",
    "disk_full",
    "compact",
    "leases_end",
    "older_copy",
    "bit_flip",
    "roll",
)
"""Those that only whole brokers can meet; methods of `e2e.sim.runtime_injector.RuntimeInjector`."""


MORE_KINDS: tuple[str, ...] = ("producer_crash", "lose_group")
"""Those that a world meets only if it has something more than an ordinary one (`with_something_more`)."""


DISK_KINDS: tuple[str, ...] = ("fsync_error",)
"""Those that only the storage adapter can meet; methods of `e2e.sim.disks_world.DisksInjector`."""


GROUP_KINDS: tuple[str, ...] = ("cordon", "drain", "activate", "older_operator", "add_group", "gated_roll")
"""Those of a world in which an operator changes what is wanted of groups; methods of `e2e.sim.groups_world`."""


@dataclass(frozen=True, slots=True)
class Options:
    """The mix of one run.

    `kinds` maps a fault to its weight; `fault_count` faults happen at random times of the first `fault_span_us`, after
    which everything heals and the run must drain within `drain_us`. `flush`: whether the topic flushes before it
    commits. `levels`: the ack levels that producers ask for, one each. `disk_loss_max`: how many disks may be lost one
    at a time, the next one when all that the last one held has two copies again. `may_lose_groups`: also both disks of
    a group at once, for good; then somebody declares a gap. `record_segments_max`: how many segments a chain's record
    holds before older ones go to pages, where that is not what it is in production (whole brokers only).
    `credit_bytes` and `take_us`: what consumers take at once, and how long that keeps them. `balanced`: the controller
    moves heads all the time, by traffic (whole brokers only).
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
    ack_lag: int = 2
    credit_bytes: int = 1 << 30
    take_us: int = 0
    reservation_messages: int = 4
    delivery_timeout_ms: int = 60_000

    flush: bool = True
    levels: tuple[int, ...] = (int(AckLevel.REPLICATED_FLUSHED),)
    disk_loss_max: int = 1
    may_lose_groups: bool = False
    record_segments_max: int = 0
    balanced: bool = False


WITH_PROMISE = (int(AckLevel.REPLICATED), int(AckLevel.REPLICATED_FLUSHED))
"""The ack levels that carry the promise; the second alone outlives the memory of all members."""


def draw_latency_us(rng: random.Random, options: Options) -> int:
    """How long something takes from one process to another."""
    if options.latency_rare_share and rng.random() < options.latency_rare_share:
        return rng.randint(options.latency_us_max, options.latency_us_max + options.latency_us_rare)
    return rng.randint(options.latency_us_min, options.latency_us_max)


MORE_SHARE = 0.2
"""Of the seeds without a profile, so many have something more than an ordinary world."""


def draw(rng: random.Random, profile: str = "", more: random.Random | None = None) -> Options:
    """A mix for one seed: half of them of everything, the others made for what is rare otherwise.

    With `profile` (a name of `PROFILES`) it is of that kind. `more` is the chance by which a world of no profile gets
    something more: one of its own, so that the others are what they would be without it.
    """
    chosen = profile or rng.choices(list(PROFILES), [profile.weight for profile in PROFILES.values()])[0]
    options = PROFILES[chosen].draw(rng, _anything(rng))
    if profile or more is None or more.random() >= MORE_SHARE:
        return options
    return PROFILES[more.choice(MORE)].draw(more, options)


BATCHES_A_RUN = (40, 150, 400, 800)
"""Batches of one run of whole brokers, when nobody says how many: short runs meet more beginnings, long ones more of
what builds up."""


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
    span_us = max(400_000, batches * gap_us)
    kinds = dict(options.kinds)
    if not profile or profile == "anything":
        for kind in ("island", *RUNTIME_KINDS):
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
    """Members end one at a time while batches are under way, and are back before anybody has missed them."""
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
    """The first disk that can be lost is; the other member goes away as well for a while."""
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
    """Whole groups end and are certified soon: segments are opened over, tables are incomplete, settlers meet."""
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
    for kind in KINDS[:-4]:  # the others are drawn for whole brokers, or asked for
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
    """One switch after another, and records that hold few segments: most of a chain lies in pages."""
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


def _three_members(rng: random.Random, options: Options) -> Options:
    """Groups have a master and two slaves."""
    return replace(options, member_count=3, fault_count=options.fault_count + rng.choice((0, 2)))


def _suspects(rng: random.Random, options: Options) -> Options:
    """The topic does not flush before it commits: what a member held in memory is gone when it ends badly."""
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


def _impatient(rng: random.Random, options: Options) -> Options:
    """Producers give up soon: brokers are away, or refuse, for longer than a send may take."""
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


def _damage(rng: random.Random, options: Options) -> Options:
    """Bits flip in what is stored, under switches and restarts."""
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


def _balanced(rng: random.Random, options: Options) -> Options:
    """The controller spreads heads and masters all the time, while everything else happens; so there are several."""
    return replace(
        options,
        balanced=True,
        group_count=rng.choice((2, 2, 3)),
        partition_count=rng.choice((3, 4, 6)),
    )


def _groups_change(rng: random.Random, options: Options) -> Options:
    """Groups are cordoned, drained, taken back and added, disks are replaced, under faults of everything else."""
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


@dataclass(frozen=True)
class Profile:
    """A kind of mix, and how often it is drawn."""

    draw: Callable[[random.Random, Options], Options]
    weight: int


PROFILES: dict[str, Profile] = {
    "anything": Profile(_as_it_is, 5),
    "groups-die": Profile(_groups_die, 2),
    "switchers-race": Profile(_switchers_race, 2),
    "restarts": Profile(_restarts, 2),
    "lost-disks": Profile(_disks_are_lost, 1),
    "islands": Profile(_islands, 0),
    "impatient": Profile(_impatient, 0),
    "suspects": Profile(_suspects, 0),
    "gaps": Profile(_gaps, 0),
    "long-chains": Profile(_long_chains, 0),
    "producers-crash": Profile(_weak_levels, 0),
    "three-members": Profile(_three_members, 0),
    "failing-disks": Profile(_failing_disks, 0),
    "damage": Profile(_damage, 0),
    "fences": Profile(_fences, 0),
    "prepared": Profile(_prepared, 0),
    "two-servers": Profile(_two_servers, 0),
    "groups-change": Profile(_groups_change, 0),
    "balance": Profile(_balanced, 0),
}

MORE: tuple[str, ...] = ("suspects", "gaps", "producers-crash", "three-members", "long-chains")
"""Profiles that may be drawn on top of another one; see `draw`."""
