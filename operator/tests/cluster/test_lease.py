"""The Lease: one holder, a higher epoch at each take-over, and an end before another operator may act."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from seriatim_operator.cluster import lease as module
from seriatim_operator.cluster.kinds import Kind
from seriatim_operator.cluster.kube import ConflictError, KubeError
from seriatim_operator.cluster.lease import ANNOTATION_EPOCH, DURATION_S, Leadership, LeaseLostError


class Api:
    """Leases with versions, and a switch for being away."""

    def __init__(self) -> None:
        self.found: dict[str, Any] | None = None
        self.version = 0
        self.is_away = False

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        self._ask()
        return copy.deepcopy(self.found)

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self._ask()
        if self.found is not None:
            raise ConflictError(409, "AlreadyExists", "it is there")
        return self._keep(manifest)

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self._ask()
        if self.found is None or manifest["metadata"]["resourceVersion"] != self.found["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "it changed")
        return self._keep(manifest)

    def _ask(self) -> None:
        if self.is_away:
            raise KubeError(0, "Unreachable", "the API does not answer")

    def _keep(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.found = copy.deepcopy(manifest)
        self.found["metadata"]["resourceVersion"] = str(self.version)
        return self.found


class Clock:
    """Seconds that pass when a task sleeps; wall and monotonic alike, from different beginnings."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1_790_000_000.0 + self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module.time, "monotonic", found.monotonic)
    monkeypatch.setattr(module.time, "time", found.time)
    monkeypatch.setattr(module.asyncio, "sleep", found.sleep)
    return found


def leadership(api: Api, identity: str) -> Leadership:
    return Leadership(api, "seriatim", "seriatim-operator", identity)  # type: ignore[arg-type]


async def test_whoever_comes_second_waits_until_the_first_is_silent_for_the_whole_duration(clock: Clock) -> None:
    api = Api()
    first, second = leadership(api, "a"), leadership(api, "b")
    await first.acquire()
    assert first.is_held
    began_s = clock.now_s
    await second.acquire()
    assert clock.now_s - began_s >= DURATION_S
    assert second.epoch > first.epoch
    assert not first.is_held, "it has to stop before the other one may begin"
    with pytest.raises(LeaseLostError):
        first.check()


async def test_a_holder_that_sees_another_one_ends(clock: Clock) -> None:
    api = Api()
    first, second = leadership(api, "a"), leadership(api, "b")
    await first.acquire()
    await second.acquire()
    with pytest.raises(LeaseLostError):
        await first.hold()


async def test_a_holder_whose_api_is_away_ends_before_the_duration_is_over(clock: Clock) -> None:
    api = Api()
    first = leadership(api, "a")
    await first.acquire()
    began_s = clock.now_s
    api.is_away = True
    with pytest.raises(LeaseLostError):
        await first.hold()
    assert clock.now_s - began_s < DURATION_S


async def test_one_that_is_given_up_is_taken_at_once(clock: Clock) -> None:
    api = Api()
    first, second = leadership(api, "a"), leadership(api, "b")
    await first.acquire()
    await first.release()
    began_s = clock.now_s
    await second.acquire()
    assert clock.now_s == began_s
    assert second.epoch > first.epoch


async def test_the_epoch_of_a_lease_that_was_deleted_is_not_given_again(clock: Clock) -> None:
    api = Api()
    first = leadership(api, "a")
    await first.acquire()
    api.found = None
    clock.now_s += 1
    second = leadership(api, "b")
    await second.acquire()
    assert second.epoch > first.epoch


async def test_a_clock_that_was_set_back_does_not_lower_the_epoch(clock: Clock) -> None:
    api = Api()
    await leadership(api, "a").acquire()
    assert api.found is not None
    api.found["metadata"]["annotations"][ANNOTATION_EPOCH] = "9000000000"
    second = leadership(api, "b")
    await second.acquire()
    assert second.epoch == 9_000_000_001
