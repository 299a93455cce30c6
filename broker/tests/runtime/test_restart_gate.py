"""The gate before a restart: a yes has seen every chain, another no costs one read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.ids import PartitionId, RunId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.control.restarts import Verdict
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.effects import CopiesTold
from seriatim_broker.core.values.events import AskCopies
from seriatim_broker.core.values.messages import CopyReport, Standing
from seriatim_broker.interfaces.coordinator import Delete, KeyValue, Put
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.records import chain_to_record
from seriatim_broker.runtime.duties.restart_gate import RestartGate
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore
from seriatim_broker.testing.virtual_time import ProcessClock, ProcessLoop, VirtualTime

from .test_planning import CHAIN

KEYS = Keys("c")
PARTITION_COUNT = 40
DEADLINE_S = 1.0
MEMBER = CHAIN.open_segment.members[1]
OPEN_NO = CHAIN.open_segment.no
OLDER = CHAIN.segments[0].members


class CountingCoordinator(MemoryCoordinator):
    """Counts what is read."""

    list_count = 0
    got: list[str]

    async def list(self, *args: Any, **kwargs: Any) -> Any:
        self.list_count += 1
        return await super().list(*args, **kwargs)

    async def get(self, key: str, *, deadline_s: float | None = None) -> KeyValue | None:
        self.got.append(key)
        return await super().get(key, deadline_s=deadline_s)


class Brokers:
    """Driver and directory of a broker whose partners all answer at once."""

    certified: frozenset[RunId] = frozenset()

    def __init__(self) -> None:
        self.standing: dict[int, Standing] = {}
        self.silent: str = ""
        self._replies: dict[int, Callable[[Any], None]] = {}

    def member_run_of(self, broker: str) -> RunId:
        return RunId(next(member for member in (*OLDER, *CHAIN.open_segment.members) if member.broker == broker), 1)

    def is_admitted(self, _member: object) -> bool:
        return True

    def is_live(self, _broker: str) -> bool:
        return True

    def new_request(self, reply: Callable[[Any], None]) -> int:
        self._replies[len(self._replies)] = reply
        return len(self._replies) - 1

    def forget_request(self, _request: int) -> None:
        pass

    def feed(self, event: AskCopies) -> None:
        if event.member.broker == self.silent:
            return
        reports = tuple(
            CopyReport(self.standing.get(partition, Standing.IN_STEP) if no == OPEN_NO else Standing.IN_SYNC, 7, 1)
            for partition, no in event.segments
        )
        self._replies[event.request](CopiesTold(event.request, reports))


def chain_of(partition: PartitionId) -> Chain:
    """The member is in the open segment, and has a copy of the sealed one."""
    holders = (*OLDER, MEMBER)
    sealed = replace(CHAIN.segments[0], members=holders, eligible=holders)
    return replace(CHAIN, partition=partition, segments=(sealed, CHAIN.open_segment))


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    counter = records_pb2.CounterRecord(next=PARTITION_COUNT + 1).SerializeToString()
    store.txn((), [Put(KEYS.partition_counter, counter)], ())
    for number in range(1, PARTITION_COUNT + 1):
        chain = chain_of(PartitionId(number))
        store.txn((), [Put(KEYS.chain(chain.partition), chain_to_record(chain).SerializeToString())], ())
    return store


class Gate:
    """A gate, and what it read since it was asked last."""

    def __init__(self, store: MemoryStore) -> None:
        self.brokers: Any = Brokers()
        self.coordinator = CountingCoordinator(store)
        self._gate = RestartGate(self.coordinator, KEYS, self.brokers, self.brokers)

    def check(self) -> tuple[Verdict, int | None]:
        self.coordinator.list_count, self.coordinator.got = 0, []
        time = VirtualTime()
        process = ProcessLoop(time, ProcessClock(time, 0, 0), "asked")
        checking = process.create_task(self._gate.check(MEMBER.broker, DEADLINE_S))
        assert time.run_until(int(2e6 * DEADLINE_S), 100_000)
        answer = checking.result()
        return answer.verdict, answer.finding.need.partition if answer.finding is not None else None

    @property
    def read_all(self) -> bool:
        return self.coordinator.list_count > 0


def test_while_the_same_partition_stands_against_it_nothing_else_is_read(store: MemoryStore) -> None:
    gate = Gate(store)
    gate.brokers.standing[3] = Standing.OUT_OF_STEP
    assert gate.check() == (Verdict.PEER_AWAY, 3)
    assert gate.read_all
    gate.brokers.standing[9] = Standing.NOWHERE_TO_GO  # worse, and not looked at
    for _ in range(2):
        assert gate.check() == (Verdict.PEER_AWAY, 3)
        assert set(gate.coordinator.got) == {KEYS.chain(PartitionId(3))}
        assert not gate.read_all


def test_once_it_does_not_all_are_read_again_before_the_yes(store: MemoryStore) -> None:
    gate = Gate(store)
    gate.brokers.standing.update({3: Standing.OUT_OF_STEP, 9: Standing.OUT_OF_STEP})
    assert gate.check() == (Verdict.PEER_AWAY, 3)
    del gate.brokers.standing[3]
    assert gate.check() == (Verdict.PEER_AWAY, 9)
    assert gate.read_all
    del gate.brokers.standing[9]
    assert gate.check()[0] is Verdict.SAFE
    assert gate.read_all
    assert gate.check()[0] is Verdict.SAFE
    assert gate.read_all, "a yes rests on what is now"


def test_a_partition_that_is_gone_stands_against_nothing(store: MemoryStore) -> None:
    gate = Gate(store)
    gate.brokers.standing[3] = Standing.OUT_OF_STEP
    assert gate.check() == (Verdict.PEER_AWAY, 3)
    store.txn((), [Delete(KEYS.chain(PartitionId(3)))], ())
    assert gate.check()[0] is Verdict.SAFE


def test_a_silent_member_does_not_take_the_time_of_the_look_at_all(store: MemoryStore) -> None:
    # Found in a review: the second look at what decided waited for the silent one until there was no time left.
    gate = Gate(store)
    gate.brokers.standing[3] = Standing.OUT_OF_STEP
    assert gate.check() == (Verdict.PEER_AWAY, 3)
    del gate.brokers.standing[3]
    gate.brokers.silent = OLDER[0].broker  # another member has the whole of what it has
    assert gate.check()[0] is Verdict.SAFE


def test_that_nobody_says_is_asked_of_all_again(store: MemoryStore) -> None:
    gate = Gate(store)
    gate.brokers.standing[3] = Standing.UNKNOWN
    assert gate.check() == (Verdict.UNKNOWN, 3)
    gate.brokers.standing[9] = Standing.OUT_OF_STEP
    assert gate.check() == (Verdict.PEER_AWAY, 9)
