"""A consumer group in which order is by key, for a fake broker: all partitions of one topic, in the broker's memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import google_crc32c
from seriatim._bodies import arrow
from seriatim_api import errors
from seriatim_api.batch import make_header, parse_header
from seriatim_api.ids import make_offset
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2, records_pb2

from .fake_broker import ConsumeStream, FakeCluster, StoredBatch


@dataclass
class Row:
    """A message: its offset, key and value, how often it was failed on, and whether it was in a grant that ended."""

    partition_id: int
    offset: int
    key: bytes | None
    value: bytes
    attempts: int = 0
    is_done: bool = False
    is_given: bool = False


@dataclass
class Subscriber:
    """A subscription of a consumer, and what it asks for (None: everything)."""

    stream: ConsumeStream
    join: broker_pb2.Join
    demand: int | None
    run_max: int
    tokens: set[int] = field(default_factory=set)


@dataclass
class Grant:
    """Rows of one key that a subscriber has; `left` is what is not acknowledged."""

    subscriber: Subscriber
    left: deque[Row]
    is_started: bool = False
    ends: asyncio.TimerHandle | None = None


class FakeKeyed:
    """Grants of one consumer group. A grant ends after `grant_ms`, if it is not extended."""

    def __init__(
        self,
        cluster: FakeCluster,
        mode: records_pb2.ConsumerMode.ValueType = records_pb2.CONSUMER_MODE_KEY_ORDERED,
        *,
        grant_ms: int = 30_000,
        at_most_once: bool = False,
        run_max: int = 256,
    ) -> None:
        cluster.keyed = self
        self.cluster = cluster
        self.mode = mode
        self.grant_ms = grant_ms
        self.at_most_once = at_most_once
        self.run_max = run_max
        self.rows: list[Row] = []
        self.subscribers: list[Subscriber] = []
        self.grants: dict[int, Grant] = {}
        self.counter = 0
        self.joins: list[broker_pb2.Join] = []
        self.demands: list[int] = []
        self.nacks: list[broker_pb2.Nack] = []
        self.extends: list[broker_pb2.Extend] = []
        self.delayed: set[bytes] = set()

    def add(self, partition_id: int, rows: Sequence[tuple[bytes | None, bytes]]) -> None:
        """Messages are appended to a partition."""
        index = sum(row.partition_id == partition_id for row in self.rows)
        for key, value in rows:
            self.rows.append(Row(partition_id, make_offset(1, index), key, value))
            index += 1
        self.pump()

    @property
    def values_left(self) -> list[bytes]:
        """Of the messages that are not acknowledged."""
        return [row.value for row in self.rows if not row.is_done]

    # ---- requests ----

    def take(self, stream: ConsumeStream, request: broker_pb2.ConsumeRequest) -> None:
        """A consumer sent a request."""
        match request.WhichOneof("request"):
            case "join":
                self._join(stream, request.join)
            case "demand":
                self.demands.append(request.demand.messages)
                subscriber = self._subscriber(stream, request.demand.subscription)
                if subscriber is not None and subscriber.demand is not None:
                    subscriber.demand = request.demand.messages
                    subscriber.run_max = request.demand.run_max or subscriber.run_max
                    self.pump()
            case "ack":
                self._ack(stream, request.ack)
            case "nack":
                self._nack(request.nack)
            case "extend":
                self.extends.append(request.extend)
                for token in request.extend.tokens:
                    if token not in self.grants:
                        continue
                    if request.extend.unseen and not request.extend.grant_ms:
                        self._end(token, is_seen=False)
                    else:
                        self._set_deadline(token, request.extend.grant_ms)
                if request.extend.unseen:
                    self.pump()

    def _join(self, stream: ConsumeStream, join: broker_pb2.Join) -> None:
        self.joins.append(join)
        subscriber = Subscriber(stream, join, 0 if join.on_demand else None, join.run_max or self.run_max)
        self.subscribers.append(subscriber)
        event = broker_pb2.DeliveryEvent(subscription=join.subscription)
        joined = event.joined
        joined.active, joined.segment, joined.group_epoch, joined.server_epoch = True, 1, 1, 1
        joined.mode, joined.grant_ms = self.mode, self.grant_ms
        joined.at_most_once = self.at_most_once
        stream.tell(event)
        self.pump()

    def _subscriber(self, stream: ConsumeStream, subscription: int) -> Subscriber | None:
        found = (row for row in self.subscribers if row.stream is stream and row.join.subscription == subscription)
        return next(found, None)

    def _ack(self, stream: ConsumeStream, ack: broker_pb2.Ack) -> None:
        for token, offset in zip(ack.tokens, ack.offsets, strict=True):
            grant = self.grants.get(token)
            if grant is None:
                self._void(stream, ack.subscription, token)
                continue
            assert grant.left[0].offset == offset
            grant.left.popleft().is_done = True
            grant.is_started = False
            if not grant.left:
                self._end(token)
        for token in ack.started:
            if token in self.grants:
                self.grants[token].is_started = True
        event = broker_pb2.DeliveryEvent(subscription=ack.subscription)
        event.acks_confirmed.number = ack.number
        stream.tell(event)
        self.pump()

    def _nack(self, nack: broker_pb2.Nack) -> None:
        self.nacks.append(nack)
        grant = self.grants.get(nack.token)
        if grant is None:
            return
        row = grant.left[0]
        assert row.offset == nack.offset
        row.attempts += 1
        self._end(nack.token)
        name = self._key(row)
        self.delayed.add(name)
        delay_ms = nack.delay_ms if nack.HasField("delay_ms") else 20

        def over() -> None:
            self.delayed.discard(name)
            self.pump()

        asyncio.get_running_loop().call_later(delay_ms / 1000, over)

    def leave(self, stream: ConsumeStream, subscription: int | None) -> None:
        """A consumer has left."""
        for subscriber in list(self.subscribers):
            if subscriber.stream is stream and subscription in (None, subscriber.join.subscription):
                self.subscribers.remove(subscriber)
                for token in list(subscriber.tokens):
                    grant = self.grants[token]
                    if grant.is_started:
                        grant.left[0].attempts += 1
                    self._end(token)
        self.pump()

    def _void(self, stream: ConsumeStream, subscription: int, token: int) -> None:
        event = broker_pb2.DeliveryEvent(subscription=subscription)
        event.tokens_void.tokens.append(token)
        event.tokens_void.error.CopyFrom(error_to_proto(errors.NotActiveError("the grant has ended")))
        stream.tell(event)

    # ---- grants ----

    def _key(self, row: Row) -> bytes:
        if row.key is None or self.mode == records_pb2.CONSUMER_MODE_SHARED:
            return b"o%d/%d" % (row.partition_id, row.offset)
        return b"k%d/" % row.partition_id + row.key

    def _set_deadline(self, token: int, grant_ms: int) -> None:
        grant = self.grants[token]
        if grant.ends is not None:
            grant.ends.cancel()
        grant.ends = asyncio.get_running_loop().call_later(grant_ms / 1000, self._late, token)

    def _late(self, token: int) -> None:
        grant = self.grants.get(token)
        if grant is None:
            return
        if grant.is_started:
            grant.left[0].attempts += 1
        self._void(grant.subscriber.stream, grant.subscriber.join.subscription, token)
        self._end(token)
        self.pump()

    def _end(self, token: int, *, is_seen: bool = True) -> None:
        grant = self.grants.pop(token)
        for row in grant.left:
            row.is_given = row.is_given or is_seen or grant.is_started
        grant.subscriber.tokens.discard(token)
        if grant.ends is not None:
            grant.ends.cancel()

    def pump(self) -> None:
        """Grant what may be granted, one key after another."""
        for subscriber in list(self.subscribers):
            self._grant(subscriber)
            self.subscribers.append(self.subscribers.pop(0))

    def _grant(self, subscriber: Subscriber) -> None:
        held = {self._key(row) for grant in self.grants.values() for row in grant.left} | self.delayed
        waiting: dict[bytes, list[Row]] = {}
        for row in self.rows:
            if row.partition_id == subscriber.join.partition_id and not row.is_done and self._key(row) not in held:
                waiting.setdefault(self._key(row), []).append(row)
        room = subscriber.join.in_flight_max - sum(len(self.grants[token].left) for token in subscriber.tokens)
        if subscriber.demand is not None:
            room = min(room, subscriber.demand)
        runs: list[tuple[int, list[Row]]] = []
        for rows in waiting.values():
            run = rows[: min(subscriber.run_max, room)]
            if not run:
                break
            self.counter += 1
            runs.append((self.counter, run))
            room -= len(run)
            if subscriber.demand is not None:
                subscriber.demand -= len(run)
        if runs:
            self._deliver(subscriber, runs)

    def _deliver(self, subscriber: Subscriber, runs: list[tuple[int, list[Row]]]) -> None:
        event = broker_pb2.DeliveryEvent(subscription=subscriber.join.subscription)
        granted = event.granted
        granted.server_epoch = 1
        for token, run in runs:
            self.grants[token] = Grant(subscriber, deque(run))
            subscriber.tokens.add(token)
            self._set_deadline(token, self.grant_ms)
            granted.token.append(token)
            granted.count.append(len(run))
            granted.attempt.append(run[0].attempts + 1)
            granted.maybe_repeated.append(any(row.is_given for row in run))
            granted.offset.extend(row.offset for row in run)
            if self.at_most_once:
                for row in run:
                    row.is_done = True
        rows = [row for _, run in runs for row in run]
        body = arrow.encode([row.value for row in rows], [row.key for row in rows], [1] * len(rows)).data
        header = make_header(
            partition=0, message_count=len(rows), producer=bytes(16), producer_epoch=0, base_sequence=0,
            first_timestamp_ms=0, last_timestamp_ms=0, body_length=len(body), body_crc=google_crc32c.value(body),
        )  # fmt: skip
        subscriber.stream.tell(event, [StoredBatch(parse_header(header), body)])
