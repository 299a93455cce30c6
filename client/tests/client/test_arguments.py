"""What a program passes wrongly is refused at once, with an error that names the argument. Nothing is lost by it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from seriatim import Client, ConsumerSettings, GroupSettings, ProducerSettings, RetryPolicy, TopicSettings
from seriatim.history import MemoryHistory
from seriatim_api.errors import BadRequestError, IllegalNameError, SeriatimError

from .test_public import running


def _made(client: Client, **settings: Any) -> Any:
    return client.admin().create_topic("u", settings=TopicSettings(**settings))


async def _never_run(*_: object) -> Any:
    raise AssertionError


class _NeverRun:
    async def __call__(self, *_: object) -> Any:
        raise AssertionError


def _generates(_told: object) -> Any:
    yield


OPENING: dict[str, tuple[Callable[[Client], Any], str]] = {
    "ack level of Kafka": (lambda client: client.producer("t", ack_level="all"), "AckLevel.REPLICATED_FLUSHED"),
    "acks": (lambda client: client.producer("t", acks="all"), "a producer has no option acks: did you mean ack_level?"),
    "typing error": (lambda client: client.producer("t", linger=3), "did you mean linger_ms?"),
    "unknown": (lambda client: client.consumer("t", "g", colour=3), "a consumer has no option colour: the options are"),
    "linger below 0": (lambda client: client.producer("t", linger_ms=-1), "linger_ms is a number of milliseconds"),
    "linger as text": (lambda client: client.producer("t", linger_ms="5"), "not '5'"),
    "no deadline": (lambda client: client.producer("t", delivery_timeout_ms=None), "delivery_timeout_ms is a whole"),
    "true": (lambda client: client.producer("t", window_batches=True), "window_batches is a whole number, not True"),
    "no partitioner": (lambda client: client.producer("t", partitioner=3), "partitioner is a function"),
    "partitioner that is never run": (lambda client: client.producer("t", partitioner=_never_run), "an async def"),
    "on_gap": (lambda client: client.consumer("t", "g", on_gap=_never_run), "on_gap is called as a plain function"),
    "on_assignment": (
        lambda client: client.consumer("t", "g", on_assignment=partial(_never_run)),
        "an async def would",
    ),
    "on_group_change": (
        lambda client: client.consumer("t", "g", mode="shared", on_group_change=_NeverRun()),
        "on_group_change is called",
    ),
    "on_loss": (lambda client: client.read_range("t", 0, on_loss=_never_run), "on_loss is called as a plain"),
    "generator": (lambda client: client.consumer("t", "g", on_gap=_generates), "on_gap is a generator function"),
    "no callback": (lambda client: client.consumer("t", "g", on_gap=3), "on_gap is a function, not 3"),  # type: ignore[call-overload]
    "message_id": (
        lambda _client: Client.connect("h:1", recorder=MemoryHistory("p"), message_id=_never_run),  # type: ignore[arg-type]
        "message_id is called",
    ),
    "no partition": (lambda client: client.consumer("t", "g", partitions=[]), "leave it out to get all of them"),
    "partitions as text": (lambda client: client.consumer("t", "g", partitions="0"), "a list of partition numbers"),
    "partition as text": (lambda client: client.consumer("t", "g", partitions=["0"]), "is a whole number, not '0'"),
    "one partition": (lambda client: client.consumer("t", "g", partitions=0), "a list of partition numbers"),
    "range": (lambda client: client.read_range("t", "0"), "partition is a whole number, not '0'"),
    "places": (lambda client: client.offsets("t", partitions=[]), "leave it out to get all of them"),
    "chain": (lambda client: client.admin().describe_chain("t", "0"), "partition is a whole number, not '0'"),
    "retention": (lambda client: _made(client, retention_ms="1h"), "retention_ms is a whole number, not '1h'"),
    "less than none": (lambda client: _made(client, retention_bytes=-1), "retention_bytes is -1: it is 0 or more"),
    "flush": (lambda client: _made(client, flush=1), "flush is True or False, not 1"),
    "change": (lambda client: client.admin().update_topic("t", retention_ms="1h"), "a whole number, not '1h'"),
    "topic": (lambda client: client.admin().create_topic("u", "3"), "partition_count is a whole number, not '3'"),
    "size": (lambda client: client.admin().create_topic("u", 0), "partition_count is between 1 and 100000, not 0"),
    "new size": (lambda client: client.admin().update_topic("t", 10**11), "partition_count is between 1 and 100000"),
    "chain too far": (lambda client: client.admin().describe_chain("t", 10**11), "partition is between 0 and"),
    "gap too far": (lambda client: client.admin().declare_gap("t", 0, 10**11, "me"), "segment is between 1 and"),
    "gap elsewhere": (lambda client: client.admin().declare_gap("t", 10**11, 1, "me"), "partition is between 0 and"),
    "run": (lambda client: client.admin().declare_dead("g0-0", 10**20, "me"), "run is between 1 and"),
    "partition id": (lambda client: client.admin().switch_partition(10**11), "partition_id is between 1 and"),
    "places too far": (
        lambda client: client.offsets("t", partitions=[10**11]),
        "a partition's number is between 0 and",
    ),
    "new group": (lambda client: client.admin().create_group("t", "g", partitions=[10**11]), "a partition's number is"),
    "rewind": (
        lambda client: client.admin().plan_move("t", "g", "earliest", partitions=[10**11]),
        "a partition's number is",
    ),
    "pause": (lambda client: client.admin().pause_group("t", "g", partitions=[10**11]), "a partition's number is"),
    "rewind of none": (lambda client: client.admin().plan_move("t", "g", "earliest", partitions=[]), "get all of them"),
    "group on none": (lambda client: client.admin().create_group("t", "g", partitions=[]), "names no partition"),
    "pause of none": (lambda client: client.admin().pause_group("t", "g", partitions=[]), "names no partition"),
    "disk without a name": (
        lambda client: client.admin().declare_dead("g0-0", 1, "me", incarnation=""),
        "incarnation is a text that is not empty, not '': leave it out",
    ),
    "group without a name": (lambda client: client.admin().switch_partition(1, ""), "group is a text that is not"),
    "master without a name": (lambda client: client.admin().switch_partition(1, "g0", ""), "master is a text that"),
    "writers of no topic": (lambda client: client.admin().list_writers(""), "leave it out to have the writers of all"),
    "client without a name": (lambda _client: Client.connect("h:1", name=""), "name is a text that is not empty"),
    "keys": (lambda client: anext(client.admin().group_keys("t", "g", partition=10**11)), "partition is between 0 and"),
}


@pytest.mark.parametrize("name", OPENING)
async def test_a_wrong_argument_is_named(name: str) -> None:
    call, text = OPENING[name]
    async with running(1) as cluster, Client.connect(cluster.brokers[0].address) as client:
        cluster.create_topic("t", 1)
        with pytest.raises(BadRequestError) as caught:
            await call(client)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (TopicSettings, {"x": 1}, "a topic has no option x: the options are flush, "),
        (TopicSettings, {"retention": 1}, "a topic has no option retention: did you mean retention_ms?"),
        (GroupSettings, {"retries": 3}, "a consumer group has no option retries: did you mean retry?"),
        (RetryPolicy, {"atempts": 3}, "a retry policy has no option atempts: did you mean attempts_max?"),
        (ProducerSettings, {"acks": "all"}, "a producer has no option acks: did you mean ack_level?"),
        (ConsumerSettings, {"y": 1}, "a consumer has no option y: the options are "),
    ],
)
def test_settings_name_the_option_that_was_meant(kind: type, options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        kind(**options)
    assert text in caught.value.message


def test_settings_can_be_changed_compared_and_pickled_as_ever() -> None:
    settings = replace(TopicSettings(False, retention_ms=5_000), chain_width=2)
    assert settings == TopicSettings(flush=False, retention_ms=5_000, chain_width=2) != TopicSettings()
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(BadRequestError, match="did you mean chain_width"):
        replace(settings, chainwidth=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("mode", ["exclusive", "key_ordered", "broadcast"])
@pytest.mark.parametrize("name", ["", 5])
async def test_a_consumer_has_a_name_or_gets_one(mode: Any, name: Any) -> None:
    async with running(1) as cluster, Client.connect(cluster.brokers[0].address) as client:
        with pytest.raises(IllegalNameError, match="leave the name out to get one"):
            client.consumer("t", "g", mode=mode, name=name)


@pytest.mark.parametrize("name", [None, 5, b"t"])
async def test_a_name_is_text(name: Any) -> None:
    async with running(1) as cluster, Client.connect(cluster.brokers[0].address) as client:
        with pytest.raises(IllegalNameError):
            await client.producer(name)
        with pytest.raises(IllegalNameError):
            await client.consumer("t", name)


async def test_a_consumer_goes_on_after_wrong_arguments() -> None:
    async with running(1) as cluster, Client.connect(cluster.brokers[0].address) as client:
        cluster.create_topic("t", 1)
        async with client.producer("t") as producer, client.consumer("t", "g") as consumer:
            await (await producer.send(b"m"))
            wrong: list[Callable[[], Any]] = [
                lambda: consumer.fetch(0),
                lambda: consumer.fetch("all"),  # type: ignore[arg-type]
                lambda: consumer.fetch(1, None),  # type: ignore[arg-type]
                lambda: consumer.fetch(1, -1),
                lambda: consumer.fetch(1, float("nan")),
                lambda: consumer.fetch_table("soon"),  # type: ignore[arg-type]
                lambda: consumer.ack(None),  # type: ignore[arg-type]
                lambda: consumer.ack(b"m"),  # type: ignore[arg-type]
            ]
            for call in wrong:
                with pytest.raises(BadRequestError):
                    await call()
            (message,) = await consumer.fetch(1, 5)
            assert await consumer.ack(message)


@pytest.mark.parametrize(
    "bootstrap",
    [
        "https://a:7000",
        "http://a:7000/",
        "a",
        "a:0",
        "a:x",
        "a b:7000",
        "a:7000;b:7000",
        "u@a:7000",
        5,
        None,
        b"a:7000",
        [5],
    ],
)
def test_addresses_are_checked_before_anything_is_dialed(bootstrap: Any) -> None:
    with pytest.raises(SeriatimError) as caught:
        Client.connect(bootstrap)
    assert "bootstrap is host:port" in caught.value.message
    assert ("leave https:// out" in caught.value.message) == ("://" in str(bootstrap))
