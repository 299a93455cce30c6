"""What type checkers know of `seriatim.sync`, whose methods are made from asynchronous ones: `make types` checks it.

Nothing runs it. Where a comment lets an error pass, the checker complains if there is none.
"""

from collections.abc import Iterator
from typing import assert_type

from seriatim import Chain, GroupKey, Message, Receipt, Topic, sync


def results(client: sync.Client, admin: sync.Admin, reader: sync.RangeReader) -> None:
    """Methods give what the asynchronous ones give, or the synchronous class for it."""
    with client.producer("t", linger_ms=5) as producer:
        assert_type(producer, sync.Producer)
        assert_type(producer.send(b"v", key=b"k").result(timeout_s=1), Receipt)
        assert_type(producer.send(b"v", delay_ms=5).result().due_ms, int | None)
        assert_type(producer.send_many([b"v", b"w"], partition=0, due_ms=[None, 7]), sync.Deliveries)
    assert_type(client.consumer("t", "g"), sync.Consumer)
    assert_type(client.consumer("t", "g", mode="shared"), sync.KeyedConsumer)
    for message in client.consumer("t", "g"):
        assert_type(message, Message)
    assert_type(client.writer("t", "w").open(timeout_s=1), int | None)
    assert_type(reader.fetch(), list[Message])
    assert_type(admin.create_topic("t", 3), Topic)
    assert_type(admin.watch_chain("t", 0), Iterator[Chain])
    assert_type(admin.group_keys("t", "g", states=["parked"]), Iterator[GroupKey])


def mistakes(client: sync.Client, admin: sync.Admin, message: sync.KeyedMessage) -> None:
    """Wrong arguments are errors."""
    client.producer("t", lingering=5)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    client.offsets("t", "middle")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    client.read_range("t", 0, credit="all")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    admin.create_topic()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    admin.rewind_group("t", "g", "earliest", [0])  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    message.nack(1.0, "busy", True)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    admin.dead_letters("t", key="k")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
