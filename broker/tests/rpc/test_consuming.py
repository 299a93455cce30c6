"""Requests of consumers that no server can take: a typed error, and nothing reaches the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api.batch import HEADER_SIZE_BYTES, parse_header
from seriatim_api.errors import BadRequestError, UnsupportedModeError
from seriatim_api.protocol import PROTOCOL
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.frames import read_delivery_frame
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import ConsumerAcks, ConsumerNack
from seriatim_broker.core.values.keyed import DELAY_MS_MAX, ConsumerMode
from seriatim_broker.core.values.log import Batch
from seriatim_broker.rpc.streams.consume import AHEAD_BYTES_MAX, CONFIRM_S, ROWS_MAX, ConsumeStream, consumer_mode

from broker.tests.headers import header_of


class Driver:
    def __init__(self) -> None:
        self.fed: list[Any] = []

    def new_stream(self, _deliver: Any) -> int:
        return 7

    def feed(self, event: Any) -> None:
        self.fed.append(event)


class Services:
    def __init__(self) -> None:
        self.driver = Driver()


def stream(wake: Callable[[], None] = lambda: None) -> tuple[Any, list[Any]]:
    services: Any = Services()
    hello = broker_pb2.ConsumerHello(protocol=PROTOCOL)
    return ConsumeStream(services, cast(Any, None), hello, wake), services.driver.fed


def test_a_delay_has_a_limit() -> None:
    consuming, fed = stream()
    consuming._nack(broker_pb2.Nack(subscription=1, token=5, offset=6, delay_ms=DELAY_MS_MAX, reason="x"))
    assert fed == [ConsumerNack(7, 1, 5, 6, DELAY_MS_MAX, "x", False)]
    for delay_ms in (DELAY_MS_MAX + 1, (1 << 64) - 1):  # the last one is -1 of a client that counts so
        with pytest.raises(BadRequestError, match="40 days"):
            consuming._nack(broker_pb2.Nack(subscription=1, token=5, offset=6, delay_ms=delay_ms))
    assert len(fed) == 1


def test_a_reason_is_cut_between_its_letters() -> None:
    consuming, fed = stream()
    consuming._nack(broker_pb2.Nack(subscription=1, reason="ü" * 150))
    assert fed[0].reason == "ü" * 100


def test_acknowledgements_name_an_offset_for_each_token() -> None:
    consuming, fed = stream()
    with pytest.raises(BadRequestError, match="an offset for each token"):
        consuming._ack(broker_pb2.Ack(subscription=1, tokens=[1, 2], offsets=[1]))
    with pytest.raises(BadRequestError, match="at most"):
        consuming._ack(broker_pb2.Ack(subscription=1, tokens=[1] * (ROWS_MAX + 1), offsets=[1] * (ROWS_MAX + 1)))
    assert fed == []


def test_requests_that_came_together_are_taken_in_their_order() -> None:
    consuming, fed = stream()
    requests = [
        broker_pb2.ConsumeRequest(ack=broker_pb2.Ack(subscription=1, number=3, tokens=[5], offsets=[6])),
        broker_pb2.ConsumeRequest(nack=broker_pb2.Nack(subscription=1, token=7, offset=8)),
    ]
    consuming.take(broker_pb2.ConsumeRequest(many=broker_pb2.Requests(requests=requests)).SerializeToString())
    assert [type(event) for event in fed] == [ConsumerAcks, ConsumerNack]


@pytest.mark.parametrize("kind", ["hello", "many"])
def test_a_hello_and_others_that_came_together_are_not_among_requests_that_came_together(kind: str) -> None:
    consuming, fed = stream()
    inner = broker_pb2.ConsumeRequest()
    getattr(inner, kind).SetInParent()
    with pytest.raises(BadRequestError):
        consuming.take(broker_pb2.ConsumeRequest(many=broker_pb2.Requests(requests=[inner])).SerializeToString())
    assert fed == []


def test_a_mode_is_one_that_is_known() -> None:
    assert consumer_mode(0) is ConsumerMode.EXCLUSIVE
    assert consumer_mode(ConsumerMode.SHARED) is ConsumerMode.SHARED
    with pytest.raises(UnsupportedModeError):
        consumer_mode(9)


def events_of(pieces: Sequence[bytes | memoryview]) -> list[broker_pb2.DeliveryEvent]:
    return [broker_pb2.DeliveryEvent.FromString(raw) for raw in read_delivery_frame(b"".join(pieces)).events]


async def test_confirmations_wait_for_messages_to_leave_with_and_the_newest_one_counts() -> None:
    woken = asyncio.Event()
    consuming, _ = stream(woken.set)
    for number in (1, 2):
        consuming._deliver(5, fx.AcksConfirmed(number))
    consuming._deliver(6, fx.AcksConfirmed(9))
    assert not woken.is_set()
    consuming._deliver(5, fx.Paused(True))
    events = events_of(consuming.next_frame())
    assert [(event.subscription, event.acks_confirmed.number) for event in events[:2]] == [(5, 2), (6, 9)]
    assert events[2].paused.paused
    assert consuming._confirming is None


async def test_confirmations_leave_alone_after_a_while() -> None:
    woken = asyncio.Event()
    consuming, _ = stream(woken.set)
    consuming._deliver(5, fx.AcksConfirmed(3))
    now = asyncio.get_running_loop().time()
    assert now < consuming._confirming.when() <= now + CONFIRM_S
    consuming._confirm()  # the timer calls it
    assert woken.is_set()
    (event,) = events_of(consuming.next_frame())
    assert event.acks_confirmed.number == 3


def a_batch(size_bytes: int) -> Batch:
    header = header_of(body_length=size_bytes - HEADER_SIZE_BYTES)
    return Batch(parse_header(header), bytes(size_bytes - HEADER_SIZE_BYTES))


def test_a_broker_holds_little_of_a_large_credit_in_its_memory() -> None:
    """A consumer far away has most of its credit on the way. What it does not take waits on the disk."""
    consuming, fed = stream()
    consuming._services.counters = SimpleNamespace(delivered_batches=0, delivered_bytes=0)
    granted, batch = 10 * AHEAD_BYTES_MAX, a_batch(1 << 20)
    consuming.take(broker_pb2.ConsumeRequest(credit=broker_pb2.Credit(bytes=granted)).SerializeToString())
    assert sum(event.size_bytes for event in fed) == AHEAD_BYTES_MAX
    room = left = 0
    while True:
        room += sum(event.size_bytes for event in fed)
        fed.clear()
        while room > 0:  # the core delivers as long as it has credit
            consuming._deliver(5, fx.Batches(1, (batch,), 0, 0, 1, 1))
            room -= batch.size_bytes
        waiting = sum(event.batches[0].size_bytes for _, event in consuming._events)
        assert waiting <= AHEAD_BYTES_MAX + batch.size_bytes
        if consuming.next_frame() is None:
            break
        left += batch.size_bytes
    assert granted <= left < granted + batch.size_bytes, "all of the credit is used at last"


def test_a_credit_of_a_near_consumer_counts_at_once() -> None:
    consuming, fed = stream()
    for _ in range(16):
        consuming.take(broker_pb2.ConsumeRequest(credit=broker_pb2.Credit(bytes=1 << 20)).SerializeToString())
    assert [event.size_bytes for event in fed] == [1 << 20] * 16
