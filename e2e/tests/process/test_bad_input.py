"""A broker gets bad input while it serves others.

It answers with a typed error, stores nothing, and disturbs no client.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from seriatim import Client
from seriatim_api import errors
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.frames import write_field
from seriatim_local import LocalCluster

from .traffic import traffic

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(60)]

DEADLINE_S = 10.0


async def garbage(address: str) -> None:
    """Send bytes with which no protocol begins. The broker hangs up, or ignores them until we hang up."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(random.Random(1).randbytes(4096))
    writer.write_eof()
    try:
        async with asyncio.timeout(DEADLINE_S):
            while await reader.read(4096):
                pass
    except ConnectionError:
        pass
    finally:
        writer.close()


async def first_frame(address: str, frame: bytes) -> errors.SeriatimError:
    """Send `frame` as the first frame of a stream of appends. Return the broker's error."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream("/seriatim.v1.Producing/Append")(timeout=DEADLINE_S)
        await call.write(frame)
        await call.done_writing()
        code, text, metadata = await call.code(), await call.details(), await call.trailing_metadata()
    assert code is not grpc.StatusCode.OK, "the stream was taken"
    return from_status(code, text, list(metadata or ()))


def hello(protocol: int) -> bytes:
    body = broker_pb2.ClientHello(protocol=protocol, client="test").SerializeToString()
    return b"".join(write_field(1, [body]))


async def test_garbage_and_unknown_versions_disturb_nobody(cluster: LocalCluster, tmp_path: Path) -> None:
    async with traffic(cluster, "garbage", tmp_path) as running:
        address = str(cluster.plan.broker(await running.master()).advertised)
        await garbage(address)
        assert isinstance(await first_frame(address, hello(99)), errors.UnsupportedVersionError)
        assert isinstance(await first_frame(address, b"\x00\xff not a frame"), errors.BadRequestError)
        assert isinstance(await first_frame(address, b""), errors.BadRequestError)
        await running.goes_on()


async def test_what_a_user_may_get_wrong_is_named_and_not_stored(cluster: LocalCluster, tmp_path: Path) -> None:
    async with traffic(cluster, "mistakes", tmp_path) as running, Client.connect(cluster.bootstrap) as client:
        wrong: list[tuple[type[errors.SeriatimError], Callable[[], Awaitable[object]]]] = [
            (errors.UnknownTopicError, lambda: begin(client, "nowhere")),
            (errors.IllegalNameError, lambda: begin(client, "not/a/name")),
            (errors.IllegalNameError, lambda: client.admin().create_topic("not/a/name")),
            (errors.TopicExistsError, lambda: client.admin().create_topic("mistakes", 2)),
            (errors.UnknownTopicError, lambda: client.admin().describe_topic("nowhere")),
            (errors.PartitionOutOfRangeError, lambda: client.admin().describe_chain("mistakes", 7)),
        ]
        for kind, ask in wrong:
            with pytest.raises(kind):
                await ask()
        async with client.producer("mistakes") as producer:
            with pytest.raises(errors.MessageTooLargeError):
                await producer.send(bytes(4 << 20))
            with pytest.raises(errors.PartitionOutOfRangeError):
                await producer.send(b"1", partition=7)
        await running.goes_on()


async def begin(client: Client, topic: str) -> None:
    """Begin to produce."""
    async with client.producer(topic):
        pass
