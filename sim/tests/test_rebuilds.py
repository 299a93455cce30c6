"""How long the judge waits for copies of the coordinator's records after a rebuild."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sim.basics.schedule import Violation
from sim.whole.rebuilds import Person

MS = 1_000


class Waiting(Person):
    """All has drained at time 0. An older copy comes back at 300 ms, and is rebuilt at 800 ms."""

    def __init__(self, listed_us: int) -> None:
        self.now_us = 0
        self._listed_us = listed_us
        judge = SimpleNamespace(seen=self, fail=self._fail)
        self.states = {"coordinator rebuilt"}
        scene = SimpleNamespace(judge=judge, draining=SimpleNamespace(run_until=self._run_until))
        cluster: Any = SimpleNamespace(scene=scene)
        schedule: Any = self
        self._cluster, self._schedule = cluster, schedule

    @property
    def waits_for_rebuild(self) -> bool:
        return 300 * MS <= self.now_us < 800 * MS

    def _run_until(self, until_us: int) -> None:
        self.now_us = until_us

    def _fail(self, rule: str, what: str) -> None:
        raise Violation(rule, what)

    def _running(self) -> Iterator[tuple[Any, Any]]:
        yield SimpleNamespace(name="g0-0"), None

    def _has_members(self, runtime: Any) -> bool:
        return self.now_us >= self._listed_us


def test_copies_may_wait_for_a_list_that_gets_no_answer() -> None:
    """A list has a deadline of 5 s. It was asked for just before the coordinator went, and is repeated after 0.2 s."""
    person = Waiting(5_500 * MS)
    person.check_copies()
    assert person.now_us == 5_500 * MS


def test_copies_that_are_never_listed_are_found() -> None:
    with pytest.raises(Violation, match="older than the rebuild"):
        Waiting(60_000 * MS).check_copies()
