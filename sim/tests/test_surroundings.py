"""The simulation's own parts, driven by small actors: the network, the disk, the records, a judge who must object."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_api.ids import MemberId, PartitionId, RunId
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values.events import CursorRecord, LinkDown, LinkUp, Received
from seriatim_broker.core.values.keyed import SETTINGS_DEFAULT
from seriatim_broker.core.values.log import (
    Batch,
    CursorState,
    DropSegment,
    LocalSegment,
    Preparation,
    PutBatch,
    PutCursor,
    PutPreparation,
    PutSegment,
    PutTailCopy,
    TailCopy,
    Truncate,
)
from seriatim_broker.core.values.messages import Heartbeat, Replicate
from seriatim_broker.core.values.producers import NO_TABLE
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.memory_records import MemoryRecords

from sim.basics.batches import header_of, placed
from sim.basics.distances import Distances
from sim.basics.schedule import Schedule, Violation
from sim.cores.network import Network
from sim.faults import Options
from sim.judge import PERSON, Judge, messages_of

ONE = PartitionId(1)
A, B = MemberId("a-0", "a" * 32), MemberId("b-0", "b" * 32)


class Actor:
    """As much of a process as the network needs."""

    def __init__(self, member: MemberId) -> None:
        self.name = member.broker
        self.member = member
        self.run = 1
        self.alive = True
        self.frozen = False
        self.links: dict[str, Any] = {}
        self.wanted: dict[str, bool] = {}
        self.events: list[Any] = []

    def deliver(self, event: Any) -> None:
        self.events.append(event)

    def received(self, kind: type) -> list[Any]:
        return [e.message for e in self.events if isinstance(e, Received) and isinstance(e.message, kind)]


class Slot:
    """As much of a broker."""

    def __init__(self, actor: Actor | None) -> None:
        self.process = actor
        self.refuses = True


class Net:
    """Two actors on a network."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed)
        self.a, self.b = Actor(A), Actor(B)
        self.slots: Any = {"a-0": Slot(self.a), "b-0": Slot(self.b)}
        self.network = Network(self.schedule, Options(latency_rare_share=0.2), self.slots, Distances(0, Options()))

    def run(self, us: int) -> None:
        assert self.schedule.run_until(self.schedule.now_us + us, 1_000_000)

    def connect(self) -> None:
        self.a.wanted["b-0"] = True
        self.network.dial(self.a, "b-0")  # type: ignore[arg-type]
        self.run(200_000)
        assert [type(e) for e in self.a.events] == [LinkUp]
        assert [type(e) for e in self.b.events] == [LinkUp]

    def send(self, numbers: range) -> None:
        for number in numbers:
            self.network.send(self.a, "b-0", Heartbeat(number))  # type: ignore[arg-type]
            self.network.send(self.a, "b-0", Replicate(ONE, number, b"", 0, ()))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_each_lane_is_first_in_first_out_through_cuts(seed: int) -> None:
    net = Net(seed)
    net.connect()
    net.send(range(10))
    net.run(net.schedule.rng.randint(0, 5_000))
    net.network.cut("a-0", "b-0")
    net.send(range(10, 20))
    net.run(net.schedule.rng.randint(0, 60_000))
    net.network.heal("a-0", "b-0")
    net.send(range(20, 30))
    net.run(300_000)
    assert [m.sent_us for m in net.b.received(Heartbeat)] == list(range(30))
    assert [m.segment_no for m in net.b.received(Replicate)] == list(range(30))


def test_a_cut_path_lets_nothing_through_and_the_other_way_stays_open() -> None:
    net = Net(1)
    net.connect()
    net.network.cut("a-0", "b-0")
    net.send(range(3))
    net.network.send(net.b, "a-0", Heartbeat(7))  # type: ignore[arg-type]
    net.run(500_000)
    assert net.b.received(Heartbeat) == []
    assert net.a.received(Heartbeat) == [Heartbeat(7)]


def test_a_broken_link_comes_back_with_a_larger_session_and_loses_nothing_new() -> None:
    net = Net(2)
    net.connect()
    first = net.a.events[0].session
    assert net.network.break_link("a-0", "b-0")
    net.run(500_000)
    assert [type(e) for e in net.a.events] == [LinkUp, LinkDown, LinkUp]
    assert net.a.events[-1].session > first
    net.send(range(2))
    net.run(200_000)
    assert [m.sent_us for m in net.b.received(Heartbeat)] == [0, 1]
    assert all(e.session == net.b.events[-1].session for e in net.b.events[-2:])


def test_a_connection_to_an_ended_process_is_refused_and_to_an_ended_machine_just_lost() -> None:
    for refuses in (True, False):
        net = Net(3)
        net.slots["b-0"].process = None
        net.slots["b-0"].refuses = refuses
        net.network.dial(net.a, "b-0")  # type: ignore[arg-type]
        net.run(500_000)
        assert (LinkDown("b-0", 0, True) in net.a.events) is refuses


# ---- the disk -------------------------------------------------------------------------------------------


def _batches(count: int, segment: int = 1, producer: bytes = b"p" * 16) -> list[Batch]:
    found: list[Batch] = []
    index = previous = 0
    for number in range(count):
        body = (100 * segment + 2 * number).to_bytes(8, "big")
        header = header_of(1, producer, body, count=2, sequence=2 * number)
        header = placed(header, index, previous, segment=segment)
        found.append(Batch(header, body))
        index, previous = header.end_index, header.checksum
    return found


SEGMENT = LocalSegment(1, b"x", (A, B), True, False)


@pytest.mark.parametrize("kept", range(5))
def test_a_crash_keeps_a_prefix_of_what_was_not_synced(kept: int) -> None:
    disk = MemoryDisk()
    batches = _batches(4)
    synced = disk.submit([PutSegment(ONE, SEGMENT), PutBatch(ONE, batches[0], 0, ())])
    disk.flush(synced)
    for batch in batches[1:]:
        disk.submit([PutBatch(ONE, batch, batch.header.base_index, ())])
    assert disk.read(ONE, 1, 0, 8, 1 << 20) == batches
    disk.crash(kept)
    (found,) = disk.recover()
    survived = min(kept, 3) + 1
    assert found.segments[0].tail == 2 * survived
    assert found.segments[0].tail_checksum == batches[survived - 1].header.checksum
    assert found.segments[0].uncommitted == (batches[survived - 1],)
    assert disk.read(ONE, 1, 0, 8, 1 << 20) == batches[:survived]
    disk.submit([PutBatch(ONE, batch, 0, ()) for batch in batches[survived:]])


def test_a_log_with_a_hole_or_a_broken_chain_is_refused() -> None:
    disk = MemoryDisk()
    first, second, third = _batches(3)
    disk.submit([PutSegment(ONE, SEGMENT), PutBatch(ONE, first, 0, ())])
    with pytest.raises(AssertionError, match="a hole"):
        disk.submit([PutBatch(ONE, third, 0, ())])
    wrong = Batch(second.header._replace(previous_checksum=1), second.body)
    with pytest.raises(AssertionError, match="broken chain"):
        disk.submit([PutBatch(ONE, wrong, 0, ())])


def test_truncating_cuts_batches_and_replaces_the_table() -> None:
    disk = MemoryDisk()
    batches = _batches(3)
    disk.submit([PutSegment(ONE, SEGMENT), *(PutBatch(ONE, batch, 2, ()) for batch in batches)])
    disk.flush(disk.submit([Truncate(ONE, 1, 4, ())]))
    (found,) = disk.recover()
    assert (found.segments[0].tail, found.segments[0].commit, found.segments[0].windows) == (4, 2, ())


def test_reading_goes_on_in_a_tail_copy_where_the_log_ends() -> None:
    disk = MemoryDisk()
    batches = _batches(4)
    tail = TailCopy(1, 4, 8, tuple(batches[2:]))
    preparation = Preparation(2, b"y", (A, B), True, False, NO_TABLE, tail, 1)
    disk.submit([PutSegment(ONE, SEGMENT), *(PutBatch(ONE, batch, 0, ()) for batch in batches[:2])])
    assert disk.read(ONE, 1, 3, 8, 1 << 20) == batches[1:2]
    disk.submit([PutPreparation(ONE, preparation)])
    assert disk.read(ONE, 1, 3, 8, 1 << 20) == batches[1:]
    assert len(disk.read(ONE, 1, 0, 8, 1)) == 1
    other = MemoryDisk()
    other.submit([PutTailCopy(ONE, tail)])
    assert other.read(ONE, 1, 4, 6, 1 << 20) == batches[2:3]


def test_dropping_a_segment_takes_its_cursors_along() -> None:
    disk = MemoryDisk()
    disk.submit([PutSegment(ONE, SEGMENT), PutCursor(ONE, CursorState(1, "g", 1, 0, 0, settings=SETTINGS_DEFAULT))])
    disk.flush(disk.submit([DropSegment(ONE, 1)]))
    (found,) = disk.recover()
    assert (found.segments, found.cursors) == ((), ())


# ---- the records ----------------------------------------------------------------------------------------


def _chain(epoch: int = 1) -> chains.Chain:
    opening = chains.Opening(b"x", "g", (A, B), 1, False)
    chain = chains.create(ONE, "t", 0, True, ("g", "h"), opening, 0)
    for _ in range(epoch - 1):
        chain = chains.open_over(chain, chains.Opening(b"y", "h", (B, A), 1, True), 0)
    return chain


def test_of_two_writers_of_one_revision_one_wins() -> None:
    records = MemoryRecords()
    first = records.write_chain(_chain(), 0, None)
    assert first is not None
    assert records.write_chain(_chain(), 0, None) is None
    assert records.write_chain(_chain(2), first, None) is not None
    assert records.write_chain(_chain(2), first, None) is None
    assert records.chain(ONE)[0] == _chain(2)


def test_a_record_is_only_written_over_the_one_of_the_epoch_before() -> None:
    records = MemoryRecords()
    first = records.write_chain(_chain(), 0, None)
    assert first is not None
    assert records.write_chain(_chain(1), first, None) is None
    assert records.write_chain(_chain(3), first, None) is None
    assert records.write_chain(_chain(2), first, None) is not None


def test_a_write_that_names_a_certificate_needs_it() -> None:
    records = MemoryRecords()
    revision = records.write_chain(_chain(), 0, None)
    assert revision is not None
    assert records.write_chain(_chain(2), revision, RunId(A, 1)) is None
    assert records.write_certificate(RunId(A, 1))
    assert records.write_chain(_chain(2), revision, RunId(A, 1)) is not None


def test_a_cursor_is_compared_on_its_own_key() -> None:
    records = MemoryRecords()
    assert records.write_cursor(ONE, "g", CursorRecord(1, 1, 0, "t"), 0) is None, "there is no such partition"
    records.write_chain(_chain(), 0, None)
    first = records.write_cursor(ONE, "g", CursorRecord(1, 1, 0, "t"), 0)
    assert first is not None
    assert records.write_cursor(ONE, "h", CursorRecord(1, 1, 0, "t"), 0) is not None
    assert records.write_cursor(ONE, "g", CursorRecord(2, 1, 0, "t"), 0) is None
    assert records.write_cursor(ONE, "g", CursorRecord(2, 1, 0, "t"), first) is not None


# ---- the judge ------------------------------------------------------------------------------------------


class Disks:
    """Two brokers' disks and a judge who looks at them."""

    def __init__(self) -> None:
        self.schedule = Schedule(0)
        self.slots: Any = {}
        for member in (A, B):
            slot = Slot(Actor(member))
            slot.member = member  # type: ignore[attr-defined]
            slot.disk = slot.real_disk = MemoryDisk()  # type: ignore[attr-defined]
            slot.suspect = False  # type: ignore[attr-defined]
            self.slots[member.broker] = slot
        self.judge = Judge(self.schedule, self.slots)
        self.batches = _batches(3)
        for batch in self.batches:
            for message in messages_of(batch):
                self.judge.sent(message, ONE, b"p" * 16)

    def write(self, name: str, *writes: Any) -> None:
        slot = self.slots[name]
        self.judge.writes(slot.member.broker, tuple(writes))
        slot.disk.flush(slot.disk.submit(writes))

    def open(self) -> chains.Chain:
        for name in self.slots:
            self.write(name, PutPreparation(ONE, Preparation(1, b"x", (A, B), True, False, NO_TABLE, None, 1)))
            self.write(name, PutSegment(ONE, SEGMENT))
        self.judge.chain_written("a-0", None, _chain(), None)
        return _chain()

    def append(self, *names: str, count: int = 1) -> None:
        for name in names:
            self.write(name, *(PutBatch(ONE, batch, 0, ()) for batch in self.batches[:count]))

    def accept(self, number: int = 0) -> None:
        batch = self.batches[number]
        offset = (1 << 40) + batch.header.base_index
        self.judge.accepted("a-0", ONE, messages_of(batch), offset)

    def seal(self, chain: chains.Chain, length: int) -> None:
        value = self.batches[length // 2 - 1].header.checksum if length else 0
        seal = chains.Seal(length, value, A, (A,), None, (), 0)
        sealed = chains.seal_and_open(chain, seal, chains.Opening(b"z", "h", (B, A), 1, True), 0)
        for name in self.slots:
            self.write(name, PutPreparation(ONE, Preparation(2, b"z", (B, A), True, True, NO_TABLE, None, 1)))
        self.judge.chain_written("a-0", chain, sealed, None)


def test_an_ack_with_one_copy_is_found() -> None:
    disks = Disks()
    disks.open()
    disks.append("a-0")
    with pytest.raises(Violation, match="I12"):
        disks.accept()
    disks.append("b-0")
    disks.accept()


def test_a_seal_below_an_ack_is_found() -> None:
    disks = Disks()
    chain = disks.open()
    disks.append("a-0", "b-0", count=2)
    disks.accept(1)
    with pytest.raises(Violation, match="I6"):
        disks.seal(chain, 2)
    disks.seal(chain, 4)


def test_an_ack_above_the_seal_is_found() -> None:
    disks = Disks()
    chain = disks.open()
    disks.append("a-0", "b-0", count=3)
    disks.seal(chain, 4)
    disks.accept(1)
    with pytest.raises(Violation, match="I6"):
        disks.accept(2)


def test_two_batches_in_one_place_are_found() -> None:
    disks = Disks()
    disks.open()
    disks.append("a-0")
    other = _batches(1, producer=b"q" * 16)[0]
    with pytest.raises(Violation, match="I5"):
        disks.write("b-0", PutBatch(ONE, other, 0, ()))


def test_an_attempt_that_a_member_did_not_prepare_is_found() -> None:
    disks = Disks()
    disks.write("a-0", PutPreparation(ONE, Preparation(1, b"x", (A, B), True, False, NO_TABLE, None, 1)))
    with pytest.raises(Violation, match="COPY"):
        disks.judge.chain_written("a-0", None, _chain(), None)


def test_deliveries_out_of_order_twice_failed_or_too_early_are_found() -> None:
    disks = Disks()
    chain = disks.open()
    disks.append("a-0", "b-0", count=3)
    disks.seal(chain, 4)
    judge = disks.judge
    judge.delivered("g", ONE, 1 << 40, 100, flagged=False)
    judge.delivered("g", ONE, 1 << 40, 100, flagged=True)
    with pytest.raises(Violation, match="I9"):
        judge.delivered("g", ONE, 1 << 40, 100, flagged=False)
    judge.delivered("g", ONE, (1 << 40) + 2, 102, flagged=False)
    with pytest.raises(Violation, match="I2"):
        judge.delivered("g", ONE, (1 << 40) + 1, 101, flagged=False)
    with pytest.raises(Violation, match="I3"):
        judge.delivered("g", ONE, 2 << 40, 103, flagged=False)
    judge.settled([104, 105], "failed", None)
    with pytest.raises(Violation, match="I10"):
        judge.delivered("g", ONE, (1 << 40) + 4, 104, flagged=False)
    with pytest.raises(Violation, match="I8"):
        judge.cursor_written("a-0", ONE, "g", CursorRecord(1, 1, 0, "t"), CursorRecord(2, 1, 0, "t"))
    with pytest.raises(Violation, match="I11"):
        judge.cursor_written("a-0", ONE, "g", CursorRecord(2, 1, 0, "t"), CursorRecord(1, 1, 0, "t"))


def test_what_a_group_acknowledged_counts_when_a_rebuild_brings_its_cursor_back() -> None:
    """The coordinator came back empty, and a broker made the cursor again in a lower epoch before the rebuild."""
    disks = Disks()
    chain = disks.open()
    disks.append("a-0", "b-0", count=3)
    judge = disks.judge
    begun, crossed = CursorRecord(1, 7, 2, "t"), CursorRecord(2, 7, 0, "t")
    judge.cursor_written("a-0", ONE, "g", None, begun)
    for index in (2, 3, 4, 5):
        judge.delivered("g", ONE, (1 << 40) + index, 100 + index, flagged=False)
    disks.seal(chain, 6)
    judge.seen.waits_for_rebuild = True
    anew = CursorRecord(1, 1, 0, "t")
    for is_drained in (False, True):
        if is_drained:
            judge.acknowledged("g", ONE, (1 << 40) + 5, 7)
        judge.cursor_written("a-0", ONE, "g", None, anew)
        judge.delivered("g", ONE, 1 << 40, 100, flagged=True)
        if is_drained:
            judge.cursor_written(PERSON, ONE, "g", anew, crossed)
        else:
            with pytest.raises(Violation, match="I8"):
                judge.cursor_written(PERSON, ONE, "g", anew, crossed)
    assert judge.view("g", ONE).group_epoch == 7


def test_at_the_end_what_is_lost_overtaken_or_failed_and_there_is_found() -> None:
    disks = Disks()
    chain = disks.open()
    disks.append("a-0", "b-0", count=2)
    judge = disks.judge
    judge.final(chain, 4, [])
    with pytest.raises(Violation, match="I2"):
        judge.final(chain, 4, ["g"])
    judge.settled([102, 103], "failed", None)
    with pytest.raises(Violation, match="I10"):
        judge.final(chain, 4, [])
    judge.seen.fates[102].outcome = judge.seen.fates[103].outcome = ""
    judge.settled([104, 105], "ok", 4)
    with pytest.raises(Violation, match="I1"):
        judge.final(chain, 4, [])
    judge.seen.fates[104].outcome = judge.seen.fates[105].outcome = ""
    judge.seen.fates[102].acked_us, judge.seen.fates[100].sent_us = 10, 20
    with pytest.raises(Violation, match="RT"):
        judge.final(chain, 4, [])
