"""The Lease: one holder, a higher epoch at each take-over, and an end before another operator may act."""

from __future__ import annotations

import pytest
from seriatim_operator.cluster import lease as module
from seriatim_operator.cluster.kube import ConflictError, KubeError
from seriatim_operator.cluster.lease import ANNOTATION_EPOCH, DURATION_S, Leadership, LeaseLostError

from ..memory_kube import MemoryKube


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


def leadership(api: MemoryKube, identity: str) -> Leadership:
    return Leadership(api, "seriatim", "seriatim-operator", identity)  # type: ignore[arg-type]


async def test_whoever_comes_second_waits_until_the_first_is_silent_for_the_whole_duration(clock: Clock) -> None:
    api = MemoryKube()
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
    api = MemoryKube()
    first, second = leadership(api, "a"), leadership(api, "b")
    await first.acquire()
    await second.acquire()
    with pytest.raises(LeaseLostError):
        await first.hold()


async def test_a_holder_whose_api_is_away_ends_before_the_duration_is_over(clock: Clock) -> None:
    api = MemoryKube()
    first = leadership(api, "a")
    await first.acquire()
    began_s = clock.now_s
    api.refuse = lambda _call, _kind: KubeError(0, "Unreachable", "the API does not answer")
    with pytest.raises(LeaseLostError):
        await first.hold()
    assert clock.now_s - began_s < DURATION_S


async def test_a_holder_reads_the_lease_only_after_a_renewal_that_failed(clock: Clock) -> None:
    api = MemoryKube()
    first = leadership(api, "a")
    await first.acquire()
    for _ in range(5):
        await first._renew()
    assert api.calls.count("replace") == 5
    reads = api.calls.count("get")
    api.of("Lease")[0]["metadata"]["resourceVersion"] = "another's"
    with pytest.raises(ConflictError):
        await first._renew()
    assert api.calls.count("get") == reads
    await first._renew()
    await first._renew()
    assert api.calls.count("get") == reads + 1
    api.of("Lease")[0]["spec"]["holderIdentity"] = "b"
    api.of("Lease")[0]["metadata"]["resourceVersion"] = "that of b"
    with pytest.raises(ConflictError):
        await first._renew()
    with pytest.raises(LeaseLostError):
        await first._renew()
    assert not first.is_held


async def test_one_that_is_given_up_is_taken_at_once(clock: Clock) -> None:
    api = MemoryKube()
    first, second = leadership(api, "a"), leadership(api, "b")
    await first.acquire()
    await first.release()
    began_s = clock.now_s
    await second.acquire()
    assert clock.now_s == began_s
    assert second.epoch > first.epoch


async def test_the_epoch_of_a_lease_that_was_deleted_is_not_given_again(clock: Clock) -> None:
    api = MemoryKube()
    first = leadership(api, "a")
    await first.acquire()
    api.objects.clear()
    clock.now_s += 1
    second = leadership(api, "b")
    await second.acquire()
    assert second.epoch > first.epoch


async def test_a_clock_that_was_set_back_does_not_lower_the_epoch(clock: Clock) -> None:
    api = MemoryKube()
    await leadership(api, "a").acquire()
    api.of("Lease")[0]["metadata"]["annotations"][ANNOTATION_EPOCH] = "9000000000"
    second = leadership(api, "b")
    await second.acquire()
    assert second.epoch == 9_000_000_001
