"""Cleanup: what a later certificate says is removed, in bounded passes, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_api.errors import NotServingError
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.effects import ReadCertificate
from seriatim_broker.core.values.events import CertificateRead
from seriatim_broker.interfaces.coordinator import Compare, Delete, Operation, Put, TxnResult
from seriatim_broker.runtime.controller.caretaker import CaretakerSettings
from seriatim_broker.runtime.controller.cleanup import REMOVED_AT_ONCE_MAX, Cleanup
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import member_to_record
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore

from .test_coordination import Desk

KEYS = Keys("c")
A, B = MemberId("g0-0", "a" * 32), MemberId("g0-1", "b" * 32)
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Elected:
    """An election that is won until the test loses it."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self.is_lost = False

    async def txn(self, compares: list[Compare], then: list[Operation]) -> TxnResult:
        if self.is_lost:
            raise NotServingError("this broker is not the controller")
        return await self._coordinator.txn(compares, then)  # type: ignore[no-any-return]


class StoppedClock:
    def monotonic_us(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return NOW_MS


async def certify(coordinator: Any, member: MemberId, run: int, age_ms: int = 2 * HOUR_MS) -> None:
    record = records_pb2.DeathCertificate(member=member_to_record(member), run=run, issued_at_ms=NOW_MS - age_ms)
    await coordinator.txn((), [Put(KEYS.certificate(RunId(member, run)), record.SerializeToString())])


async def certified(coordinator: Any, member: MemberId) -> list[int]:
    listing = await coordinator.list(KEYS.certificates_of(member))
    return sorted(int(item.key.rpartition("/")[2]) for item in listing.items)


def cleanup(coordinator: Any) -> Cleanup:
    return Cleanup(coordinator, KEYS, Elected(coordinator), StoppedClock(), CaretakerSettings())  # type: ignore[arg-type]


async def test_only_the_newest_certificate_of_a_disk_and_young_ones_stay() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    for run in (1, 2, 9, 10, 11):
        await certify(coordinator, A, run, age_ms=HOUR_MS // 2 if run == 9 else 2 * HOUR_MS)
    await certify(coordinator, B, 3)
    assert await cleanup(coordinator).remove_certificates() == 3
    assert await certified(coordinator, A) == [9, 11], "11 is the newest by its number, not by its key"
    assert await certified(coordinator, B) == [3]


async def test_a_pass_removes_a_bounded_number() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    for run in range(1, REMOVED_AT_ONCE_MAX + 20):
        await certify(coordinator, A, run)
    tidy = cleanup(coordinator)
    assert await tidy.remove_certificates() == REMOVED_AT_ONCE_MAX
    assert await tidy.remove_certificates() == 18
    assert await certified(coordinator, A) == [REMOVED_AT_ONCE_MAX + 19]


async def test_nothing_goes_if_the_later_certificate_is_not_there_any_more() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    await certify(coordinator, A, 1)
    await certify(coordinator, A, 2)
    listing = await coordinator.list(KEYS.certificates)

    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(coordinator, name)

        async def list(self, prefix: str) -> Any:
            return listing

    await coordinator.txn((), [Delete(KEYS.certificate(RunId(A, 2)))])
    assert await cleanup(Late()).remove_certificates() == 0
    assert await certified(coordinator, A) == [1]


async def test_who_is_not_elected_any_more_removes_nothing() -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    await certify(coordinator, A, 1)
    await certify(coordinator, A, 2)
    tidy = cleanup(coordinator)
    tidy._election.is_lost = True  # type: ignore[attr-defined]
    with pytest.raises(NotServingError):
        await tidy.remove_certificates()
    assert await certified(coordinator, A) == [1, 2]


@pytest.mark.parametrize(("asked", "found"), [(2, RunId(A, 2)), (3, RunId(A, 12)), (12, RunId(A, 12)), (13, None)])
async def test_the_end_of_a_run_is_proved_by_a_later_certificate_of_its_disk(asked: int, found: RunId | None) -> None:
    coordinator = MemoryCoordinator(MemoryStore())
    for run in (2, 9, 12):
        await certify(coordinator, A, run)
    await certify(coordinator, B, 99)
    desk = Desk(coordinator)
    desk.work.read_certificate(ReadCertificate(PartitionId(7), RunId(A, asked)))
    await desk.until_count(1)
    (answer,) = desk.events
    assert isinstance(answer, CertificateRead)
    assert (answer.member_run, answer.exists) == (found or RunId(A, asked), found is not None)
    await desk.work.close()
