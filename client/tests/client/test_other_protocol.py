"""A client that speaks another protocol than the brokers ends with an error that says so, and blames no broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from seriatim import Client
from seriatim_api.errors import SeriatimError, UnsupportedVersionError
from seriatim_api.protocol import PROTOCOL
from seriatim_api.status import to_status

from .. import fake_broker
from ..fake_broker import FakeBroker, connected, running


async def test_a_producer_ends_and_opens_no_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule `refused-is-told`."""
    monkeypatch.setattr(fake_broker, "PROTOCOL", PROTOCOL - 1)
    async with connected() as (cluster, client), client.producer("t") as producer:
        delivery = await producer.send(b"x", partition=0)
        async with asyncio.timeout(5):
            with pytest.raises(SeriatimError, match=rf"speaks protocol {PROTOCOL - 1}.*Remedy: upgrade the broker at"):
                await delivery
        with pytest.raises(UnsupportedVersionError):
            await producer.send(b"y", partition=0)
    assert not cluster.complaints


@pytest.mark.parametrize("mode", ["exclusive", "key_ordered"])
async def test_a_consumer_ends(monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    refusal = UnsupportedVersionError("the client speaks protocol 2, and the broker speaks 1", protocol=2, spoken=1)

    async def refuse(_self: FakeBroker, _requests: object, context: Any) -> None:
        await context.read()
        code, text, metadata = to_status(refusal)
        await context.abort(code, text, metadata)

    monkeypatch.setattr(FakeBroker, "_consume", refuse)
    async with running() as cluster:
        cluster.create_topic("t")
        broker = cluster.brokers[0]
        broker.stream_port = 0
        async with Client.connect(broker.address) as client, client.consumer("t", "g", mode=mode) as consumer:
            async with asyncio.timeout(5):
                with pytest.raises(UnsupportedVersionError, match="the broker speaks 1"):
                    async for _ in consumer:
                        pass
