"""How the handlers of workers end, and which findings fail a case."""

from __future__ import annotations

from collections import Counter
from typing import Any

from seriatim.history import MemoryHistory, check_events

from e2e.faults.report import judge
from e2e.faults.schedule import WORKLOADS
from e2e.faults.traffic.keyed_worker import fate_of

NUMBERS = range(5_000)


def test_some_handlers_fail_and_most_work() -> None:
    fates = Counter(fate_of("7", number, 1, is_mended=False) for number in NUMBERS)
    assert set(fates) == {"works", "asks again", "raises", "gives up", "fails always"}
    assert fates["works"] > 0.9 * len(NUMBERS)
    assert fates == Counter(fate_of("7", number, 1, is_mended=False) for number in NUMBERS)
    assert fates != Counter(fate_of("8", number, 1, is_mended=False) for number in NUMBERS)


def test_chance_fails_a_message_once_and_nothing_fails_when_handlers_are_mended() -> None:
    again = Counter(fate_of("7", number, 2, is_mended=False) for number in NUMBERS)
    assert set(again) == {"works", "gives up", "fails always"}
    assert {fate_of("7", number, 1, is_mended=True) for number in NUMBERS} == {"works"}


def test_one_load_has_workers_and_messages_with_keys() -> None:
    assert [load.name for load in WORKLOADS if load.has_workers and load.keys] == ["keys"]


def test_a_broken_promise_to_workers_fails_the_case() -> None:
    history = MemoryHistory("test")
    history.send(1, producer="p", topic="t", partition=0, sequence=0, key=b"k")
    history.outcome(1, "ok", offset="1:0")
    of: dict[str, Any] = {"group": "workers", "consumer": "w", "topic": "t", "partition": 0}
    for token in (5, 6):
        history.deliver(1, offset="1:0", token=token, key=b"k", maybe_repeated=token == 6, **of)
        history.ack_single(offsets=["1:0"], tokens=[token], **of)
    history.confirm(offsets=["1:0"], tokens=[5], **of)
    history.end("workers", topic="t")
    found = judge(check_events(history.events), producer_killed=False)
    assert found["problems"] == ("1 acknowledged_again",)
    assert found["other"] == 1
