"""Chain writes over a real coordinator: gathered into few transactions, each with its own honest outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim_api.errors import (
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    MessageTooLargeError,
    SeriatimError,
)
from seriatim_api.ids import PartitionId, RunId
from seriatim_api.v1 import records_pb2
from seriatim_broker.adapters.system_clock import SystemClock
from seriatim_broker.core.values.chain import Chain, change_server
from seriatim_broker.core.values.effects import ReadChain, WriteChain, WriteCursor
from seriatim_broker.core.values.events import ChainRead, ChainWritten, CursorRecord, CursorWritten, Event, WriteOutcome
from seriatim_broker.core.values.keyed import RETRY_DEFAULT, ConsumerGroupSettings, ConsumerMode
from seriatim_broker.core.values.owners import OwnerRead, OwnerRecord, ReadOwner
from seriatim_broker.interfaces.coordinator import Compare, Coordinator, Delete, Operation, Put, TxnResult
from seriatim_broker.process.health import AdminPort
from seriatim_broker.runtime.coordinator.chain_layout import ChainArchive
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.coordinator.pages import has_pages, read_all_whole, read_whole
from seriatim_broker.runtime.coordinator.records import (
    chain_to_record,
    cursor_from_value,
    cursor_to_value,
    is_of_epoch,
    join_pages,
    parse_chain,
)
from seriatim_broker.runtime.coordinator.write_refusals import WriteRefusals
from seriatim_broker.runtime.driver.coordinator_requests import CHAINS_PER_TXN, JOINT_IN_FLIGHT_MAX, CoordinatorRequests
from seriatim_broker.runtime.membership.registration import certify_death
from seriatim_broker.testing.memory_coordinator import MemoryCoordinator, MemoryStore
from structlog.testing import capture_logs

from .test_archive import UNKNOWN, B, longer, switched
from .test_planning import CHAIN

KEYS = Keys("c")
DEAD = RunId(CHAIN.segments[0].members[0], 4)


def chain_of(partition: int, epoch: int = 1) -> Chain:
    return replace(CHAIN, partition=PartitionId(partition), epoch=epoch)


class Recording:
    """A coordinator that lets all through and notes the writes; `lose_answers` carries out and then says nothing."""

    def __init__(self, inner: Coordinator) -> None:
        self._inner = inner
        self.writes: list[list[str]] = []
        self.txn_count = 0
        self.lose_answers = False
        self.refuses: SeriatimError | None = None
        self.refused = asyncio.Event()

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], *args: Any, deadline_s: float | None = None
    ) -> TxnResult:
        self.txn_count += 1
        puts = [operation.key for operation in then if isinstance(operation, Put)]
        if puts and self.refuses is not None:
            self.refused.set()
            raise self.refuses
        result = await self._inner.txn(compares, then, *args, deadline_s=deadline_s)
        if puts:
            self.writes.append(puts)
            if self.lose_answers:
                raise CoordinatorUnavailableError("the answer was lost")
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Desk:
    """The work under test, its coordinator, and the answers it gave."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.recording = Recording(coordinator)
        self.events: list[Event] = []
        self._arrived = asyncio.Event()
        self.refusals: list[CoordinatorRefusedError] = []
        self.known_epoch = 0  # of every partition, to the core
        self.work = CoordinatorRequests(
            self.recording,
            KEYS,
            self._take,
            self.refusals.append,
            is_overtaken=lambda _, epoch: epoch <= self.known_epoch,
        )

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._arrived.set()

    async def until_count(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.events) < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def write(self, *effects: WriteChain) -> dict[int, ChainWritten]:
        """The answers by serial."""
        self.events.clear()
        for effect in effects:
            self.work.write_chain(effect)
        await self.until_count(len(effects))
        written = [event for event in self.events if isinstance(event, ChainWritten)]
        assert len(written) == len(effects)
        return {event.serial: event for event in written}

    async def read(self, partition: int) -> ChainRead:
        self.events.clear()
        self.work.read_chain(ReadChain(PartitionId(partition)))
        await self.until_count(1)
        (event,) = self.events
        assert isinstance(event, ChainRead)
        return event


@pytest.fixture
async def desk(coordinator: Coordinator) -> AsyncIterator[Desk]:
    desk = Desk(coordinator)
    yield desk
    await desk.work.close()


def created(partitions: Sequence[int]) -> list[WriteChain]:
    return [WriteChain(PartitionId(number), number, chain_of(number), 0, None) for number in partitions]


async def test_the_writes_of_one_turn_are_few_transactions(desk: Desk) -> None:
    count = CHAINS_PER_TXN * (JOINT_IN_FLIGHT_MAX + 1)
    answers = await desk.write(*created(range(1, count + 1)))
    assert {answer.outcome for answer in answers.values()} == {WriteOutcome.DONE}
    assert len(desk.recording.writes) == JOINT_IN_FLIGHT_MAX + 1
    read = await desk.read(7)
    assert (read.chain, read.revision) == (chain_of(7), answers[7].revision)


@pytest.mark.parametrize("what", ["read", "write"])
async def test_a_bug_in_a_transaction_is_told_to_who_ends_the_process(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Else the core would wait for an answer that never comes."""

    async def fails(*_: object, **_options: object) -> TxnResult:
        raise AssertionError("a rule is broken")

    told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    work = CoordinatorRequests(coordinator, KEYS, lambda _: None, failed=told.set_result)
    monkeypatch.setattr(coordinator, "txn", fails)
    if what == "read":
        work.read_chain(ReadChain(PartitionId(1)))
    else:
        work.write_chain(created(range(1, 2))[0])
    assert isinstance(await asyncio.wait_for(told, 60), AssertionError)
    await work.close()


@pytest.mark.parametrize("failed", [False, True])
async def test_the_record_of_an_owner_is_read_by_the_id_of_its_producer(coordinator: Coordinator, failed: bool) -> None:
    """A record that cannot be read is no record that is missing."""
    producer, desk = b"p" * 16, Desk(coordinator)
    value = records_pb2.OwnerRecord(topic="t", name="loader", epoch=5, owner=b"o", owner_text="host:1")
    await coordinator.txn((), [Put(KEYS.owner(producer), b"\xff" if failed else value.SerializeToString())])
    for number, asked in enumerate((producer, b"q" * 16)):
        desk.work.read_owner(ReadOwner(number, PartitionId(1), asked))
    await desk.until_count(2)
    known = None if failed else OwnerRecord("t", "loader", 5, "host:1")
    assert desk.events == [OwnerRead(0, PartitionId(1), known, failed), OwnerRead(1, PartitionId(1), None)]
    await desk.work.close()


async def test_for_a_write_whose_record_was_seen_to_be_over_nothing_is_sent(desk: Desk) -> None:
    """In an older copy of the coordinator, restored before it arrives, its compare would hold."""
    (made,) = (await desk.write(*created([7]))).values()
    (later,) = (await desk.write(WriteChain(PartitionId(7), 2, chain_of(7, epoch=2), made.revision, None))).values()
    assert later.outcome is WriteOutcome.DONE
    await desk.read(7)
    count = desk.recording.txn_count
    answers = await desk.write(WriteChain(PartitionId(7), 3, chain_of(7, epoch=3), made.revision, None))
    assert answers[3].outcome is WriteOutcome.CONFLICT
    assert desk.recording.txn_count == count, "neither a read nor a write"


async def test_for_a_write_whose_record_another_member_told_nothing_is_sent(desk: Desk) -> None:
    """Rule `out-of-date`: it was reported after the write was made, while the write waited."""
    (made,) = (await desk.write(*created([7]))).values()
    count = desk.recording.txn_count
    desk.known_epoch = 2
    answers = await desk.write(WriteChain(PartitionId(7), 2, chain_of(7, epoch=2), made.revision, None))
    assert answers[2].outcome is WriteOutcome.CONFLICT
    assert desk.recording.txn_count == count
    desk.known_epoch = 1
    answers = await desk.write(WriteChain(PartitionId(7), 3, chain_of(7, epoch=2), made.revision, None))
    assert answers[3].outcome is WriteOutcome.DONE


@pytest.mark.parametrize("there", [1, 3, 4, 0x7F, 0x80, 2**40])
async def test_a_record_of_another_epoch_is_not_written_over_though_its_revision_is_the_known_one(there: int) -> None:
    """Rule `epoch-compare`: a coordinator that was restored as an older copy uses revisions again."""
    store = MemoryStore()
    desk, person = Desk(MemoryCoordinator(store)), MemoryCoordinator(store)
    await desk.write(*created([7]))
    copy = store.copy()
    (known,) = (await desk.write(WriteChain(PartitionId(7), 2, chain_of(7, epoch=2), store.revision, None))).values()
    store.restore(copy)
    key, rebuilt = KEYS.chain(PartitionId(7)), chain_to_record(chain_of(7, epoch=there)).SerializeToString()
    await person.txn((), [Put(key, rebuilt)])
    assert store.items[key].mod_revision == known.revision
    answers = await desk.write(WriteChain(PartitionId(7), 3, chain_of(7, epoch=3), known.revision, None))
    assert answers[3].outcome is WriteOutcome.CONFLICT
    assert store.items[key].value == rebuilt
    read = await desk.read(7)
    assert read.chain == chain_of(7, epoch=there)
    answers = await desk.write(WriteChain(PartitionId(7), 4, chain_of(7, epoch=there + 1), read.revision, None))
    assert answers[4].outcome is WriteOutcome.DONE
    await desk.work.close()


async def test_a_later_record_is_not_the_first_one() -> None:
    """A broker knows epoch 4 from its disk alone, and the coordinator came back empty."""
    store = MemoryStore()
    desk = Desk(MemoryCoordinator(store))
    answers = await desk.write(WriteChain(PartitionId(7), 1, chain_of(7, epoch=5), 0, None))
    assert answers[1].outcome is WriteOutcome.CONFLICT
    assert KEYS.chain(PartitionId(7)) not in store.items
    await desk.work.close()


@pytest.mark.parametrize("count", [1, 3, 300])
@given(epoch=st.integers(1, 2**64 - 1), newer=st.booleans())
def test_the_value_of_a_chain_record_begins_with_its_epoch(count: int, epoch: int, newer: bool) -> None:
    chain = replace(longer(count), epoch=epoch)
    archive = ChainArchive()
    layout = archive.lay_out(chain)
    if newer:
        value = layout.record + UNKNOWN
        archive.parse(value, 1, [page for _, page in layout.pages if page is not None])
        layout = archive.lay_out(chain)
        assert UNKNOWN in layout.record
    greater, less = is_of_epoch("key", chain.partition, epoch)
    assert greater.operand < layout.record < less.operand
    other_greater, other_less = is_of_epoch("key", chain.partition, epoch - 1 or 2)
    assert not other_greater.operand < layout.record < other_less.operand


async def test_writes_after_the_end_of_one_run_are_few_transactions(desk: Desk, coordinator: Coordinator) -> None:
    """They compare the same certificate."""
    await certify_death(coordinator, KEYS, DEAD, "test", "it says so", 1_700_000_000_000)
    numbers = range(1, CHAINS_PER_TXN + 1)
    first = await desk.write(*created(numbers))
    desk.recording.writes.clear()
    await desk.write(*(WriteChain(PartitionId(n), n, chain_of(n, 2), first[n].revision, DEAD) for n in numbers))
    assert [len(keys) for keys in desk.recording.writes] == [CHAINS_PER_TXN]


async def test_one_conflict_fails_nobody_else(desk: Desk, coordinator: Coordinator) -> None:
    first = await desk.write(*created(range(1, 11)))
    writes = [WriteChain(PartitionId(n), n, chain_of(n, 2), first[n].revision, None) for n in range(1, 11)]
    writes[3] = replace(writes[3], certificate=DEAD)  # which does not exist
    writes[7] = replace(writes[7], revision=0)
    second = await desk.write(*writes)
    lost = {n for n, answer in second.items() if answer.outcome is WriteOutcome.CONFLICT}
    assert lost == {4, 8}
    assert all(answer.outcome is WriteOutcome.DONE for n, answer in second.items() if n not in lost)
    assert [(await desk.read(n)).chain for n in (3, 4, 8)] == [chain_of(3, 2), chain_of(4), chain_of(8)]
    await certify_death(coordinator, KEYS, DEAD, "test", "it says so", 1_700_000_000_000)
    third = await desk.write(*(replace(writes[n - 1], revision=first[n].revision, certificate=DEAD) for n in lost))
    assert {answer.outcome for answer in third.values()} == {WriteOutcome.DONE}
    assert len(desk.recording.writes[-1]) == 2


async def test_a_certificate_that_is_missing_fails_its_own_write_only(desk: Desk) -> None:
    writes = created(range(1, 6))
    answers = await desk.write(replace(writes[0], certificate=DEAD), *writes[1:])
    assert [n for n, answer in answers.items() if answer.outcome is WriteOutcome.CONFLICT] == [1]
    assert (await desk.read(1)).chain is None


async def test_a_lost_answer_is_unknown_for_all_and_nothing_is_sent_again(desk: Desk) -> None:
    desk.recording.lose_answers = True
    answers = await desk.write(*created(range(1, 6)))
    assert {(answer.outcome, answer.revision) for answer in answers.values()} == {(WriteOutcome.UNKNOWN, 0)}
    assert len(desk.recording.writes) == 1


async def test_what_the_coordinator_refuses_is_refused_for_all_and_sent_once(desk: Desk) -> None:
    desk.recording.refuses = CoordinatorRefusedError("database space exceeded")
    with capture_logs() as logs:
        answers = await desk.write(*created(range(1, 6)))
    assert {(answer.outcome, answer.revision) for answer in answers.values()} == {(WriteOutcome.REFUSED, 0)}
    assert desk.refusals
    assert not [entry for entry in logs if entry["log_level"] == "error"], "`WriteRefusals` says it, once"


async def test_what_is_refused_for_itself_says_nothing_of_other_writes_and_is_logged_once(desk: Desk) -> None:
    desk.recording.refuses = MessageTooLargeError("request is too large")
    with capture_logs() as logs:
        for _ in range(3):
            answers = await desk.write(*created([1]))
            assert answers[1].outcome is WriteOutcome.REFUSED
    assert not desk.refusals
    assert len([entry for entry in logs if entry["event"] == "coordinator_write_refused"]) == 1


async def test_refusals_are_told_once_and_probed_until_they_end(coordinator: Coordinator) -> None:
    recording = Recording(coordinator)
    ended = asyncio.Event()
    told: list[bool] = []

    def tell(refused: bool) -> None:
        told.append(refused)
        if not refused:
            ended.set()

    refusals = WriteRefusals(recording, KEYS.probe("g0-0"), tell, SystemClock())
    probing = asyncio.ensure_future(refusals.run())
    error = recording.refuses = CoordinatorRefusedError("database space exceeded")
    with capture_logs() as logs:
        for _ in range(5):
            refusals.refused(error)
        assert "space exceeded" in refusals.warning
        async with asyncio.timeout(60):
            await recording.refused.wait()
            recording.refuses = None
            await ended.wait()
    assert [entry["event"] for entry in logs] == ["coordinator_refuses_writes", "coordinator_takes_writes"]
    assert told == [True, False]
    assert not refusals.warning
    probing.cancel()


async def test_two_writes_of_one_partition_never_meet(desk: Desk) -> None:
    one, two = created([1, 2])
    again = replace(one, serial=9, chain=chain_of(1, 5))
    answers = await desk.write(one, again, two)
    assert [answers[serial].outcome for serial in (1, 9, 2)] == [
        WriteOutcome.DONE,
        WriteOutcome.CONFLICT,
        WriteOutcome.DONE,
    ]
    assert desk.recording.writes[0] == [KEYS.chain(PartitionId(1)), KEYS.chain(PartitionId(2))]
    assert (await desk.read(1)).chain == chain_of(1)


async def test_a_long_chain_is_written_and_read_with_its_pages(desk: Desk, coordinator: Coordinator) -> None:
    chain = replace(longer(300), epoch=1)  # as the first record of a partition
    partition = chain.partition
    pages = [KEYS.page(partition, number) for number in (0, 1)]
    first = await desk.write(WriteChain(partition, 1, chain, 0, None), *created([900, 901]))
    assert {answer.outcome for answer in first.values()} == {WriteOutcome.DONE}
    assert [await coordinator.get(page) is not None for page in pages] == [True, False]
    assert (await desk.read(partition)).chain == chain

    peer = Desk(coordinator)  # has never read it: the core learned it from another broker
    changed = replace(change_server(switched(chain, 40), 5, B, ()), epoch=chain.epoch + 1)  # as if in one transition
    second = await peer.write(WriteChain(partition, 2, changed, first[1].revision, None))
    assert second[2].outcome is WriteOutcome.DONE
    assert [await coordinator.get(page) is not None for page in pages] == [True, True]
    read = await peer.read(partition)
    assert (read.chain, read.revision) == (changed, second[2].revision)

    stale = await desk.write(WriteChain(partition, 3, change_server(chain, 6, B, ()), first[1].revision, None))
    assert stale[3].outcome is WriteOutcome.CONFLICT
    assert (await desk.read(partition)).chain == changed

    await coordinator.txn((), [Delete(pages[0])])
    late = Desk(coordinator)
    assert (await late.read(partition)).failed, "a missing page is never a shorter chain"
    await late.work.close()
    assert (await desk.read(partition)).chain == changed, "it holds the page"
    await peer.work.close()


async def test_pages_are_read_at_the_revision_of_their_record(desk: Desk, coordinator: Coordinator) -> None:
    chain = replace(longer(300), epoch=1)  # as the first record of a partition
    partition = chain.partition
    first = await desk.write(WriteChain(partition, 1, chain, 0, None))
    old = await coordinator.get(KEYS.chain(partition))
    assert old is not None
    assert has_pages(old)
    later = replace(change_server(switched(chain, 300), 5, B, ()), epoch=chain.epoch + 1)  # as if in one transition
    second = await desk.write(WriteChain(partition, 2, later, first[1].revision, None))
    whole = await read_whole(coordinator, KEYS, old)
    assert whole is not None
    assert whole.item.mod_revision == second[2].revision
    assert parse_chain(whole.item.value, whole.pages) == later
    joined = join_pages(whole.item.value, whole.pages)
    assert (len(joined.segments), joined.page_count) == (600, 0)
    await coordinator.txn((), [Delete(KEYS.chain(partition))])
    assert await read_all_whole(coordinator, KEYS, [old]) == []


def test_readyz_says_what_needs_a_person() -> None:
    warnings = ""
    port = AdminPort(lambda: b"", lambda: "", lambda: "", None, lambda: warnings)
    assert port._answer(b"GET /readyz HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\nready\n")
    warnings = "the coordinator refuses"
    answer = port._answer(b"GET /readyz HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"ready\nwarning: the coordinator refuses\n")
    warnings = "one\ntwo"
    answer = port._answer(b"GET /readyz HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"ready\nwarning: one\nwarning: two\n")


async def test_a_write_whose_record_was_seen_to_be_over_is_not_sent(desk: Desk, coordinator: Coordinator) -> None:
    """An older copy of the coordinator may be restored while it waits: its compare would hold there."""
    answers = await desk.write(*created([1]))
    first = answers[1].revision
    answers = await desk.write(WriteChain(PartitionId(1), 2, chain_of(1, 2), first, None))
    assert answers[2].outcome is WriteOutcome.DONE
    await desk.read(1)
    sent = len(desk.recording.writes)
    answers = await desk.write(WriteChain(PartitionId(1), 3, chain_of(1, 2), first, None))
    assert answers[3].outcome is WriteOutcome.CONFLICT
    assert len(desk.recording.writes) == sent


async def write_cursor(desk: Desk, effect: WriteCursor) -> CursorWritten:
    desk.events.clear()
    desk.work.write_cursor(effect)
    await desk.until_count(1)
    (event,) = desk.events
    assert isinstance(event, CursorWritten)
    return event


async def test_a_cursor_that_has_the_revision_of_a_lost_one(coordinator: Coordinator) -> None:
    """An older copy of the coordinator was restored, and counts on from a lower revision."""
    desk = Desk(coordinator)
    partition, group = PartitionId(1), "g"
    there = CursorRecord(3, 2, 7, "t")
    puts: list[Operation] = [
        Put(KEYS.chain(partition), b"chain"),
        Put(KEYS.cursor(partition, group), cursor_to_value(there)),
    ]
    revision = (await coordinator.txn((), puts)).revision
    for lost in ((3, 1), (2, 2), (3, 3), (3 << 7, 2)):
        effect = WriteCursor(partition, group, 1, CursorRecord(4, lost[1], 0, "t"), revision, follows=lost)
        assert (await write_cursor(desk, effect)).outcome is WriteOutcome.CONFLICT
    moved = WriteCursor(partition, group, 1, CursorRecord(4, 2, 0, "t"), revision, follows=(3, 2))
    assert (await write_cursor(desk, moved)).outcome is WriteOutcome.DONE
    await desk.work.close()


async def test_a_cursor_of_one_more_partition_has_the_settings_of_its_group(coordinator: Coordinator) -> None:
    """The group was made on one partition only, and a consumer joins it on another one."""
    desk = Desk(coordinator)
    first, second = PartitionId(1), PartitionId(2)
    topic = records_pb2.TopicRecord(name="t", partition_ids=[first, second])
    record = CursorRecord(1, 5, 0, "t")
    policy = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, replace(RETRY_DEFAULT, attempts_max=3))
    puts: list[Operation] = [
        Put(KEYS.topic("t"), topic.SerializeToString()),
        Put(KEYS.cursor(second, "g"), cursor_to_value(record.with_settings(policy))),
        Put(KEYS.cursor(second, "gone"), cursor_to_value(replace(record.with_settings(policy), deleted=True))),
        Put(KEYS.cursor(second, "screens/c1"), cursor_to_value(record.with_settings(policy))),
        Put(KEYS.chain(first), b"chain"),
    ]
    await coordinator.txn((), puts)

    async def written(group: str, *, is_new: bool = True) -> tuple[WriteOutcome, CursorRecord]:
        answer = await write_cursor(desk, WriteCursor(first, group, 1, record, 0, is_new=is_new))
        item = await coordinator.get(KEYS.cursor(first, group))
        assert item is not None
        return answer.outcome, cursor_from_value(item.value)

    outcome, found = await written("g")
    assert (found.settings, found.group_epoch) == (policy, 5)
    assert outcome is WriteOutcome.CONFLICT, "the core reads what was written"
    for group in ("gone", "other", "screens/c1"):
        assert await written(group) == (WriteOutcome.DONE, record)
    await desk.work.close()
