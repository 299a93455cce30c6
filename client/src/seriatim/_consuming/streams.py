"""The streams of one consumer: one to each broker that serves it, shared by the partitions that are served there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import broker_pb2

from seriatim._consuming.servers import Servers
from seriatim._transport.channels import Channels
from seriatim._transport.consume import ConsumeLink

if TYPE_CHECKING:
    from seriatim._consuming.subscription import Subscription

SILENCE_S: Final = 1.0
"""A stream that brought nothing for so long is checked on: another broker is asked who serves one of its partitions.
An idle partition is silent as well, so silence alone proves nothing."""

DRAIN_DEADLINE_S: Final = 1.0
"""For the last requests at the end. A broker that does not read them finds the stream closed instead."""


class Streams:
    """Opens streams, hands what comes to the subscriptions, and leaves servers that have gone silent.

    Args:
        channels: Where connections come from.
        servers: Asked about silent ones.
        client_name: For the brokers.
        credit_bytes: What each broker may send before the application has taken it.
    """

    def __init__(self, channels: Channels, servers: Servers, client_name: str, credit_bytes: int) -> None:
        self._channels = channels
        self._servers = servers
        self._client_name = client_name
        self._credit_bytes = credit_bytes
        self._subscriptions: dict[int, Subscription] = {}
        self._links: dict[str, ConsumeLink] = {}
        self._stream_count = 0
        self._watch = asyncio.create_task(self._watch_silence(), name="consumer watch")

    def register(self, subscription: Subscription) -> None:
        """Hand it what comes for its partition."""
        self._subscriptions[subscription.number] = subscription

    def open(self, address: str) -> ConsumeLink | None:
        """The stream to a server, if it is up; else all subscriptions hear of it when it is, or is not to be had."""
        link = self._links.get(address)
        if link is None:
            self._stream_count += 1
            self._links[address] = ConsumeLink(
                self._channels, self, address, self._stream_count, self._client_name, self._credit_bytes
            )
            return None
        return link if link.is_up else None

    def write(self, stream: int, request: broker_pb2.ConsumeRequest) -> None:
        """Send a request, if the stream is not over."""
        for link in self._links.values():
            if link.stream == stream:
                link.write(request)

    async def close(self) -> None:
        """Send what was written, and end all streams."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        links = list(self._links.values())
        try:
            async with asyncio.timeout(DRAIN_DEADLINE_S):
                await asyncio.gather(*(link.drain() for link in links))
        except TimeoutError:
            pass
        await asyncio.gather(*(link.close() for link in links))

    # ---- from the links ------------------------------------------------------------------------------

    def consume_link_up(self, link: ConsumeLink) -> None:
        """A stream is up: those who wait for it join."""
        for subscription in self._subscriptions.values():
            subscription.link_up(link)

    def consume_link_down(self, link: ConsumeLink, reason: SeriatimError) -> None:
        """A stream is over."""
        del reason  # what to do is the same; the next question tells whether it was for good
        if self._links.get(link.address) is link:
            del self._links[link.address]
        for subscription in self._subscriptions.values():
            subscription.link_down(link)

    def arrived(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> None:
        """The broker said something of a subscription."""
        subscription = self._subscriptions.get(event.subscription >> 32)
        if event.HasField("batches"):
            if subscription is None or not subscription.delivered(link, event, batches):
                for header, _ in batches:
                    link.give_credit(HEADER_SIZE_BYTES + header.body_length)
        elif subscription is not None:
            subscription.told(event)

    # ---- silence -------------------------------------------------------------------------------------

    async def _watch_silence(self) -> None:
        """Find out whether a silent stream still leads to the server."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SILENCE_S / 2)
            for link in list(self._links.values()):
                if link.is_up and loop.time() - link.heard_at >= SILENCE_S:
                    await self._check_on(link)

    async def _check_on(self, link: ConsumeLink) -> None:
        for subscription in self._subscriptions.values():
            served = subscription.core.place
            if served is None or served.address != link.address or not subscription.is_joined:
                continue
            place = await self._servers.ask(subscription.partition_id, subscription.start_at, None, link.address)
            served = subscription.core.place
            assert served is not None, "it is only ever replaced"
            if place is not None and (place.segment, place.server_epoch) > (served.segment, served.server_epoch):
                link.give_up()  # another has the right: this one is frozen, or cut off from us
                await link.close()
            else:
                link.heard_at = asyncio.get_running_loop().time()
            return
