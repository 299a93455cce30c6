"""A bench for one core: events by hand, effects to look at, a clock that moves only when the test says so.

Nothing here decides anything: the test says what disk, coordinator and other brokers answered. Writes are not durable
before `persist()`, so a test sees which effects the core releases before its disk has the writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

from seriatim_api.batch import BatchHeader, make_header, parse_header
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.peers import right
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.consumers import ConsumerGroupPhase, KeyedServed
from seriatim_broker.core.state.keyed.dispatcher import KeyedDispatcher
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.state.segment_log import SegmentLog
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, Opening, Seal, create, open_over, seal_and_open
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.keyed import SETTINGS_DEFAULT
from seriatim_broker.core.values.log import (
    Batch,
    CursorState,
    LocalSegment,
    Preparation,
    RecoveredPartition,
    RecoveredSegment,
    TailCopy,
)
from seriatim_broker.core.values.producers import NO_TABLE, ProducerTable, Table
from seriatim_broker.core.values.segment import Segment

P = PartitionId(7)
TOPIC = "orders"
PRODUCER = b"p" * 16
OTHER_PRODUCER = b"q" * 16
NONCE = b"n" * 12

M00 = MemberId("g0-0", "a" * 32)
M01 = MemberId("g0-1", "b" * 32)
M10 = MemberId("g1-0", "c" * 32)
M11 = MemberId("g1-1", "d" * 32)
M20 = MemberId("g2-0", "e" * 32)
M21 = MemberId("g2-1", "f" * 32)
GROUPS = (("g0", (M00, M01)), ("g1", (M10, M11)), ("g2", (M20, M21)))
SEND_CHAIN = ("g0", "g1", "g2")
GROUP_OF = {member: name for name, members in GROUPS for member in members}

MS = 1_000
SECOND = 1_000_000
DONE = ev.WriteOutcome.DONE
CONFLICT = ev.WriteOutcome.CONFLICT
UNKNOWN = ev.WriteOutcome.UNKNOWN

_E = TypeVar("_E")
_M = TypeVar("_M")


def checksum(seed: int, data: bytes) -> int:
    """A replacement for CRC-32C that needs no native library."""
    return zlib.crc32(data, seed)


def filled(kind: Callable[..., _E], **given: Any) -> _E:
    """A message or record of that kind: what the test does not speak of is 0."""
    rest = {
        field.name: 0
        for field in fields(kind)  # type: ignore[arg-type]
        if field.name not in given and field.default is MISSING and field.default_factory is MISSING
    }
    return kind(**rest, **given)


def fence_answer(
    no: int,
    switch: bytes,
    length: int | None,
    *,
    fenced: bool = True,
    unbroken: bool = False,
    commit: int = 0,
    value: int = 0,
    tail: tuple[Batch, ...] = (),
    table: Table = NO_TABLE,
    incomplete: bool = False,
    last_append_ms: int = 0,
) -> msg.FenceAnswer:
    """What a fenced member answers."""
    return filled(
        msg.FenceAnswer, partition=P, segment_no=no, switch=switch, fenced=fenced, length=length, checksum=value,
        unbroken=unbroken, commit=commit, last_append_ms=last_append_ms, table=table, incomplete_table=incomplete,
        tail=tail, size_bytes=0 if length is not None else None,
    )  # fmt: skip


def control_record(*fields: Any, **named: Any) -> CursorState:
    """A control record of a consumer group with the default settings."""
    return CursorState(*fields, settings=SETTINGS_DEFAULT, **named)


def attempt(no: int) -> bytes:
    """The id under which segment `no` is opened in these tests."""
    return b"attempt-%08d" % no


def header(
    sequence: int = 0,
    count: int = 1,
    epoch: int = 0,
    producer: bytes = PRODUCER,
    body: bytes = b"body",
    *,
    partition: int = P,
    **more: Any,
) -> BatchHeader:
    """A batch header as a producer sends it. `more` are arguments of `make_header`."""
    raw = make_header(
        partition=partition, message_count=count, producer=producer, producer_epoch=epoch, base_sequence=sequence,
        body_length=len(body), body_crc=zlib.crc32(body), **{"first_timestamp_ms": 0, "last_timestamp_ms": 0, **more},
    )  # fmt: skip
    return parse_header(raw)


# ---- chain records --------------------------------------------------------------------------------------


def opening(no: int, members: tuple[MemberId, ...], master_run: int = 1, incomplete: bool = False) -> Opening:
    """What a switch prepared for segment `no`."""
    return Opening(attempt(no), GROUP_OF[members[0]], members, master_run, incomplete)


def first_chain(members: tuple[MemberId, ...] = (M00, M01), master_run: int = 1, flush: bool = True) -> Chain:
    """A partition with one open segment."""
    return create(P, TOPIC, 0, flush, SEND_CHAIN, opening(1, members, master_run), 0)


def sealed_chain(
    chain: Chain,
    length: int,
    seal_checksum: int,
    members: tuple[MemberId, ...] = (M10, M11),
    *,
    server: MemberId | None = None,
    eligible: tuple[MemberId, ...] | None = None,
    tail_from: int | None = None,
    master_run: int = 1,
    incomplete: bool = False,
    folds: bool = False,
) -> Chain:
    """The record after a switch that sealed the open segment.

    Without `folds`, empty segments stay in it as those with messages do.
    """
    old = chain.open_segment
    server = server if server is not None else old.server
    seal = Seal(
        length,
        seal_checksum,
        server,
        eligible if eligible is not None else old.members,
        tail_from,
        members if tail_from is not None else (),
        0,
    )
    known = vars(chains)["foldable"]
    try:
        vars(chains)["foldable"] = known if folds else lambda *_: ()
        return seal_and_open(chain, seal, opening(old.no + 1, members, master_run, incomplete), 0)
    finally:
        vars(chains)["foldable"] = known


def unsettled_chain(chain: Chain, members: tuple[MemberId, ...] = (M10, M11), master_run: int = 1) -> Chain:
    """The record after a switch that no member answered."""
    return open_over(chain, opening(chain.open_segment.no + 1, members, master_run, True), 0)


# ---- batches and what a disk holds ----------------------------------------------------------------------


def log_of(
    no: int, counts: Iterable[int], *, table: Table = NO_TABLE, producer: bytes = PRODUCER, sequence: int = 0
) -> SegmentLog:
    """A log with these batches of one producer, made by the real code on a bench of its own."""
    log = SegmentLog(P, LocalSegment(no, attempt(no), (M00, M01), True, False), table)
    log.active = log.unbroken = True
    broker = BrokerState(BrokerConfig(), M00, 1, NONCE, checksum)
    for count in counts:
        log.append(broker, header(sequence, count, producer=producer), b"body")
        sequence += count
    return log


def batches_of(no: int, counts: Iterable[int], **options: Any) -> tuple[Batch, ...]:
    """Batches that follow each other in segment `no`."""
    return tuple(log_of(no, counts, **options).uncertain)


def checksum_of(batches: tuple[Batch, ...]) -> int:
    """The chain's value after these batches."""
    return batches[-1].header.checksum if batches else 0


def recovered(
    no: int,
    batches: tuple[Batch, ...],
    *,
    commit: int = 0,
    members: tuple[MemberId, ...] = (M00, M01),
    flush: bool = True,
    opened_member_run: int = 0,
    fenced: bool = False,
    sealed: bool = False,
    incomplete: bool = False,
) -> RecoveredSegment:
    """A segment as a start finds it on the disk."""
    table = ProducerTable()
    for batch in batches:
        table.record(batch.header)
    tail = batches[-1].header.end_index if batches else 0
    record = LocalSegment(
        no,
        attempt(no),
        members,
        flush,
        incomplete,
        opened_member_run,
        fenced or sealed,
        tail if sealed else None,
        checksum_of(batches) if sealed else None,
    )
    uncommitted = tuple(batch for batch in batches if batch.header.base_index >= commit)
    return RecoveredSegment(
        record, tail, checksum_of(batches), commit, () if sealed else uncommitted, tuple(table.windows.items())
    )


def prepared(
    no: int,
    members: tuple[MemberId, ...],
    *,
    run: int = 1,
    table: Table = NO_TABLE,
    tail: TailCopy | None = None,
    voided: bool = False,
    incomplete: bool = False,
    name: bytes | None = None,
) -> Preparation:
    """A preparation as it lies on a disk."""
    return filled(
        Preparation,
        segment_no=no,
        switch_attempt=name or attempt(no),
        members=members,
        flush=True,
        incomplete_table=incomplete,
        table=table,
        tail=tail,
        member_run=run,
        voided=voided,
    )


# ---- the bench ------------------------------------------------------------------------------------------


def check_served(core: BrokerCore) -> None:
    """What is kept of a consumer group while it is served is what the rest of the core has."""
    for partition in core.partitions.values():
        for group in partition.consumer_groups.values():
            served = group.served
            if served is None:
                assert group.phase is not ConsumerGroupPhase.SERVING
                continue
            assert (served.group, served.partition, served.broker) == (group, partition, core.state)
            if group.phase is ConsumerGroupPhase.LOADING:
                assert group.outgoing is not None, "only a handoff without an outcome keeps it"
                continue
            assert served.cursor is group.cursor
            assert isinstance(served, KeyedServed) == served.cursor.mode.is_keyed
            assert (served.log, served.segment) == (
                partition.logs[group.segment_no],
                served.chain.segment(group.segment_no),
            )
            assert served.server_epoch == served.segment.server_epoch


class Bench:
    """One run of one broker, under the hands of a test. `effects` are those since the last `clear()`."""

    forms = msg.FORMS
    """What all brokers read."""

    def __init__(
        self,
        member: MemberId = M00,
        run: int = 1,
        found: tuple[RecoveredPartition, ...] = (),
        *,
        suspect: bool = False,
        suspect_before_run: int = 0,
        config: BrokerConfig | None = None,
        start: bool = True,
    ) -> None:
        self.config = config or BrokerConfig(adopted_bytes_min=0)
        self.member = member
        self.now_us = 10 * SECOND
        self.wall_jump_ms = 0
        self.effects: list[fx.Effect] = []
        self.token = 0
        self.sessions: dict[str, int] = {}
        self.data_counts: dict[str, int] = {}  # what each broker was sent on the data lane of its link
        self.requests = 0
        self.revision = 0
        self.core = BrokerCore(self.config, member, run, NONCE, checksum, found, run if suspect else suspect_before_run)
        if start:
            self._note(self.core.start(self._moment()))
            self.persist()
            self.do(ev.DirectoryChanged(GROUPS, forms=self.forms))

    @property
    def part(self) -> Partition:
        """The partition's state."""
        return self.core.partitions[P]

    @property
    def wall_ms(self) -> int:
        """The broker's wall clock."""
        return 1_700_000_000_000 + self.now_us // 1000 + self.wall_jump_ms

    def _moment(self) -> ev.Moment:
        return ev.Moment(self.now_us, self.wall_ms)

    def _note(self, effects: list[fx.Effect]) -> list[fx.Effect]:
        for effect in effects:
            if isinstance(effect, fx.Persist):
                self.token = effect.token
            if isinstance(effect, fx.Send) and isinstance(effect.message, msg.DATA):
                self.data_counts[effect.broker] = self.data_counts.get(effect.broker, 0) + 1
        self.effects.extend(effects)
        return effects

    # ---- what happens ----

    def do(self, event: ev.Event) -> list[fx.Effect]:
        """One step; returns its effects, which are noted too."""
        effects = self._note(self.core.step(event, self._moment()))
        self.check()
        return effects

    def check(self) -> None:
        """What holds after each step."""
        check_served(self.core)

    def persist(self) -> list[fx.Effect]:
        """All that was written so far is durable."""
        return self.do(ev.Persisted(self.token))

    def clear(self) -> None:
        """Forget the effects seen so far."""
        self.effects.clear()

    def wait(self, us: int, beating: tuple[MemberId, ...] = ()) -> list[fx.Effect]:
        """Let time pass, timer after timer; the `beating` members answer each heartbeat at once."""
        until = self.now_us + us
        seen: list[fx.Effect] = []
        steps = 0
        while True:
            due = self.core.next_wake_us()
            self.now_us = until if due is None else max(self.now_us, min(due, until))
            effects = self.do(ev.Tick())
            seen += effects
            for effect in effects:
                if isinstance(effect, fx.Send) and isinstance(effect.message, msg.Heartbeat):
                    for member in beating:
                        if member.broker == effect.broker:
                            seen += self.answer(member, effect.message)
            steps += 1
            assert steps < 20_000, "timers multiply"
            if self.now_us >= until and (self.core.next_wake_us() or until + 1) > until:
                return seen

    def link(self, member: MemberId, run: int = 1) -> list[fx.Effect]:
        """A connection to that member comes up."""
        self.sessions[member.broker] = self.sessions.get(member.broker, 0) + 1
        self.data_counts[member.broker] = 0
        return self.do(ev.LinkUp(member.broker, member, run, self.sessions[member.broker], self.forms))

    def unlink(self, member: MemberId, refused: bool = False) -> list[fx.Effect]:
        """The connection breaks."""
        return self.do(ev.LinkDown(member.broker, self.sessions.get(member.broker, 0), refused))

    def hear(self, member: MemberId, message: msg.Message) -> list[fx.Effect]:
        """A message from that member, on the present connection."""
        return self.do(ev.Received(member.broker, self.sessions[member.broker], message))

    def answer(self, member: MemberId, beat: msg.Heartbeat) -> list[fx.Effect]:
        """That member answers a heartbeat; all that it was sent has arrived."""
        count = self.data_counts.get(member.broker, 0)
        return self.hear(member, msg.HeartbeatAnswer(beat.sent_us, (), data_count=count))

    def read_chain(self, chain: Chain | None, failed: bool = False) -> list[fx.Effect]:
        """The coordinator answers a read of the chain."""
        if chain is not None:
            self.revision = max(self.revision, 100 + chain.epoch)
        return self.do(ev.ChainRead(P, chain, self.revision, failed))

    def written(self, outcome: ev.WriteOutcome = DONE) -> list[fx.Effect]:
        """The coordinator answers the last write of the chain."""
        write = self.all(fx.WriteChain)[-1]
        if outcome is DONE:
            self.revision = 100 + write.chain.epoch
        return self.do(ev.ChainWritten(P, write.serial, outcome, self.revision))

    def append(
        self,
        sequence: int,
        count: int = 1,
        *,
        run: int = 1,
        starts: bool = False,
        epoch: int = 0,
        producer: bytes = PRODUCER,
        level: int = ev.AckLevel.REPLICATED_FLUSHED,
        refuse: Any = None,
        refuse_new: Any = None,
    ) -> int:
        """A batch from a producer; returns the request's number."""
        self.requests += 1
        sent = header(sequence, count, epoch, producer)
        self.do(ev.Append(self.requests, P, sent, b"body", run, starts, level, refuse, refuse_new=refuse_new))
        return self.requests

    def refusal(self, sequence: int, count: int = 1, **options: Any) -> Any:
        """The error with which a batch is refused at once, or None."""
        request = self.append(sequence, count, **options)
        return self.refused().get(request)

    # ---- what was done ----

    def all(self, kind: type[_E]) -> list[_E]:
        """The noted effects of a kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind: type[_M], to: MemberId | None = None) -> list[_M]:
        """The noted messages of a kind, to one member or to all."""
        return [
            cast(_M, effect.message)
            for effect in self.all(fx.Send)
            if isinstance(effect.message, kind) and (to is None or effect.broker == to.broker)
        ]

    def writes(self, kind: type[_E]) -> list[_E]:
        """The noted writes of a kind."""
        return [write for effect in self.all(fx.Persist) for write in effect.writes if isinstance(write, kind)]

    def accepted(self) -> dict[int, int]:
        """Request -> offset of the appends that were answered `ok`."""
        return {effect.request: effect.offset for effect in self.all(fx.AppendAccepted)}

    def refused(self) -> dict[int, Any]:
        """Request -> error of the appends that were refused."""
        return {effect.request: effect.error for effect in self.all(fx.AppendRefused)}

    def delivered(self, kind: type[_E]) -> list[_E]:
        """The noted delivery events of a kind."""
        return [cast(_E, effect.event) for effect in self.all(fx.Deliver) if isinstance(effect.event, kind)]

    # ---- common beginnings ----

    def prepare(
        self,
        no: int,
        members: tuple[MemberId, ...],
        sender: MemberId,
        *,
        name: bytes | None = None,
        flush: bool = True,
        incomplete: bool = False,
        table: Table = NO_TABLE,
        tail: TailCopy | None = None,
    ) -> None:
        """A switcher asks this member to prepare a segment."""
        request = filled(
            msg.PrepareRequest,
            partition=P,
            segment_no=no,
            switch_attempt=name or attempt(no),
            members=members,
            flush=flush,
            incomplete_table=incomplete,
            table=table,
            tail=tail,
        )
        self.hear(sender, request)

    def open(self, chain: Chain, **options: Any) -> None:
        """This member was prepared for the open segment of `chain`, durably, and learns of it."""
        segment = chain.open_segment
        if M21.broker not in self.sessions:
            self.link(M21)
        self.prepare(
            segment.no, segment.members, M21, flush=chain.flush, incomplete=segment.incomplete_table, **options
        )
        self.persist()
        self.hear(M21, msg.ChainUpdate(chain, 100 + chain.epoch))
        self.revision = max(self.revision, 100 + chain.epoch)
        self.persist()

    def follow(self, member: MemberId, no: int = 1, tail: int = 0, tail_checksum: int = 0) -> None:
        """A follower is linked and in step with this master."""
        self.link(member)
        self.hear(member, msg.TailAnswer(P, no, attempt(no), tail, tail_checksum, tail))

    def ack(self, member: MemberId, tail: int, no: int = 1, durable: int | None = None) -> list[fx.Effect]:
        """A follower has the log up to `tail`."""
        return self.hear(member, msg.ReplicateAck(P, no, attempt(no), tail, tail if durable is None else durable))

    def may_deliver(self) -> bool:
        """Whether this member may deliver segment 1 at this moment."""
        assert self.part.chain is not None
        return right.has_right(self.core.state, self.part, segment_of(self.part.chain, 1), seeks=False)


def segment_of(chain: Chain, no: int) -> Segment:
    """A segment that is there."""
    segment = chain.segment(no)
    assert segment is not None
    return segment


def opened_master(**options: Any) -> Bench:
    """The master of open segment 1, its follower in step, nothing appended yet; effects cleared."""
    flush = options.pop("flush", True)
    bench = Bench(**options)
    bench.open(first_chain(flush=flush))
    bench.follow(M01)
    bench.clear()
    return bench


def opened_slave(**options: Any) -> Bench:
    """The follower of open segment 1, linked to its master; effects cleared."""
    flush = options.pop("flush", True)
    bench = Bench(M01, **options)
    bench.open(first_chain(flush=flush))
    bench.link(M00)
    bench.clear()
    return bench


def replicate(bench: Bench, batches: tuple[Batch, ...], commit: int = 0, no: int = 1) -> list[fx.Effect]:
    """The master sends batches to this follower."""
    return bench.hear(M00, msg.Replicate(P, no, attempt(no), commit, batches))


# ---- a sealed segment and its readers -------------------------------------------------------------------

GROUP = "readers"
STREAM = 1


class Serving(Bench):
    """A member that holds all of segment 1, which is sealed; it may be its server."""

    def __init__(
        self,
        member: MemberId = M00,
        *,
        counts: Iterable[int] = (1, 1, 1, 1, 1),
        server: MemberId = M00,
        eligible: tuple[MemberId, ...] = (M00, M01),
        learn: bool = True,
        run: int = 1,
        cursors: tuple[CursorState, ...] = (),
        config: BrokerConfig | None = None,
    ) -> None:
        self.batches = batches_of(1, counts)
        self.length = self.batches[-1].header.end_index if self.batches else 0
        found = recovered(1, self.batches, commit=self.length, sealed=True)
        super().__init__(member, run, (RecoveredPartition(P, (found,), (), (), cursors),), config=config)
        self.chain = sealed_chain(
            first_chain(), self.length, checksum_of(self.batches), server=server, eligible=eligible
        )
        self.answered: set[int] = set()
        if learn:
            self.read_chain(self.chain)

    def join(self, subscription: int = 1, name: str = "", stream: int = STREAM, was_active: bool = False) -> None:
        """A consumer asks for the partition."""
        earliest = ev.StartPosition.EARLIEST
        name = name or f"consumer-{subscription}"
        self.do(ev.ConsumerJoin(stream, subscription, P, GROUP, name, earliest, was_active))

    def cursor(self, no: int = 1, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        """The coordinator says where the group is."""
        self.do(ev.CursorRead(P, GROUP, ev.CursorRecord(no, epoch, start, TOPIC), revision))

    def begin(self, other: MemberId = M01, credit: int = 1 << 20) -> None:
        """One consumer joins, the right is taken again for this run, the other member answers; nothing is read yet."""
        self.begin_unconfirmed(other, credit)
        self.persist()
        self.confirm_replications()

    def begin_unconfirmed(self, other: MemberId = M01, credit: int = 1 << 20) -> None:
        """The same, and no member has the first control record yet."""
        if other in self.chain.segments[0].eligible:
            self.link(other)
        self.join()
        self.do(ev.ConsumerCredit(STREAM, credit))
        self.read_chain(self.chain)
        self.cursor()
        self.written()
        self.persist()
        self.wait(self.config.serve_lease_us + self.config.serve_margin_us + 100 * MS, (other,))
        self.cursor()

    def serve(self) -> None:
        """One consumer joins, and is given all that it may have."""
        self.begin()
        self.deliver()

    def look_up(self) -> None:
        """The coordinator says what the chain is and where the group is."""
        self.read_chain(self.chain)
        self.cursor()

    def persist_everywhere(self) -> None:
        """This disk and the other member's have all that they were given."""
        self.persist()
        self.confirm_replications()

    @property
    def keyed(self) -> KeyedDispatcher:
        """What the server of a group by key knows."""
        found = self.part.consumer_groups[GROUP].keyed
        assert found is not None
        return found

    def reads(self) -> None:
        """The disk answers what it was asked."""
        for read in self.all(fx.ReadLog):
            if read.serial not in self.answered:
                self.answered.add(read.serial)
                found = [
                    batch
                    for batch in self.batches
                    if batch.header.end_index > read.from_index and batch.header.base_index < read.until_index
                ]
                self.do(ev.LogRead(read.serial, tuple(found)))

    def confirm_replications(self, member: MemberId = M01) -> None:
        """The other member has all control records that were sent to it on its disk."""
        for replication in self.sent(msg.ReplicateCursors, member):
            if replication.serial not in self.answered:
                self.answered.add(replication.serial)
                self.hear(
                    member,
                    msg.CursorsReplicated(P, replication.segment_no, replication.server_epoch, replication.serial),
                )

    def deliver(self) -> None:
        """All that may be delivered is."""
        for _ in range(3):
            self.reads()
            self.persist()
            self.confirm_replications()
            self.wait(self.config.heartbeat_us, (M01,))

    def ack(self, index: int, token: int | None = None, subscription: int = 1) -> None:  # type: ignore[override]
        """The consumer is done with all up to and including `index`."""
        if token is None:
            token = self.token_of()
        self.do(ev.ConsumerAck(STREAM, subscription, token, make_offset(1, index)))

    def token_of(self) -> int:
        """The token of the newest grant."""
        return [joined.token for joined in self.delivered(fx.Joined) if joined.active][-1]

    def indexes(self) -> list[int]:
        """What was delivered, index by index."""
        found: list[int] = []
        for event in self.delivered(fx.Batches):
            end = event.batches[-1].header.end_index
            found.extend(range(event.from_index, end))
        return found
