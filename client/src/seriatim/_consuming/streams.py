"""The streams of one consumer: one to each broker that serves it, shared by the partitions that are served there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import broker_pb2

from seriatim._consuming.servers import Servers
from seriatim._transport.channels import Channels
from seriatim._transport.consume import ConsumeLink

if TYPE_CHECKING:
    from seriatim._consuming.subscription import Subscription

PING_S: Final = 0.5
"""Between two heartbeats of a stream. Its broker answers them from memory: an idle consumer costs no question."""

SILENCE_S: Final = 1.0
"""A stream that brought nothing for so long, answers to heartbeats included, is checked on: another broker is asked who
serves one of its partitions. Brokers of version 0.2 and older answer no heartbeats: from them an idle stream is silent
as well, so silence alone proves nothing."""

ALIVE_US: Final = 1_000_000
"""The subscriptions of a stream hear so often that the broker answers: less often than it does, since they are many."""

DRAIN_DEADLINE_S: Final = 1.0
"""For the last requests at the end. A broker that has not read them by then finds the stream broken off."""


class Streams:
    """Opens streams, hands what comes to the subscriptions, and leaves servers that have gone silent.

    Args:
        channels: Where connections come from.
        servers: Asked about silent ones.
        client_name: For the brokers.
        credit_bytes: What each broker may send at first before the application has taken it.
        credit_bytes_max: What it may send if the application takes it fast.
        session_ms: A stream that brought nothing for so long is given up.
        failed: Told of an unexpected exception in the watch over silent streams.
    """

    def __init__(
        self,
        channels: Channels,
        servers: Servers,
        client_name: str,
        credit_bytes: int,
        credit_bytes_max: int,
        session_ms: int,
        failed: Callable[[BaseException], Any],
    ) -> None:
        self._session_ms = session_ms
        self._session_s = session_ms / 1000
        self._channels = channels
        self._servers = servers
        self._client_name = client_name
        self._credit = (credit_bytes, credit_bytes_max)
        self._subscriptions: dict[int, Subscription] = {}
        self._links: dict[str, ConsumeLink] = {}
        self._stream_count = 0
        self._failed = failed
        self._doubted: set[Subscription] = set()  # their servers are not sure of the serving right
        self._watches = (
            asyncio.create_task(self._watch_silence(), name="consumer watch"),
            asyncio.create_task(self._ping_all(), name="consumer heartbeats"),
        )
        for watch in self._watches:
            watch.add_done_callback(self._watch_ended)

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def register(self, subscription: Subscription) -> None:
        """Hand it what comes for its partition."""
        self._subscriptions[subscription.number] = subscription

    def open(self, address: str) -> ConsumeLink | None:
        """The stream to a server, if it is up; else all subscriptions hear of it when it is, or is not to be had."""
        link = self._links.get(address)
        if link is None:
            self._stream_count += 1
            self._links[address] = ConsumeLink(
                self._channels, self, address, self._stream_count, self._client_name, *self._credit
            )
            return None
        return link if link.is_up else None

    def write(self, stream: int, request: broker_pb2.ConsumeRequest) -> None:
        """Send a request, if the stream is not over."""
        for link in self._links.values():
            if link.stream == stream:
                link.write(request)

    def stop(self) -> None:
        """End all streams at once. The brokers take that as leaving."""
        for watch in self._watches:
            watch.cancel()
        for link in self._links.values():
            link.stop()

    async def close(self) -> None:
        """Have the brokers read what was written, and end all streams, also if cancelled."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        links = list(self._links.values())
        try:
            async with asyncio.timeout(DRAIN_DEADLINE_S):
                await asyncio.gather(*(link.drain() for link in links))
        except TimeoutError:
            pass
        finally:
            self.stop()
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
        """The broker said something of a subscription, or answered a heartbeat."""
        if event.HasField("pong"):
            self._answered(link, event.pong)
            return
        if event.HasField("joined") and event.joined.answers_pings:
            link.answers_pings = True
        subscription = self._subscriptions.get(event.subscription >> 32)
        if event.HasField("batches"):
            if subscription is None or not subscription.delivered(link, event, batches):
                for header, _ in batches:
                    link.give_credit(HEADER_SIZE_BYTES + header.body_length)
        elif subscription is not None:
            subscription.told(event)

    # ---- heartbeats, and silence ---------------------------------------------------------------------

    async def _ping_all(self) -> None:
        """Ask every stream for signs of life. Apart from the questions about silent ones, which take their time."""
        while True:
            await asyncio.sleep(PING_S)
            for link in self._links.values():
                if link.is_up and link.answers_pings:
                    link.ping(self._session_ms)

    def _answered(self, link: ConsumeLink, pong: broker_pb2.Pong) -> None:
        for number in pong.unserved:
            subscription = self._subscriptions.get(number >> 32)
            if subscription is not None and subscription.core.subscription == number:
                self._doubted.add(subscription)
        if pong.number - link.told_alive_at_us >= ALIVE_US:
            link.told_alive_at_us = pong.number
            for subscription in self._subscriptions.values():
                subscription.answered(link, pong.number)

    async def _watch_silence(self) -> None:
        """Find out whether a silent stream still leads to the server, and whether a doubtful server is still one."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SILENCE_S / 2)
            for link in list(self._links.values()):
                silence_s = loop.time() - link.heard_at if link.is_up else 0.0
                if silence_s >= self._session_s:
                    await self._give_up(link)  # no broker could say who serves; what comes on it later is too old
                elif silence_s >= SILENCE_S:
                    await self._check_on(link)
            if self._doubted:
                subscription = self._doubted.pop()
                self._doubted.clear()  # those that are in doubt still are named by the next answer
                link_of = self._link_of(subscription)
                if link_of is not None:
                    await self._check(link_of, subscription)

    async def _check_on(self, link: ConsumeLink) -> None:
        for subscription in self._subscriptions.values():
            if self._link_of(subscription) is link:
                await self._check(link, subscription)
                return

    def _link_of(self, subscription: Subscription) -> ConsumeLink | None:
        """The stream that a subscription is served by; None if it is not joined."""
        served = subscription.core.place
        return self._links.get(served.address) if served is not None and subscription.is_joined else None

    async def _check(self, link: ConsumeLink, subscription: Subscription) -> None:
        place = await self._servers.ask(subscription.partition_id, subscription.start_at, None, link.address)
        served = subscription.core.place
        assert served is not None, "it is only ever replaced"
        if place is not None and (place.segment, place.server_epoch) > (served.segment, served.server_epoch):
            await self._give_up(link)  # another has the right: this one is frozen, or cut off from us
        elif place is not None and not link.answers_pings:
            link.heard_at = asyncio.get_running_loop().time()

    async def _give_up(self, link: ConsumeLink) -> None:
        link.give_up()
        await link.close()
