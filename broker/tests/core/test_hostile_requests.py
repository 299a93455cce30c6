"""Requests of a consumer with any numbers in them: the core takes them or refuses them, and never raises.

If a step raises, the broker's process ends. So a client that sends such a request would end each broker that serves it.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import INDEX_MAX, OFFSET_MAX, make_offset
from seriatim_api.protocol import PROTOCOL
from seriatim_api.v1 import broker_pb2
from seriatim_broker.core.values.keyed import ConsumerMode
from seriatim_broker.rpc.streams.consume import ConsumeStream

from tools.mutated_bytes.draws import fill

from .keyed_support import KeyedServing
from .support import GROUP, MS, STREAM, P

BY_KEY = (ConsumerMode.KEY_ORDERED, ConsumerMode.SHARED)
REQUESTS = 200
SEEDS = range(1)
KINDS = ("ack",) * 6 + ("nack",) * 6 + ("extend",) * 3 + ("demand",) * 2 + ("join", "credit", "ping", "many", "leave")
ODD = (0, 1, 2, 3, 1 << 24, 1 << 32, 1 << 40, 1 << 62, OFFSET_MAX, 1 << 63, (1 << 64) - 1)
OFFSETS = (*(make_offset(1, index) for index in range(6)), make_offset(1, INDEX_MAX), make_offset(2, 0), *ODD)


def stream_of(serving: KeyedServing) -> ConsumeStream:
    """The stream of the consumer that is served."""
    groups = SimpleNamespace(join=lambda *_: SimpleNamespace(joined=0, acked_messages=0, failed_attempts=0))
    driver = SimpleNamespace(new_stream=lambda _: STREAM, feed=serving.do)
    services = SimpleNamespace(driver=driver, counters=SimpleNamespace(groups=groups))
    hello = broker_pb2.ConsumerHello(protocol=PROTOCOL, credit_bytes=1 << 20)
    return ConsumeStream(cast("Any", services), cast("Any", None), hello, lambda: None)


def served(mode: ConsumerMode, *, at_most_once: bool) -> tuple[KeyedServing, ConsumeStream]:
    """A server whose only consumer was given what it may have."""
    serving = KeyedServing("abcab.aabcabcaabc", mode=mode, at_most_once=at_most_once)
    if mode in BY_KEY:
        serving.serve()
    else:
        serving.begin()
    return serving, stream_of(serving)


def request_of(chance: random.Random, tokens: list[int]) -> broker_pb2.ConsumeRequest:
    """Any request. Most name this partition, a subscription that is open, and grants that there are."""
    request = broker_pb2.ConsumeRequest()
    kind = chance.choice(KINDS)
    field = getattr(request, kind)
    field.SetInParent()
    fill(chance, field, 3)
    for name, values in (("subscription", (1, 1, 2, 3)), ("partition_id", (P, P, P, 99))):
        if hasattr(field, name):
            setattr(field, name, chance.choice(values))
    if kind == "join":
        field.group, field.consumer = chance.choice(((GROUP, "c"), (GROUP, "d"), ("h", "c")))
    if kind == "nack" and chance.random() < 0.8:
        field.delay_ms = chance.choice((0, 1, 40 * 86_400_000))
    for name, pool in (
        ("token", tokens),
        ("offset", OFFSETS),
        ("tokens", tokens),
        ("offsets", OFFSETS),
        ("started", tokens),
    ):
        if not hasattr(field, name):
            continue
        known = field.DESCRIPTOR.fields_by_name[name]
        drawn = [chance.choice((*pool, *ODD)) % (1 << 64) for _ in range(3)]
        if known.is_repeated:
            del getattr(field, name)[:]
            getattr(field, name).extend(drawn)
        else:
            setattr(field, name, drawn[0])
    return request


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", list(ConsumerMode))
@pytest.mark.parametrize("at_most_once", [False, True])
def test_any_request_leaves_the_core_running(mode: ConsumerMode, at_most_once: bool, seed: int) -> None:
    chance = random.Random(f"{mode}/{at_most_once}/{seed}")
    serving, stream = served(mode, at_most_once=at_most_once)
    taken = granted = 0
    for _ in range(REQUESTS):
        group = serving.part.consumer_groups.get(GROUP)
        if group is None:  # the only consumer has left: start over
            serving, stream = served(mode, at_most_once=at_most_once)
            continue
        keyed = group.keyed
        granted += keyed is not None and bool(keyed.grants.by_token)
        tokens = [1, *(keyed.grants.by_token if keyed is not None else ())]
        request = request_of(chance, tokens)
        try:
            list(stream.take(request.SerializeToString()))
            taken += 1
        except SeriatimError:
            continue
        if chance.random() < 0.2:
            serving.deliver(chance.choice((4, 4_000, 120_000_000)) * MS // 1000)
    assert taken > REQUESTS // 4
    assert at_most_once or mode not in BY_KEY or granted > REQUESTS // 10, "grants are what most requests are about"
