"""What the demo of orders plans: faults, poison and fates follow from the seed alone."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from types import SimpleNamespace

import pyarrow as pa

from e2e.demo_orders.fates import FAILING_ATTEMPTS_MAX, Fate, Poison, fate_of
from e2e.demo_orders.orders import OrdersRun
from e2e.demo_orders.planning import BROKER_KINDS, CONSUMER_KINDS, broker_faults, choose_poison, consumer_faults
from e2e.demo_orders.settings import read_settings


def events(keys: list[bytes]) -> pa.Table:
    return pa.table({"key": keys})


def test_a_block_of_broker_faults_has_all_kinds_and_both_roles() -> None:
    for seed in range(20):
        block = list(islice(broker_faults(seed), 4))
        assert {fault.kind for fault in block} == set(BROKER_KINDS)
        assert Counter(fault.role for fault in block) == {"master": 2, "server": 2}
    assert list(islice(broker_faults(3), 30)) == list(islice(broker_faults(3), 30))
    assert list(islice(broker_faults(3), 30)) != list(islice(broker_faults(4), 30))


def test_consumers_are_killed_and_frozen() -> None:
    for seed in range(20):
        faults = consumer_faults(seed, 3)
        assert {fault.kind for fault in faults} == set(CONSUMER_KINDS)
        assert all(fault.hold_s == 0.0 for fault in faults if fault.kind == "kill consumers")
        assert all(fault.hold_s > 4.0 for fault in faults if fault.kind == "freeze consumers"), "twice the session"
    assert len(consumer_faults(1, 10)) == 10
    assert consumer_faults(1, 0) == []


def test_poison_are_two_busy_aircraft_and_the_first_begins_late_enough() -> None:
    keys = [b"rare", *[b"A", b"B", b"C"] * 100]
    for seed in range(20):
        parked, dead = choose_poison(events(keys), seed)
        assert parked.key != dead.key
        assert keys[parked.first].decode() == parked.key
        assert parked.first >= int(0.12 * len(keys)) or parked.key == "rare"
    assert choose_poison(events(keys), 1) == choose_poison(events(keys), 1)


def test_poison_strikes_from_its_first_event_on_and_is_told_as_plain_data() -> None:
    poison = Poison("N1", 7, "raises")
    assert not poison.strikes(b"N1", 6)
    assert poison.strikes(b"N1", 7)
    assert not poison.strikes(b"N2", 9)
    assert Poison(*json.loads(json.dumps(poison))) == poison


def test_fates_follow_from_seed_event_and_attempt_and_chance_parks_nothing() -> None:
    first = [fate_of(7, number, 1) for number in range(8_000)]
    assert first == [fate_of(7, number, 1) for number in range(8_000)]
    assert first != [fate_of(8, number, 1) for number in range(8_000)]
    kinds = Counter(fate.kind for fate in first)
    assert set(kinds) == {"works", "asks again", "raises", "slow", "hangs"}
    assert 0.95 < kinds["works"] / len(first) < 0.99
    later = [fate_of(7, number, FAILING_ATTEMPTS_MAX + 1) for number in range(8_000)]
    assert {fate.kind for fate in later} == {"works"}
    assert all(isinstance(fate, Fate) and 0 < fate.work_s < 1 for fate in later)
    assert {"slow", "hangs"}.isdisjoint(fate_of(7, number, 2).kind for number in range(8_000))


def test_sixteen_consumers_have_places() -> None:
    settings = read_settings({"QUICK": "1", "SEED": "3"})
    places = settings.places
    assert settings.consumer_count == sum(map(len, places)) == 16
    assert [names[0] for names in places] == ["c01", "c05", "c09", "c13"]
    assert (settings.event_limit, read_settings({"SEED": "3"}).event_limit) == (15_000, 60_000)
    assert read_settings({"PLANT": "acks-early"}).planted == "acks-early"


def test_the_reserve_is_held_back_without_acknowledgements() -> None:
    told: list[dict[str, object]] = []
    run = OrdersRun(read_settings({"QUICK": "1", "SEED": "3"}))
    run.producer = SimpleNamespace(tell=lambda **line: told.append(line))  # type: ignore[assignment]
    run.scene.total = 1_000
    run._crew = SimpleNamespace(guard=lambda: None)  # type: ignore[assignment]
    run.beside()
    line = {"k": "progress", "at": 1.0, "ok": 0, "unknown": 0, "acks": [], "waiting": []}
    for sent, is_sending in ((900, True), (930, False), (940, False)):
        run._producer_says({**line, "sent": sent})
        assert run.is_sending() is is_sending
    assert told == [{"rate": 0}]
