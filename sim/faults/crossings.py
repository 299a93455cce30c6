"""Worlds in which features meet: each is drawn with a share of its own, as faults are.

The mixes of other modules look at one feature each. Here a world has several at once, under faults of ordinary worlds:
administrators move consumer groups of every mode, retention drops messages, keys are parked and given up, programs
publish, disks are lost for good, and the coordinator is rebuilt. What bare cores do not have (a topic that grows) is
drawn for complete brokers, and the other way round.
"""

from __future__ import annotations

import random
from dataclasses import replace

from .keyed import with_keys
from .options import Options

PEOPLE_SHARE = 0.5
"""Of the worlds, this many have administrators who rewind, skip, pause and resume consumer groups."""

RETENTION_SHARE = 0.4
"""How many drop messages that are as young as those that are read."""

LEAVING_SHARE = 0.5
"""In this many, all consumers of a group end and come back much later."""

KEYED_SHARE = 0.7
"""How many have consumer groups in which order is by key."""

PARKED_SHARE = 0.3
LETTERS_SHARE = 0.4
"""Of those with such groups, this many park keys, and this many of the others give messages up for good."""

RANGES_SHARE = 0.4
GROWTH_SHARE = 0.5
MODES_SHARE = 0.25
SPREAD_SHARE = 0.25
WRITERS_SHARE = 0.3

LOSS_SHARE = 0.3
REBUILD_SHARE = 0.25
"""Of the other worlds. A coordinator that is rebuilt needs the disks that know what it lost."""


CHANGES_SHARE = 0.4
"""In this many of the worlds whose coordinator is not rebuilt, administrators change the mode of consumer groups."""

NAMING_SHARE = 0.5
"""In this many of those that park keys, administrators also ask for single keys by name."""


WAITS_SHARE = 0.4
"""In this many of those that neither park keys nor give messages up, keys may wait longer than the world lasts."""


CHANCE = 862
"""Of what came later. With this number, worlds in which planted bugs were found by rare seeds have nothing of it."""


def _has(rng: random.Random, share: float) -> bool:
    return rng.random() < share


def _faults(rng: random.Random) -> dict[str, int]:
    """What goes wrong beside the features."""
    return {
        "crash": 3,
        "plan": 2,
        "complaint": 2,
        "consumer_crash": 2,
        "crash_group": rng.choice((0, 1)),
        "crash_torn": rng.choice((0, 0, 1)),
        "freeze": rng.choice((0, 1)),
        "cut": rng.choice((0, 1)),
        "cut_one_way": rng.choice((0, 1)),
        "break": rng.choice((0, 1)),
        "slow_disk": rng.choice((0, 1)),
        "isolate": rng.choice((0, 1)),
        "coordinator_down": rng.choice((0, 1)),
        "client_break": rng.choice((0, 1)),
        "two_servers": rng.choice((0, 0, 1)),
        "server_falls": rng.choice((0, 0, 1)),
        "hung_disk": rng.choice((0, 0, 1)),
    }


def _any_world(rng: random.Random, options: Options) -> Options:
    """The features that every kind of world has."""
    kinds = _faults(rng)
    if _has(rng, PEOPLE_SHARE):
        kinds["operate_group"] = rng.choice((4, 8))
    if _has(rng, LEAVING_SHARE):
        kinds["group_leaves"] = rng.choice((2, 4))
    drawn = replace(
        options,
        partition_count=rng.choice((1, 2, 2)),
        producer_count=rng.choice((1, 2)),
        batches_per_producer=rng.choice((8, 16, 30)),
        send_gap_us=rng.choice((5_000, 20_000, 60_000)),
        fault_count=rng.choice((8, 14, 24)),
        fault_span_us=rng.choice((1_200_000, 2_400_000, 4_000_000)),
        restart_us_max=rng.choice((20_000, 150_000, 600_000)),
        certificate_never_share=rng.choice((0.0, 0.3)),
        wipe_share=rng.choice((0.0, 0.0, 0.2)),
        readers_after_us=rng.choice((0, 0, 400_000)),
        delivery_timeout_ms=60_000,
        range_readers=_has(rng, RANGES_SHARE),
        drain_us=20_000_000,
    )
    if _has(rng, LOSS_SHARE):
        kinds["lose_group"] = rng.choice((2, 3))
        drawn = replace(drawn, may_lose_groups=True, disk_loss_max=rng.choice((2, 4)))
    elif _has(rng, REBUILD_SHARE):
        kinds["restore"] = 2
        drawn = replace(drawn, wipe_share=0.0, machine_share=0.0, certificate_never_share=0.0, txn_late_share=0.0)
    if _has(rng, KEYED_SHARE):
        drawn = with_keys(rng, drawn)
        if _has(rng, PARKED_SHARE):
            drawn = replace(drawn, keyed_attempts=rng.choice((1, 2)))
    return replace(drawn, kinds=kinds)


def _changed(drawn: Options) -> Options:
    """What came later, with a source of chance of its own: a world that has nothing of it stays as it was."""
    kinds = dict(drawn.kinds)
    mix = f"{sorted(kinds.items())} {drawn.fault_span_us} {drawn.batches_per_producer} {drawn.wipe_share}"
    rng = random.Random(f"{CHANCE} {mix}")
    if "restore" not in kinds and _has(rng, CHANGES_SHARE):
        kinds["change_mode"] = rng.choice((1, 2))
    has_delays = drawn.keyed_consumers > 0 and not drawn.keyed_attempts and not drawn.dead_letters
    return replace(
        drawn,
        kinds=kinds,
        people_name_keys=drawn.keyed_attempts > 0 and _has(rng, NAMING_SHARE),
        keyed_waits=0.3 if has_delays and _has(rng, WAITS_SHARE) else 0.0,
    )


def crossings(rng: random.Random, options: Options) -> Options:
    """Several features in one world of bare cores."""
    drawn = _any_world(rng, options)
    kinds = dict(drawn.kinds)
    if _has(rng, RETENTION_SHARE):
        kinds["trim"] = rng.choice((3, 6))
    if "operate_group" in kinds and _has(rng, RETENTION_SHARE):
        kinds["late_operation"] = 1
    has_letters = drawn.keyed_consumers > 0 and not drawn.keyed_attempts and _has(rng, LETTERS_SHARE)
    drawn = replace(
        drawn,
        kinds=kinds,
        dead_letters=has_letters,
        partition_count=2 if has_letters else drawn.partition_count,
        mode_consumers=rng.randint(1, 2) if _has(rng, MODES_SHARE) else 0,
        spread_consumers=rng.randint(1, 2) if _has(rng, SPREAD_SHARE) else 0,
        writers=rng.choice((1, 1, 2)) if _has(rng, WRITERS_SHARE) else 0,
        publications=rng.choice((2, 4)),
    )
    return _changed(drawn)


def whole_crossings(rng: random.Random, options: Options) -> Options:
    """Several features in one world of complete brokers."""
    drawn = _any_world(rng, options)
    kinds = dict(drawn.kinds)
    if _has(rng, GROWTH_SHARE):
        kinds["grow_topic"] = 2
    retention_ms = rng.choice((150, 400, 1_000)) if _has(rng, RETENTION_SHARE) else 0
    retain_unread = retention_ms > 0 and _has(rng, 0.3)
    drawn = replace(drawn, kinds=kinds, retention_ms=retention_ms, retain_unread=retain_unread)
    return replace(_changed(drawn), early_consumers=True)


def distances(rng: random.Random, options: Options) -> Options:
    """Each link has a latency of its own, and brokers and clients have the times of production."""
    return replace(
        options,
        far_us_max=200_000,
        kinds={"crash": 2, "complaint": 2, "plan": 2, "consumer_crash": 3, "break": 1, "client_break": 1},
        fault_count=rng.choice((4, 8)),
        fault_span_us=8_000_000,
        batches_per_producer=rng.choice((12, 24)),
        send_gap_us=rng.choice((60_000, 300_000)),
        restart_us_max=1_000_000,
        certificate_never_share=0.0,
        wipe_share=0.0,
        delivery_timeout_ms=60_000,
        keyed_consumers=rng.choice((0, 2)),
        drain_us=60_000_000,
    )
