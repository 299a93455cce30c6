"""Raw clients at a real core, through the frames of the wire: what does not count changes nothing, and is answered."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, cast

import pytest
from seriatim_api.errors import BadRequestError, NotActiveError, PreconditionError
from seriatim_api.ids import OFFSET_MAX, make_offset
from seriatim_api.protocol import PROTOCOL
from seriatim_api.v1 import broker_pb2, records_pb2
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import Event
from seriatim_broker.core.values.keyed import ConsumerMode
from seriatim_broker.counters.broker import Counters
from seriatim_broker.rpc.streams.consume import (
    REQUEST_BYTES_MAX,
    ROWS_MAX,
    SUBSCRIPTIONS_MAX,
    ConsumeStream,
)

from .keyed_support import KeyedServing
from .support import GROUP, MS, STREAM, P, Serving

U64 = (1 << 64) - 1


class Raw:
    """A raw client, and the broker's end of its stream. The core is that of a bench that serves the group."""

    def __init__(self, bench: Serving) -> None:
        self.bench = bench
        self.counters = Counters()
        self.driver = self
        self.deliver: Any = None
        services: Any = self
        hello = broker_pb2.ConsumerHello(protocol=PROTOCOL)
        self.stream = ConsumeStream(services, cast(Any, None), hello, lambda: None)

    def new_stream(self, deliver: Any) -> int:
        """The stream of the bench."""
        self.deliver = deliver
        return STREAM

    def feed(self, event: Event) -> None:
        """The core takes a step, and says something to the client."""
        before = len(self.bench.effects)
        self.bench.do(event)
        for effect in self.bench.effects[before:]:
            if isinstance(effect, fx.Deliver) and effect.stream == STREAM:
                self.deliver(effect.subscription, effect.event)

    def send(self, **request: Any) -> list[broker_pb2.DeliveryEvent]:
        """The client sends a request. Returns what the broker says at once."""
        frame = broker_pb2.ConsumeRequest(**request).SerializeToString()
        return self.send_raw(frame)

    def send_raw(self, frame: bytes) -> list[broker_pb2.DeliveryEvent]:
        """The client sends these bytes."""
        self.stream._events.clear()
        self.stream.take(frame)
        return [self.stream._encode(subscription, event) for subscription, event in self.stream._events]

    def ledger(self) -> tuple[Any, ...]:
        """What the group has acknowledged and failed on, and who holds what."""
        group = self.bench.part.consumer_groups[GROUP]
        keyed = group.keyed
        assert keyed is not None
        held = sorted((run.token, run.done, run.consumer.name) for run in keyed.grants.by_token.values())
        failed = sorted((name, key.attempts) for name, key in keyed.line.keys.items())
        in_flight = [row.in_flight for row in group.consumers]
        return group.served.ledger.acked, held, sorted(keyed.grants.singles), failed, in_flight


def raw(keys: str = "aab", **options: Any) -> tuple[Raw, KeyedServing]:
    bench = KeyedServing(keys, **options)
    bench.begin()
    bench.join(2)
    keyed = bench.keyed
    keyed.handoff.rests_until_us = 1 << 60
    bench.deliver()
    return Raw(bench), bench


def void(told: list[broker_pb2.DeliveryEvent]) -> list[tuple[int, ...]]:
    """The tokens that the client was given are void, each time for the typed reason."""
    assert all(event.tokens_void.error.number == NotActiveError.number for event in told if event.tokens_void.tokens)
    return [tuple(event.tokens_void.tokens) for event in told if event.HasField("tokens_void")]


def owner_of(bench: KeyedServing, token: int) -> int:
    """The subscription that was granted it."""
    keyed = bench.keyed
    held: Any = keyed.grants.by_token.get(token) or keyed.grants.singles[token]
    return int(held.consumer.subscription)


@pytest.mark.parametrize("what", ["token", "other's", "offset", "later", "never", "twice", "columns crossed"])
def test_acknowledgements_that_do_not_count_change_nothing(what: str) -> None:
    client, bench = raw("aabb")
    first, second = bench.runs()
    mine = owner_of(bench, first.token)
    tokens, offsets, subscription = [first.token], [first.offsets[0]], mine
    if what == "token":
        tokens = [first.token + (1 << 40)]
    elif what == "other's":
        subscription = 3 - mine
    elif what == "offset":
        offsets = [second.offsets[0]]
    elif what == "later":
        offsets = [first.offsets[1]]
    elif what == "never":
        offsets = [make_offset(1, 1_000_000)]
    elif what == "twice":
        client.send(ack={"subscription": mine, "number": 1, "tokens": tokens, "offsets": offsets})
    else:
        tokens, offsets = [first.token, second.token], [second.offsets[0], first.offsets[0]]
    before = client.ledger()
    told = client.send(ack={"subscription": subscription, "number": 2, "tokens": tokens, "offsets": offsets})
    assert void(told) == [tuple(dict.fromkeys(tokens))]
    assert client.ledger() == before


def test_requests_of_a_subscription_that_is_not_there_change_nothing() -> None:
    client, bench = raw()
    first = bench.runs()[0]
    before = client.ledger()
    row = {"subscription": 99, "tokens": [first.token]}
    assert client.send(ack={**row, "offsets": [first.offsets[0]], "number": 1, "started": [first.token]}) == []
    assert client.send(nack={"subscription": 99, "token": first.token, "offset": first.offsets[0]}) == []
    assert client.send(extend={**row, "grant_ms": 1}) == []
    assert client.send(demand={"subscription": 99, "messages": 5}) == []
    assert client.send(leave={"subscription": 99}) == []
    assert client.ledger() == before


def test_a_failure_that_does_not_count_changes_nothing() -> None:
    client, bench = raw("aab")
    run = next(run for run in bench.runs() if len(run.offsets) == 2)
    mine = owner_of(bench, run.token)
    before = client.ledger()
    for token, offset, subscription in (
        (run.token + 1_000, run.offsets[0], mine),
        (run.token, run.offsets[1], mine),
        (run.token, run.offsets[0], 3 - mine),
    ):
        nack = {"subscription": subscription, "token": token, "offset": offset, "delay_ms": 0}
        assert void(client.send(nack=nack)) == [(token,)]
    assert client.ledger() == before


def test_at_most_once_a_failure_is_answered_and_nothing_comes_again() -> None:
    client, bench = raw("a", at_most_once=True)
    (run,) = bench.runs()
    nack = {"subscription": owner_of(bench, run.token), "token": run.token, "offset": run.offsets[0]}
    (told,) = client.send(nack=nack)
    assert told.tokens_void.error.number == PreconditionError.number
    bench.deliver(us=1_000 * MS)
    assert bench.runs() == []


@pytest.mark.parametrize(
    "request_",
    [
        {"ack": {"subscription": 1, "tokens": [1, 2], "offsets": [1]}},
        {"ack": {"subscription": 1, "tokens": [], "offsets": [1], "started": [5]}},
        {"ack": {"subscription": 1, "tokens": [1] * (ROWS_MAX + 1), "offsets": [1] * (ROWS_MAX + 1)}},
        {"ack": {"subscription": 1, "token": 1, "offset": U64}},
        {"ack": {"subscription": 1, "tokens": [1], "offsets": [OFFSET_MAX + 1]}},
        {"nack": {"subscription": 1, "token": 1, "offset": U64}},
        {"nack": {"subscription": 1, "token": 1, "offset": 1, "delay_ms": U64}},
        {"extend": {"subscription": 1, "tokens": [1] * (ROWS_MAX + 1)}},
        {"hello": {"protocol": PROTOCOL}},
        {},
    ],
)
def test_requests_that_no_client_sends_are_refused_and_change_nothing(request_: Any) -> None:
    client, _ = raw()
    before = client.ledger()
    with pytest.raises(BadRequestError):
        client.send(**request_)
    assert client.ledger() == before


def test_a_request_over_the_limit_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(_data: bytes) -> Any:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(
        "seriatim_broker.rpc.streams.consume.broker_pb2.ConsumeRequest.FromString", parse, raising=False
    )
    client, _ = raw()
    with pytest.raises(BadRequestError, match="bytes"):
        client.send_raw(bytes(REQUEST_BYTES_MAX + 1))


def join(subscription: int, consumer: str) -> dict[str, Any]:
    mode = records_pb2.CONSUMER_MODE_KEY_ORDERED
    return {"partition_id": P, "group": GROUP, "consumer": consumer, "mode": mode, "subscription": subscription}


def test_a_number_of_a_subscription_is_not_used_twice() -> None:
    client, bench = raw()
    client.send(join=join(7, "seven"))
    with pytest.raises(BadRequestError, match="new number"):
        client.send(join=join(7, "eight"))
    assert [row.name for row in bench.part.consumer_groups[GROUP].consumers][-1] == "seven"
    client.send(leave={"subscription": 7})
    client.send(join=join(7, "eight"))
    client.stream._open.update(range(100, 100 + SUBSCRIPTIONS_MAX))
    with pytest.raises(BadRequestError, match="at most"):
        client.send(join=join(8, "nine"))


@pytest.mark.parametrize("mode", [ConsumerMode.KEY_ORDERED, ConsumerMode.SHARED])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_client_sends_is_taken_refused_or_void(seed: int, mode: ConsumerMode) -> None:
    """Requests with values of all sizes, and bytes that are changed at random: no assertion fails, nothing is lost."""
    rng = random.Random(seed)
    client, bench = raw("aabbcdd", mode=mode)
    known = [(run.token, offset) for run in bench.runs() for offset in run.offsets]

    def number() -> int:
        return rng.choice((0, 1, 2, 3, 255, 1 << 31, 1 << 40, OFFSET_MAX, OFFSET_MAX + 1, U64, rng.getrandbits(64)))

    def pair() -> tuple[int, int]:
        token, offset = rng.choice(known)
        return (
            (token, offset) if rng.random() < 0.5 else (rng.choice((token, number())), rng.choice((offset, number())))
        )

    for _ in range(60):
        pairs = [pair() for _ in range(rng.choice((0, 1, 2, 5)))]
        subscription = rng.choice((1, 2, 3, number()))
        tokens, offsets = [token for token, _ in pairs], [offset for _, offset in pairs]
        requests: list[dict[str, Any]] = [
            {"ack": {"subscription": subscription, "number": number(), "tokens": tokens, "offsets": offsets}},
            {"ack": {"subscription": subscription, "tokens": tokens, "offsets": offsets[1:], "started": tokens}},
            {"ack": {"subscription": subscription, "token": number(), "offset": number()}},
            {"nack": {"subscription": subscription, "token": pair()[0], "offset": pair()[1], "delay_ms": number()}},
            {"extend": {"subscription": subscription, "tokens": tokens, "grant_ms": number() & 0xFFFFFFFF}},
            {"demand": {"subscription": subscription, "messages": number() & 0xFFFFFFFF, "run_max": 1}},
            {"credit": {"bytes": number() & 0xFFFFFFFF}},
            {"ping": {"number": number(), "session_ms": number() & 0xFFFFFFFF}},
        ]
        frame = bytearray(broker_pb2.ConsumeRequest(**rng.choice(requests)).SerializeToString())
        if rng.random() < 0.3 and frame:
            frame[rng.randrange(len(frame))] = rng.getrandbits(8)
        with suppress(BadRequestError):  # as typed as it can be: the stream ends with it
            client.send_raw(bytes(frame))
        if rng.random() < 0.2:
            bench.deliver(us=rng.choice((20, 200)) * MS)
            known += [(run.token, offset) for run in bench.runs() for offset in run.offsets]
    group = bench.part.consumer_groups[GROUP]
    keyed = group.keyed
    assert keyed is not None
    passed = 7 - len(keyed.window.not_passed(0, 7))
    waits = keyed.live_count + keyed.lists.message_count
    assert passed - keyed.lists.message_count + waits == 7, "each message is acknowledged, or waits"
