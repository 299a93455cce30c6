"""The way of dead letters and copies to another partition's master, and what calls about them are refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from seriatim_api import errors
from seriatim_api.batch import FLAG_CONTROL, FLAG_FIRED, HEADER_SIZE_BYTES, parse_header
from seriatim_api.dead_letters import FOR_NO_GROUP, FORWARDER_MARK, group_hash, replay_producer, resolved_by
from seriatim_api.delayed import fire_producer
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import dead_letters_pb2, records_pb2
from seriatim_broker.adapters.arrow_bodies import ArrowBodies
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.delayed_messages import FireVolleys
from seriatim_broker.core.values.events import Append, ResolveProducer
from seriatim_broker.core.values.keyed import DeadLetter, DeadLetterRow
from seriatim_broker.counters.broker import Counters
from seriatim_broker.rpc.distributed import forwards, master_appends
from seriatim_broker.rpc.distributed.forwards import Forwards
from seriatim_broker.rpc.distributed.master_appends import MasterAppends
from seriatim_broker.rpc.servicers.dead_letters import DeadLettersServicer

from broker.tests.headers import header_of

OWN = MemberId("g0-0", "a" * 32)
PRODUCER = b"producer" + FORWARDER_MARK
BODIES = ArrowBodies()
BODIES.prepare()
BODY = BODIES.single(b"k", b"v", 5, [])


class Cluster:
    """This broker, whose core masters some partitions, and other brokers."""

    def __init__(self) -> None:
        self.identity = SimpleNamespace(member=OWN)
        self.checksum = crc32c
        self.counters = Counters()
        self.bodies = BODIES
        self.storage = SimpleNamespace(is_saturated=False)
        self.is_stopping = False
        self.in_flight_bytes = 0
        self.traffic = SimpleNamespace(add=lambda partition, size: None)
        self.driver = self
        self.topics = {"dead": (90, 91), "orders": (10,)}
        self.masters = {90: OWN.broker, 91: "g1-0", 10: OWN.broker}
        self.stored: dict[int, list[Append]] = {}
        self.refusals: list[errors.SeriatimError | None] = []  # of the next appends
        self.called: list[tuple[str, Any]] = []
        self.answers: list[Any] = []  # of other brokers
        self.complaints: list[int | None] = []
        self._replies: dict[int, Callable[[Any], None]] = {}
        self.forwards = Forwards(cast(Any, self), MasterAppends(cast(Any, self), cast(Any, self)))
        self.servicer = DeadLettersServicer(cast(Any, self), self.forwards, BODIES, None)

    async def topic(self, name: str) -> records_pb2.TopicRecord:
        if name not in self.topics:
            raise errors.UnknownTopicError(f"there is no topic {name!r}")
        return records_pb2.TopicRecord(name=name, partition_ids=self.topics[name])

    async def ask_core(self, event_of: Callable[[int], Any], _deadline_s: float) -> fx.Resolved:
        event = event_of(1)
        assert isinstance(event, ResolveProducer)
        self.complaints.append(event.failed_segment)
        if event.partition not in self.masters:
            return fx.Resolved(1, None, errors.UnknownTopicError("there is no such partition"))
        return fx.Resolved(1, fx.RouteInfo(event.partition, 1, 1, self.masters[event.partition], ()), None)

    def new_request(self, reply: Callable[[Any], None]) -> int:
        self._replies[len(self._replies) + 1] = reply
        return len(self._replies)

    def forget_request(self, request: int) -> None:
        self._replies[request] = lambda reply: None

    def feed(self, event: Append) -> None:
        assert event.is_forward
        error = self.refusals.pop(0) if self.refusals else None
        if error is not None:
            self._replies[event.request](fx.AppendRefused(event.request, error, None))
            return
        log = self.stored.setdefault(event.partition, [])
        log.append(event)
        self._replies[event.request](fx.AppendAccepted(event.request, make_offset(1, len(log) - 1), 0))

    async def dead_letters(self, broker: str, method: str, request: Any, _deadline_s: float) -> Any:
        self.called.append((broker, request))
        answer = self.answers.pop(0)
        if isinstance(answer, errors.SeriatimError):
            raise answer
        return answer


class Context:
    """A call."""

    def time_remaining(self) -> float:
        return 2.0

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        raise RefusedError(details)


class RefusedError(Exception):
    """The call was refused."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(master_appends, "PAUSE_S", 0.001)
    return Cluster()


def letters(count: int, number: int = 0, topic: str = "dead") -> fx.ForwardBatches:
    """A request of a forwarder."""
    row = DeadLetterRow(BODY, 5, is_keyed=True)
    return fx.ForwardBatches(
        7, PartitionId(10), "g", topic, number, PRODUCER, tuple(DeadLetter(3 + at, row) for at in range(count))
    )


def answer(offsets: list[int], error: errors.SeriatimError | None = None) -> dead_letters_pb2.AppendForwardedResponse:
    """What the master of another broker answers."""
    found = dead_letters_pb2.AppendForwardedResponse(offsets=offsets)
    if error is not None:
        found.error.CopyFrom(error_to_proto(error))
    return found


async def test_as_the_master_this_broker_appends_them_as_one_producer_run(cluster: Cluster) -> None:
    done = await cluster.forwards.forward(letters(3))
    assert (done.serial, done.stored_count, done.error) == (7, 3, None)
    stored = cluster.stored[90]
    assert [event.header.producer_epoch for event in stored] == [3, 4, 5]
    assert [event.starts_run for event in stored] == [True, False, False]
    assert len({event.producer_run for event in stored}) == 1
    assert cluster.in_flight_bytes == 0


async def test_another_master_is_asked_over_the_network(cluster: Cluster) -> None:
    cluster.answers = [answer([5, 6])]
    done = await cluster.forwards.forward(letters(2, number=1))
    assert (done.stored_count, done.error) == (2, None)
    ((broker, request),) = cluster.called
    assert (broker, request.partition_id, len(request.bodies)) == ("g1-0", 91, 2)
    assert parse_header(request.headers[:HEADER_SIZE_BYTES]).partition == 91


async def test_what_is_stored_before_a_refusal_counts(cluster: Cluster) -> None:
    cluster.refusals = [None, errors.OverloadedError("wait", retry_after_ms=5)]
    done = await cluster.forwards.forward(letters(3))
    assert done.stored_count == 1
    assert isinstance(done.error, errors.OverloadedError)


async def test_the_lateness_of_each_message_that_is_stored_is_counted(cluster: Cluster) -> None:
    cluster.refusals = [None, None, errors.OverloadedError("wait", retry_after_ms=5)]
    due_ms = int(time.time() * 1000) - 3_000
    four = BODIES.join([(BODIES.open_joined(BODY), range(1))] * 4)
    batches = tuple(
        (header_of(body, flags=flags, due_time_ms=due_ms, message_count=count), body)
        for flags, count, body in ((FLAG_FIRED, 4, four), (0, 1, BODY), (FLAG_FIRED, 4, four))
    )
    done = await cluster.forwards.fire(FireVolleys(7, PartitionId(10), 1, batches))
    assert done.stored_count == 2
    late = cluster.counters.delayed_late_s
    assert (late.count, dict(late.buckets())["2.0"], dict(late.buckets())["5.0"]) == (4, 0, 4)
    assert 12 <= late.total_s < 20


async def test_a_silent_master_is_complained_of_and_the_next_one_asked(cluster: Cluster) -> None:
    cluster.answers = [errors.UnavailableError("no answer"), answer([5])]
    done = await cluster.forwards.forward(letters(1, number=1))
    assert (done.stored_count, done.error) == (1, None)
    assert 1 in cluster.complaints


async def test_a_topic_that_is_deleted_or_too_small_is_said_so_and_found_when_it_is_there_again(
    cluster: Cluster,
) -> None:
    assert (await cluster.forwards.forward(letters(1))).error is None
    cluster.topics["dead"] = (90,)
    cluster.forwards._topics.clear()
    done = await cluster.forwards.forward(letters(1, number=1))
    assert done.error is not None
    assert "has 1 partitions" in done.error.message
    del cluster.topics["dead"]
    cluster.forwards._topics.clear()
    assert isinstance((await cluster.forwards.forward(letters(1))).error, errors.UnknownTopicError)
    cluster.topics["dead"], cluster.masters[95] = (95,), OWN.broker
    assert (await cluster.forwards.forward(letters(1))).error is None
    assert len(cluster.stored[95]) == 1


async def test_a_remembered_topic_refuses_no_letter(cluster: Cluster) -> None:
    assert (await cluster.forwards.forward(letters(1))).error is None
    cluster.topics["dead"], cluster.masters[92] = (90, 91, 92), OWN.broker
    assert (await cluster.forwards.forward(letters(1, number=2))).error is None, "it has grown"
    cluster.topics["dead"], cluster.masters[95] = (95,), OWN.broker
    del cluster.masters[90]
    cluster.refusals = [errors.UnknownTopicError("it was deleted")]
    assert (await cluster.forwards.forward(letters(1))).error is None, "it was made again"
    assert [len(cluster.stored[number]) for number in (90, 92, 95)] == [1, 1, 1]


async def test_a_full_disk_is_an_error_and_nothing_is_lost(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "FORWARD_DEADLINE_S", 0.05)
    full = errors.DiskFullError("full", retry_after_ms=1)
    cluster.refusals = [full] * 1000
    done = await cluster.forwards.forward(letters(1))
    assert done.stored_count == 0
    assert isinstance(done.error, errors.DiskFullError)
    cluster.refusals = []
    assert (await cluster.forwards.forward(letters(1))).stored_count == 1


# ---- calls of administrators ------------------------------------------------------------------------------------


def replay(offset: int, group: str = "billing", topic: str = "orders", body: bytes = BODY) -> Any:
    return dead_letters_pb2.ReplayedLetter(
        offset=offset, origin_topic=topic, origin_partition=0, group=group, body=body, timestamp_ms=5, keyed=True
    )


async def test_a_replay_stores_the_copies_for_one_group_and_then_the_resolution(cluster: Cluster) -> None:
    request = dead_letters_pb2.ReplayDeadLettersRequest(topic="dead", partition=0, letters=[replay(8), replay(9)])
    found = await cluster.servicer.ReplayDeadLetters(request, Context())
    assert list(found.offsets) == [make_offset(1, 0), make_offset(1, 1)]
    copies = cluster.stored[10]
    assert [event.header.producer for event in copies] == [replay_producer(90, 8), replay_producer(90, 9)]
    assert {event.header.for_group for event in copies} == {group_hash("billing")}
    assert [event.header.origin for event in copies] == [(90, 8), (90, 9)]
    (resolution,) = cluster.stored[90]
    assert resolution.header.for_group == FOR_NO_GROUP


async def test_a_replay_that_stops_resolves_what_was_stored(cluster: Cluster) -> None:
    cluster.refusals = [None, errors.BatchMismatchError("no")]
    request = dead_letters_pb2.ReplayDeadLettersRequest(topic="dead", partition=0, letters=[replay(8), replay(9)])
    found = await cluster.servicer.ReplayDeadLetters(request, Context())
    assert len(found.offsets) == 1
    assert found.HasField("error")
    assert len(cluster.stored[90]) == 1


async def test_resolutions_of_a_broker_are_one_producer(cluster: Cluster) -> None:
    """Rule `resolved-with-a-place`: one that the master takes for a repeat, without its place, is sent under the next
    number."""
    request = dead_letters_pb2.DropDeadLettersRequest(topic="dead", partition=1, offsets=[8])
    cluster.answers = [answer([make_offset(1, 0)]), answer([0]), answer([make_offset(1, 1)])]
    await cluster.servicer.DropDeadLetters(request, Context())
    await cluster.servicer.DropDeadLetters(request, Context())
    headers = [parse_header(asked.headers) for _, asked in cluster.called]
    assert [header.producer_epoch for header in headers] == [1, 2, 3]
    assert len({header.producer for header in headers}) == 1
    assert {header.for_group for header in headers} == {FOR_NO_GROUP}


async def test_a_drop_stores_a_resolution(cluster: Cluster) -> None:
    request = dead_letters_pb2.DropDeadLettersRequest(topic="dead", partition=0, offsets=[8, 9])
    await cluster.servicer.DropDeadLetters(request, Context())
    (resolution,) = cluster.stored[90]
    import pyarrow as pa
    from seriatim_api.bodies import SCHEMA

    (row,) = pa.ipc.read_record_batch(pa.py_buffer(resolution.body), SCHEMA).to_pylist()
    assert resolved_by(dict(row["headers"]), row["value"]) == (8, 9)


@pytest.mark.parametrize(
    ("topic", "wanted", "text"),
    [
        ("dead", [], "1 to 256"),
        ("dead", [replay(9), replay(8)], "ascending"),
        ("dead", [replay(8), replay(8)], "ascending"),
        ("dead", [replay(8, group="")], "names its consumer group"),
        ("dead", [replay(8, topic="no topic!")], "cannot name a topic"),
        ("dead", [replay(8, body=b"no body")], "no Arrow message"),
        ("nowhere", [replay(8)], "no topic"),
    ],
)
async def test_a_replay_that_cannot_be_meant_is_refused(
    cluster: Cluster, topic: str, wanted: list[Any], text: str
) -> None:
    request = dead_letters_pb2.ReplayDeadLettersRequest(topic=topic, partition=0, letters=wanted)
    with pytest.raises(RefusedError, match=text):
        await cluster.servicer.ReplayDeadLetters(request, Context())
    assert not cluster.stored


async def test_only_whole_batches_of_forwarders_are_taken_from_other_brokers(cluster: Cluster) -> None:
    def made(producer: bytes, partition: int = 90, body: bytes = BODY, **more: int) -> bytes:
        return header_of(body, partition=partition, producer=producer, producer_epoch=1, **more)

    async def ask(headers: bytes, bodies: list[bytes]) -> Any:
        request = dead_letters_pb2.AppendForwardedRequest(partition_id=90, headers=headers, bodies=bodies)
        return await cluster.servicer.AppendForwarded(request, Context())

    assert list((await ask(made(PRODUCER), [BODY])).offsets) == [make_offset(1, 0)]
    for headers, bodies in (
        (made(b"p" * 16), [BODY]),
        (made(PRODUCER, partition=10), [BODY]),
        (made(PRODUCER, body_crc=1), [BODY]),
        (made(PRODUCER), []),
        (made(PRODUCER, body=b"no body"), [b"no body"]),
        (made(fire_producer(90, 1), body=b"short", flags=FLAG_CONTROL, base_sequence=1), [b"short"]),
        (made(PRODUCER, body=bytes(12), flags=FLAG_CONTROL, base_sequence=1), [bytes(12)]),
        (b"x" * HEADER_SIZE_BYTES, [BODY]),
    ):
        with pytest.raises(RefusedError):
            await ask(headers, bodies)
    await asyncio.sleep(0)
    assert len(cluster.stored[90]) == 1
