"""Calls about delayed messages: the way to the server of a segment, and pages that are merged from several servers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from seriatim_api import errors
from seriatim_api.delayed import CancelOutcome, fire_producer
from seriatim_api.ids import INDEX_MAX, OFFSET_MAX, MemberId, PartitionId, make_offset
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import delayed_pb2, records_pb2
from seriatim_broker.core.values import delayed_messages as dm
from seriatim_broker.core.values.delayed import Amount, Span
from seriatim_broker.core.values.delayed_messages import CancelDelayed, FilterDelayed, ListComplete, ListFiring
from seriatim_broker.core.values.log import DueRow, StoredVolley
from seriatim_broker.core.values.segment import Segment, SegmentState
from seriatim_broker.counters.broker import Counters
from seriatim_broker.rpc.calls.outbound import FORWARDED_KEY
from seriatim_broker.rpc.distributed import fired_reads
from seriatim_broker.rpc.distributed.fired_reads import FiredReads
from seriatim_broker.rpc.distributed.pending import PendingCalls
from seriatim_broker.rpc.servicers import delayed
from seriatim_broker.rpc.servicers.delayed import DelayedServicer
from seriatim_broker.runtime.coordinator.topic_limits import TopicLimits

OWN = "g0-0"
AT = make_offset(1, 5)
CANCELLED = delayed_pb2.CANCEL_RESULT_CANCELLED
OPEN, SEALED, UNSETTLED, LOST = SegmentState.OPEN, SegmentState.SEALED, SegmentState.UNSETTLED, SegmentState.LOST


class RefusedError(Exception):
    """The call was refused."""


class Context:
    """A call, which another broker passed on or not."""

    def __init__(self, *, is_forwarded: bool = False, left_s: float = 2.0) -> None:
        self._metadata = ((FORWARDED_KEY, "g9-9"),) if is_forwarded else ()
        self._left_s = left_s

    def time_remaining(self) -> float:
        return self._left_s

    def invocation_metadata(self) -> tuple[Any, ...]:
        return self._metadata

    async def abort(self, _code: object, details: str, _metadata: Any = ()) -> NoReturn:
        raise RefusedError(details)


class Cluster:
    """This broker, and others. Cores and coordinator answer what a test gives them."""

    def __init__(self) -> None:
        self.identity = SimpleNamespace(member=MemberId(OWN, "a" * 32))
        self.topic_limits = TopicLimits(1 << 20)
        self.topic_limits.is_current = lambda: True
        ready = records_pb2.TopicRecord(state=records_pb2.TOPIC_STATE_READY, partition_ids=(7,))
        self.topic_limits.change("t", ready)
        self.topics_read: list[str] = []
        self.segments: list[Any] = []
        self.cancels: list[Any] = []  # what the core answers: outcome, error, server, offset
        self.answers: list[Any] = []  # of other brokers
        self.called: list[tuple[str, Any]] = []
        self.rows: dict[int, list[DueRow]] = {}  # by segment
        self.gone: set[DueRow] = set()
        self.begins: dict[int, tuple[int, int]] = {}
        self.unserved: set[int] = set()
        self.first_pending: list[Any] = []  # what the core answers to retention: first index, error
        self.read_count = 0
        self.storage = self
        self.pending: dict[tuple[int, int], Amount] = {(7, 2): Amount(5, 500)}
        self.counters = Counters()
        addresses = SimpleNamespace(of=lambda broker: f"{broker}:1")
        self.fired_reads = FiredReads(cast(Any, self), cast(Any, self))
        self.servicer = DelayedServicer(cast(Any, self), cast(Any, self), cast(Any, addresses), self.pending.get)
        self.epoch = 5
        self.volleys: dict[int, list[StoredVolley]] = {}  # by segment
        self.lengths: dict[int, int] = {}

    async def topic(self, name: str) -> records_pb2.TopicRecord:
        self.topics_read.append(name)
        if name not in ("t", "new"):
            raise errors.UnknownTopicError("there is no such topic")
        return records_pb2.TopicRecord(partition_ids=(7,))

    async def chains(self, partitions: Any) -> list[Any]:
        assert list(partitions) == [7]
        by_no = {segment.no: segment for segment in self.segments}
        found = SimpleNamespace(
            segments=self.segments,
            segment=by_no.get,
            open_segment=(self.segments or [None])[-1],
            epoch=self.epoch,
            partition=7,
        )
        return [found] if self.segments else []

    async def ask_core(self, event_of: Any, deadline_s: float) -> Any:
        assert deadline_s > 0
        event = event_of(1)
        assert event.partition == 7
        if isinstance(event, CancelDelayed):
            outcome, error, *more = self.cancels.pop(0)
            self.called.append((OWN, event.offset))
            return dm.DelayedCancelled(1, outcome, error, *more)
        if isinstance(event, ListFiring):
            served = [no for no in event.segments if no in self.rows and no not in self.unserved]
            unserved = tuple(no for no in event.segments if no in self.unserved)
            return dm.FiringListed(1, tuple((no, self.begins.get(no, (0, 0))) for no in served), unserved, len(served))
        if isinstance(event, dm.AskPending):
            first, error = self.first_pending.pop(0)
            return dm.PendingFound(1, first, error)
        if isinstance(event, ListComplete):
            return dm.CompleteListed(1, tuple((no, self.lengths[no]) for no in event.segments if no in self.lengths))
        assert isinstance(event, FilterDelayed)
        return dm.DelayedFiltered(1, tuple(row for row in event.rows if row not in self.gone), None)

    async def read_due(self, _partition: int, no: int, after: Any, until_ms: int, count: int) -> list[DueRow]:
        rows = [row for row in sorted(self.rows[no]) if row[:2] > after and row.due_ms <= until_ms][:count]
        self.read_count += len(rows)
        return rows

    async def read_volleys(self, _partition: int, no: int, from_index: int, count: int) -> list[StoredVolley]:
        return [one for one in self.volleys.get(no, ()) if one.index >= from_index][:count]

    async def delayed(self, broker: str, _method: str, request: Any, deadline_s: float) -> Any:
        assert deadline_s > 0
        if _method == "CountDelayed":
            return await self.servicer.CountDelayed(request, Context(is_forwarded=True))
        if _method == "ListFired" and request.HasField("moved_origin"):
            return await self.servicer.ListFired(request, Context(is_forwarded=True))
        if _method == "FirstPending":
            self.called.append((broker, (request.partition_id, request.segment)))
        elif _method != "ListFired":
            self.called.append((broker, [*request.offsets] if _method == "CancelDelayed" else [*request.segments]))
        answer = self.answers.pop(0)
        if isinstance(answer, errors.SeriatimError):
            raise answer
        return answer

    async def cancel(self, context: Context | None = None, **more: Any) -> delayed_pb2.CancelDelayedResponse:
        wanted = {"topic": "t", "partition": 0, "offsets": [AT]} | more
        return await self.servicer.CancelDelayed(delayed_pb2.CancelDelayedRequest(**wanted), context or Context())

    async def result(self, offset: int = AT) -> int:
        """What became of one message."""
        return (await self.cancel(offsets=[offset])).messages[0].result

    async def list(self, context: Context | None = None, **more: Any) -> delayed_pb2.ListDelayedResponse:
        request = delayed_pb2.ListDelayedRequest(**({"topic": "t", "partition": 0} | more))
        return await self.servicer.ListDelayed(request, context or Context())

    async def pages(self, limit: int, **more: Any) -> list[tuple[int, int]]:
        """All that is listed, page by page."""
        found: list[tuple[int, int]] = []
        after: Any = None
        while True:
            page = await self.list(limit=limit, after=after, **more)
            assert len(page.rows) <= limit
            found += [(row.due_ms, row.offset) for row in page.rows]
            if not page.HasField("next"):
                return found
            after = page.next


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def segment_at(no: int, broker: str, state: SegmentState = SEALED) -> Segment:
    member = MemberId(broker, "a" * 32)
    return Segment(no, b"a" * 16, "g", (member,), 1, state, 0, member, 1, (member,), 5)


def elsewhere(server: str = "g1-0") -> tuple[Any, ...]:
    return None, errors.GroupHeadElsewhereError("elsewhere"), server


def told(**what: Any) -> delayed_pb2.CancelDelayedResponse:
    """What another broker answers about one message."""
    return delayed_pb2.CancelDelayedResponse(messages=[delayed_pb2.CancelledMessage(**what)])


# ---- cancel ---------------------------------------------------------------------------------------------


async def test_the_own_core_answers_without_a_read_of_the_coordinator(cluster: Cluster) -> None:
    cluster.cancels = [(outcome, None) for outcome in CancelOutcome]
    answer = await cluster.cancel(offsets=[AT, AT + 1, AT + 2])
    assert [message.result for message in answer.messages] == [1, 2, 3]
    assert answer.server_address == "g0-0:1"
    assert cluster.topics_read == []
    assert cluster.counters.delayed_cancelled == 1


async def test_a_cancellation_is_passed_on_to_the_server_that_the_core_names(cluster: Cluster) -> None:
    cluster.cancels = [elsewhere()]
    cluster.answers = [told(result=CANCELLED)]
    answer = await cluster.cancel()
    assert (answer.messages[0].result, answer.server_address) == (CANCELLED, "g1-0:1")
    assert cluster.called == [(OWN, AT), ("g1-0", [AT])]
    assert not cluster.counters.delayed_cancelled, "the server counts it"


async def test_the_coordinator_names_the_server_if_the_core_does_not_know_the_segment(cluster: Cluster) -> None:
    cluster.segments = [segment_at(1, "g2-0")]
    cluster.cancels = [(None, errors.NotServingError("not known"))]
    cluster.answers = [told(result=CANCELLED)]
    assert await cluster.result() == CANCELLED
    assert cluster.called[1:] == [("g2-0", [AT])]


async def test_a_cancellation_is_tried_again_until_a_server_answers(cluster: Cluster) -> None:
    cluster.segments = [segment_at(1, OWN)]
    cluster.cancels = [
        (None, errors.NotServingError("not settled", retry_after_ms=1)), elsewhere(), elsewhere(),
        (CancelOutcome.TOO_LATE, None),
    ]  # fmt: skip
    refusal = error_to_proto(errors.GroupHeadElsewhereError("not here"))
    cluster.answers = [errors.UnavailableError("dead"), told(error=refusal)]
    assert await cluster.result() == delayed_pb2.CANCEL_RESULT_TOO_LATE
    cluster.cancels = [(None, errors.NotServingError("not settled", retry_after_ms=30))] * 9
    answer = await cluster.cancel(Context(left_s=0.05))
    assert answer.messages[0].error.message == "not settled"


async def test_a_message_of_a_segment_that_is_gone_or_lost_is_not_found(cluster: Cluster) -> None:
    cluster.segments = [segment_at(2, "g2-0", LOST), segment_at(3, "g2-0", OPEN)]
    cluster.lengths = {3: 100}
    unknown = (None, errors.NotServingError("not known", retry_after_ms=30))
    for no in (1, 2):
        cluster.cancels = [unknown]
        assert await cluster.result(make_offset(no, 5)) == delayed_pb2.CANCEL_RESULT_NOT_FOUND
    cluster.cancels = [unknown] * 9
    answer = await cluster.cancel(Context(left_s=0.05), offsets=[make_offset(4, 5)])
    assert answer.messages[0].error.message == "not known"


@pytest.mark.parametrize("last", [CancelOutcome.CANCELLED, CancelOutcome.TOO_LATE])
@pytest.mark.parametrize("is_dropped", [False, True])
async def test_a_message_that_was_moved_is_cancelled_in_its_last_place(
    cluster: Cluster, last: CancelOutcome, is_dropped: bool
) -> None:
    origin, end = make_offset(1, 2), make_offset(3, 8)
    moved = {"is_moved": True, "origins": (Span(make_offset(1, 1), 4),)}
    cluster.segments = [segment_at(2, "g2-0", SEALED), segment_at(3, "g2-0", OPEN)]
    cluster.lengths = {2: 100, 3: 100}
    cluster.volleys = {
        2: [*fired_of(1, (4, 2, 2, 1)), StoredVolley(50, fire_producer(7, 1), 2, **moved)],
        3: [StoredVolley(7, fire_producer(7, 2), 1, **moved)],
    }
    if is_dropped:
        del cluster.volleys[2]
    cluster.cancels = [(CancelOutcome.NOT_FOUND, None, "", 0, True), (last, None)]
    wanted = {CancelOutcome.CANCELLED: CANCELLED, CancelOutcome.TOO_LATE: delayed_pb2.CANCEL_RESULT_TOO_LATE}
    assert await cluster.result(origin) == wanted[last]
    assert [offset for _, offset in cluster.called] == [origin, end]


async def test_a_message_that_was_stored_earlier_is_cancelled_there(cluster: Cluster) -> None:
    earlier = make_offset(1, 2)
    stored = (None, errors.OutcomeUnknownError("earlier"), "", earlier)
    cluster.cancels = [stored, (CancelOutcome.CANCELLED, None)]
    assert await cluster.result(make_offset(2, 9)) == CANCELLED
    assert [offset for _, offset in cluster.called] == [make_offset(2, 9), earlier]
    cluster.cancels = [stored, (CancelOutcome.NOT_FOUND, None)]
    assert await cluster.result(make_offset(2, 9)) == delayed_pb2.CANCEL_RESULT_TOO_LATE, "it was due at once"
    cluster.cancels, cluster.called = [elsewhere(), (CancelOutcome.CANCELLED, None)], []
    cluster.answers = [told(stored_at=earlier)]
    assert await cluster.result(make_offset(2, 9)) == CANCELLED
    assert cluster.called[-1] == (OWN, earlier)


async def test_a_call_that_was_passed_on_stays_here(cluster: Cluster) -> None:
    cluster.cancels = [elsewhere(), (None, errors.OutcomeUnknownError("earlier"), "", 77)]
    elsewhere_told, earlier = (await cluster.cancel(Context(is_forwarded=True), offsets=[AT, AT])).messages
    assert elsewhere_told.error.message == "elsewhere"
    assert (earlier.result, earlier.stored_at) == (0, 77)
    assert [broker for broker, _ in cluster.called] == [OWN, OWN]


async def test_requests_about_what_cannot_be_are_refused(cluster: Cluster) -> None:
    for wrong in (
        {"offsets": [AT, OFFSET_MAX + 1]},
        {"offsets": []},
        {"offsets": [AT] * 1_001},
        {"partition": 1},
        {"topic": "nowhere"},
        {"topic": "a b"},
    ):
        with pytest.raises(RefusedError):
            await cluster.cancel(**wrong)
    for bad in ({"partition": 1}, {"limit": 10_001}, {"until_ms": -1}, {"after": {"offset": OFFSET_MAX + 1}}):
        with pytest.raises(RefusedError):
            await cluster.list(**bad)
    assert cluster.called == []
    cluster.cancels = [(CancelOutcome.CANCELLED, None)]
    await cluster.cancel(topic="new")
    assert cluster.topics_read[-1] == "new", "a topic that this broker does not know is read"


# ---- list -----------------------------------------------------------------------------------------------


def fill(cluster: Cluster) -> list[tuple[int, int]]:
    """Rows in three segments that are served here. Returns the places of those that are left."""
    cluster.segments = [segment_at(no, OWN) for no in (1, 2, 3)]
    for no in (1, 2, 3):
        cluster.rows[no] = [DueRow(10 + (7 * at + no) % 5, at, 2, 100) for at in range(0, 40, 2)]
        cluster.gone.update(row for row in cluster.rows[no] if row.index % 6 == 0)
    rows = [(row.due_ms, make_offset(no, row.index)) for no, rows in cluster.rows.items() for row in rows]
    return sorted(place for place in rows if (place[1] & INDEX_MAX) % 6)


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
async def test_pages_are_together_what_is_left(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(delayed, "ROWS_PER_READ", 4)
    monkeypatch.setattr(delayed, "ROWS_PER_CALL_MAX", 8)
    places = fill(cluster)
    assert await cluster.pages(limit) == places
    assert await cluster.pages(limit, until_ms=12) == [place for place in places if place[0] <= 12]
    cluster.begins[2] = (12, 0)
    assert await cluster.pages(limit) == [one for one in places if one[1] >> 40 != 2 or one >= (12, make_offset(2, 1))]


async def test_a_call_reads_a_limited_number_of_rows(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "ROWS_PER_READ", 4)
    monkeypatch.setattr(delayed, "ROWS_PER_CALL_MAX", 8)
    fill(cluster)
    cluster.gone.update(row for rows in cluster.rows.values() for row in rows)
    page = await cluster.list()
    assert (len(page.rows), page.HasField("next"), cluster.read_count) == (0, True, 24)
    assert await cluster.pages(1000) == []


async def test_each_server_lists_its_segments_and_the_pages_are_merged(cluster: Cluster) -> None:
    cluster.segments = [
        segment_at(1, "g1-0"), segment_at(2, OWN), segment_at(3, "g1-0"), segment_at(4, "g2-0"),
        segment_at(5, OWN, LOST), segment_at(6, OWN, UNSETTLED), segment_at(7, OWN, OPEN),
    ]  # fmt: skip
    cluster.rows = {2: [DueRow(due, due, 1, 9) for due in (1, 4, 9)], 7: []}
    other = delayed_pb2.ListDelayedResponse(
        rows=[delayed_pb2.DelayedMessages(due_ms=due, offset=make_offset(1, due)) for due in (2, 5)],
        next=delayed_pb2.DelayedPlace(due_ms=5, offset=make_offset(1, 5)),
        unserved=[3],
        cancelled_count=2,
    )
    cluster.answers = [other, errors.UnavailableError("dead")]
    page = await cluster.list()
    assert [row.due_ms for row in page.rows] == [1, 2, 4, 5]
    assert (page.next.due_ms, page.next.offset) == (5, make_offset(1, 5)), "9 may come after a row of g1-0"
    assert list(page.unserved) == [3, 4, 6]
    assert page.cancelled_count == 4
    assert cluster.called == [("g1-0", [1, 3]), ("g2-0", [4])]


async def test_a_list_that_was_passed_on_has_the_segments_of_this_server_only(cluster: Cluster) -> None:
    fill(cluster)
    cluster.unserved = {2}
    page = await cluster.list(Context(is_forwarded=True), segments=[1, 2])
    assert {row.offset >> 40 for row in page.rows} == {1}
    assert (list(page.unserved), page.cancelled_count) == ([2], 1)
    page = await cluster.list(Context(is_forwarded=True), segments=[1], after={"due_ms": 10, "offset": 0})
    assert page.cancelled_count == 0, "only the first page has it"


async def test_a_broker_says_what_waits_in_the_segments_that_it_serves(cluster: Cluster) -> None:
    asked = [(PartitionId(7), 1), (PartitionId(7), 2)]
    assert await delayed.count_delayed(cast(Any, cluster), "g1-0", asked, 2.0) == [None, Amount(5, 500)]


async def test_the_server_of_a_segment_is_asked_what_is_pending_until_it_answers(cluster: Cluster) -> None:
    calls = PendingCalls(cast(Any, cluster), cast(Any, cluster))
    here = SimpleNamespace(no=1, server=MemberId(OWN, "a" * 32))
    cluster.first_pending = [(0, errors.NotServingError("not yet")), (7, None)]
    assert await calls.first(cast(Any, 7), cast(Any, here), 0) == 7
    elsewhere = SimpleNamespace(no=2, server=MemberId("g1-0", "b" * 32))
    cluster.answers = [errors.NotServingError("not yet"), delayed_pb2.FirstPendingResponse(first=9)]
    assert await calls.first(cast(Any, 7), cast(Any, elsewhere), 40) == 9
    assert cluster.called == [("g1-0", (7, 2))] * 2
    cluster.answers = [errors.BadRequestError("it does not know the call")]
    with pytest.raises(errors.BadRequestError):
        await calls.first(cast(Any, 7), cast(Any, elsewhere), 40)


async def test_a_server_answers_retention_from_its_core(cluster: Cluster) -> None:
    cluster.first_pending = [(7, None), (0, errors.NotServingError("not served here"))]
    request = delayed_pb2.FirstPendingRequest(partition_id=7, segment=1)
    assert (await cluster.servicer.FirstPending(request, Context(is_forwarded=True))).first == 7
    with pytest.raises(RefusedError):
        await cluster.servicer.FirstPending(request, Context(is_forwarded=True))
    request.move_below = 9
    with pytest.raises(RefusedError, match="only brokers"):
        await cluster.servicer.FirstPending(request, Context())


# ---- what was fired -------------------------------------------------------------------------------------


def fired_of(no: int, *rows: tuple[int, int, int, int]) -> list[StoredVolley]:
    """Volleys of a segment: index, epoch, index of the origin, messages. Without messages: a fence."""
    return [
        StoredVolley(index, fire_producer(7, no), epoch, (Span(make_offset(no, at), count),) if count else ())
        for index, epoch, at, count in rows
    ]


async def read_fired(cluster: Cluster, epoch: int = 4) -> dm.FiredRead:
    return await cluster.fired_reads.read(dm.ReadFired(3, PartitionId(7), 1, epoch, cluster.epoch))


async def test_what_was_fired_is_read_in_all_later_segments(cluster: Cluster) -> None:
    cluster.segments = [segment_at(no, OWN, OPEN if no == 3 else SEALED) for no in (1, 2, 3)]
    cluster.lengths = {1: 100, 2: 100, 3: 100}
    cluster.volleys = {
        2: fired_of(1, (5, 2, 10, 2), (7, 2, 12, 1), (8, 3, 0, 0), (200, 3, 50, 1)),
        3: [*fired_of(1, (5, 2, 20, 1), (6, 4, 0, 0)), *fired_of(2, (7, 9, 1, 1))],
    }
    found = await read_fired(cluster)
    assert found.fired == ((10, 3),), "20 is below a fence in segment 2, 50 is not committed"
    assert (found.last_epoch, found.error) == (3, None)


async def test_a_read_that_takes_long_continues_when_it_is_asked_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.segments, cluster.lengths = [segment_at(1, OWN, OPEN)], {1: 100}
    cluster.volleys = {1: fired_of(1, (5, 2, 0, 2), (6, 4, 0, 0))}
    may_read, rows_of = asyncio.Event(), cluster.read_volleys
    count = 0

    async def read_volleys(*asked: Any) -> list[StoredVolley]:
        nonlocal count
        count += 1
        await may_read.wait()
        return await rows_of(*asked)

    monkeypatch.setattr(cluster, "read_volleys", read_volleys)
    monkeypatch.setattr(fired_reads, "READ_DEADLINE_S", 0.01)
    late = (await read_fired(cluster)).error
    assert isinstance(late, errors.DeadlineExceededError)
    may_read.set()
    monkeypatch.setattr(fired_reads, "READ_DEADLINE_S", 10.0)
    found = await read_fired(cluster)
    assert (found.fired, found.error, count) == (((0, 2),), None, 2), "once for volleys, once for what was moved"
    assert await read_fired(cluster) == found
    assert count == 4, "another question reads again"


@pytest.mark.parametrize("why", ["unsettled", "no member", "old record"])
async def test_what_was_fired_is_not_guessed(cluster: Cluster, why: str) -> None:
    cluster.segments = [segment_at(1, OWN), segment_at(2, OWN, UNSETTLED if why == "unsettled" else SEALED)]
    cluster.segments += [segment_at(3, OWN, OPEN)]
    cluster.lengths = {1: 100} if why == "no member" else {1: 100, 2: 100, 3: 100}
    asked = dm.ReadFired(3, PartitionId(7), 1, 4, cluster.epoch + (why == "old record"))
    error = (await cluster.fired_reads.read(asked)).error
    assert error is not None
    assert error.retriable


async def test_volleys_are_listed_page_by_page_and_by_other_members(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fired_reads, "ROWS_PER_READ", 2)
    monkeypatch.setattr(fired_reads, "ORIGINS_PER_CALL_MAX", 4)
    member, other = segment_at(2, OWN).server, segment_at(2, "g1-0").server
    cluster.segments = [replace(segment_at(2, "g1-0", SEALED), eligible=(other, member)), segment_at(3, "g1-0", OPEN)]
    cluster.lengths = {2: 100}
    cluster.volleys = {2: fired_of(1, *((index, 2, 3 * index, 1) for index in range(5)))}
    last = {"epoch": 3, "origins": [make_offset(1, 90)], "message_counts": [2]}
    gone = errors.NotServingError("it is gone")
    cluster.answers = [gone] * 3 + [delayed_pb2.ListFiredResponse(volleys=[last, {"epoch": 4}])]
    found = await read_fired(cluster)
    assert [span.first for span in found.fired] == [0, 3, 6, 9, 12, 90]
    assert found.last_epoch == 3
