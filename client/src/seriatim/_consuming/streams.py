"""The streams of one consumer: one to each broker that serves it. The partitions that a broker serves share it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from seriatim_api.batch import HEADER_SIZE_BYTES, BatchHeader
from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import broker_pb2

from seriatim._consuming.servers import Servers
from seriatim._core.consumer_types import Place
from seriatim._core.joining import Joining
from seriatim._transport.carriages import Carriages
from seriatim._transport.consume import ConsumeLink
from seriatim._values.settings import Credit, Start

PING_S: Final = 0.5
"""Seconds between two heartbeats of a stream. The broker answers them from memory. So an idle
consumer does not have to ask another broker for the server."""

FAR_S: Final = 0.04
"""A broker whose round trip takes this many seconds is far. A near one that is busy answers sooner."""

SILENCE_S: Final = 1.0
"""If nothing came on a stream for this many seconds, not even an answer to a heartbeat, the client checks the
stream: it asks another broker for the server of one of the stream's partitions. A busy broker may be as silent."""

ALIVE_US: Final = 1_000_000
"""The least time (µs) between two reports to the subscriptions that the broker of a stream answers. They do not hear of
each answer, because there may be many subscriptions."""

DRAIN_DEADLINE_S: Final = 1.0
"""Seconds for which `close` waits until the brokers have read the last requests. Then it cancels the streams."""


class Subscriber(Protocol):
    """One partition, as the streams see it: they give it the events of its subscription.

    Attributes:
        number: The partition's number in the topic.
        partition_id: Its id.
        start_at: Where the consumer group begins if it has no cursor.
    """

    number: int
    partition_id: int
    start_at: Start

    @property
    def core(self) -> Joining:
        """Has the server, and the number of the subscription."""

    @property
    def is_joined(self) -> bool:
        """Whether the server knows this consumer."""

    def link_up(self, link: ConsumeLink) -> None:
        """A stream is up."""

    def link_down(self, link: ConsumeLink, reason: SeriatimError) -> None:
        """A stream has ended, or could not be opened."""

    def answered(self, link: ConsumeLink, sent_at_us: int) -> None:
        """The broker of a stream answered a heartbeat."""

    def told(self, event: broker_pb2.DeliveryEvent) -> None:
        """An event came that is not a delivery."""

    def delivered(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> bool:
        """A delivery came. Returns whether the application gets it."""


class Streams:
    """Opens streams, gives events to the subscriptions, and ends streams whose broker is not the server any more.

    Args:
        carriages: Opens streams.
        servers: Asks brokers for servers.
        client_name: The client's name in the brokers' logs.
        credit: Bytes that a broker may send while the application has not taken them.
        session_ms: If nothing came on a stream for this time, the client ends the stream.
        failed: Called with an unexpected exception of one of the two tasks: heartbeats, and the watch over silence.
    """

    def __init__(
        self,
        carriages: Carriages,
        servers: Servers,
        client_name: str,
        credit: Credit,
        session_ms: int,
        failed: Callable[[BaseException], Any],
    ) -> None:
        self._session_ms = session_ms
        self._session_s = session_ms / 1000
        self._carriages = carriages
        self._servers = servers
        self._client_name = client_name
        self._credit = credit
        self._subscriptions: dict[int, Subscriber] = {}
        self._links: dict[str, ConsumeLink] = {}
        self._stream_count = 0
        self._failed = failed
        self._doubted: set[Subscriber] = set()  # their broker answered that it may not deliver to them now
        self._behind: dict[Subscriber, Place] = {}  # their consumer groups have continued, and they were not notified
        self._watches = (
            asyncio.create_task(self._watch_silence(), name="consumer watch"),
            asyncio.create_task(self._ping_all(), name="consumer heartbeats"),
        )
        for watch in self._watches:
            watch.add_done_callback(self._watch_ended)

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def register(self, subscription: Subscriber) -> None:
        """Give the subscription all events of its partition from now on."""
        self._subscriptions[subscription.number] = subscription

    def expect(self, addresses: Iterable[str]) -> None:
        """Open streams to brokers that probably are servers, if they are far. Meanwhile brokers are asked for these.

        A stream that no subscription comes to use ends after a session, because no heartbeat keeps it. Without it:

        1. Brokers are 100 ms away. The question for the server of a new consumer group takes 1.2 s.
        2. Only then the stream is opened. That takes two round trips, 0.4 s.
        3. The consumer gets its first message 0.4 s later than it could.
        """
        for address in dict.fromkeys(addresses):
            if self._carriages.channels.round_trips.known_s(address) >= FAR_S:
                self.open(address)

    def open(self, address: str) -> ConsumeLink | None:
        """The stream to a server, if it is up. If not, open it: all subscriptions learn when it is up or has ended."""
        link = self._links.get(address)
        if link is None:
            self._stream_count += 1
            self._links[address] = ConsumeLink(
                self._carriages, self, address, self._stream_count, self._client_name, self._credit
            )
            return None
        return link if link.is_up else None

    def write(self, stream: int, request: broker_pb2.ConsumeRequest) -> None:
        """Send a request, unless the stream has ended."""
        for link in self._links.values():
            if link.stream == stream:
                link.write(request)

    def stop(self) -> None:
        """End all streams at once. For the brokers, this consumer has left."""
        for watch in self._watches:
            watch.cancel()
        for link in self._links.values():
            link.stop()

    async def close(self) -> None:
        """Wait for at most `DRAIN_DEADLINE_S` until the brokers have read all requests, and end all streams.

        If the call is cancelled, all streams end at once.
        """
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
        """A stream is up: the subscriptions that wait for it join.

        A broker waits long for a consumer that has sent no heartbeat, so one goes ahead. Without it: 1. A consumer
        joins, and is frozen within `PING_S`. 2. It stays the active one, and no standby is given anything.
        """
        link.ping(self._session_ms)
        for subscription in self._subscriptions.values():
            subscription.link_up(link)

    def consume_link_down(self, link: ConsumeLink, reason: SeriatimError) -> None:
        """A stream has ended."""
        if self._links.get(link.address) is link:
            del self._links[link.address]
        for subscription in self._subscriptions.values():
            subscription.link_down(link, reason)  # it asks for its server again, and opens a stream if it needs one

    def arrived(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> None:
        """An event of a subscription came, or the answer to a heartbeat."""
        if event.HasField("pong"):
            self._answered(link, event.pong)
            return
        subscription = self._subscriptions.get(event.subscription >> 32)
        if batches:
            if subscription is None or not subscription.delivered(link, event, batches):
                for header, _ in batches:
                    link.give_credit(HEADER_SIZE_BYTES + header.body_length)
        elif subscription is not None:
            subscription.told(event)

    # ---- heartbeats, and silence ---------------------------------------------------------------------

    async def _ping_all(self) -> None:
        """Send heartbeats on all streams. It has its own task, because `_watch_silence` waits for answers."""
        while True:
            await asyncio.sleep(PING_S)
            for link in self._links.values():
                if link.is_up:
                    link.ping(self._session_ms)

    def _answered(self, link: ConsumeLink, pong: broker_pb2.Pong) -> None:
        link.measured(pong)
        for number in pong.unserved:
            subscription = self._subscriptions.get(number >> 32)
            if subscription is not None and subscription.core.subscription == number:
                self._doubted.add(subscription)
        if pong.number - link.told_alive_at_us >= ALIVE_US:
            link.told_alive_at_us = pong.number
            for subscription in self._subscriptions.values():
                subscription.answered(link, pong.number)

    async def _watch_silence(self) -> None:
        """Check whether a broker is still the server: if its stream is silent, or if it says that it may not be."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SILENCE_S / 2)
            for link in list(self._links.values()):
                silence_s = loop.time() - link.heard_at if link.is_up else 0.0
                if silence_s >= self._session_s:
                    await self._give_up(link)  # the session is over: what still comes on this stream does not count
                elif silence_s >= SILENCE_S:
                    await self._check_on(link)
            if self._doubted:
                subscription = self._doubted.pop()
                self._doubted.clear()  # the next answer to a heartbeat names those that are still in doubt
                link_of = self._link_of(subscription)
                if link_of is not None:
                    await self._check(link_of, subscription)

    async def _check_on(self, link: ConsumeLink) -> None:
        for subscription in self._subscriptions.values():
            if self._link_of(subscription) is link:
                await self._check(link, subscription)
                return

    def _link_of(self, subscription: Subscriber) -> ConsumeLink | None:
        """The stream of a subscription's server; None if the subscription is not joined."""
        served = subscription.core.place
        return self._links.get(served.address) if served is not None and subscription.is_joined else None

    async def _check(self, link: ConsumeLink, subscription: Subscriber) -> None:
        """Ask another broker for the server, and give the stream up if its broker is not the server any more.

        Rule `crossing-is-told` (I13): a broker reports by itself that the consumer group continued to the next segment.
        The stream is given up only if the broker has not reported it when the stream is in doubt once more. Without it:
        1. A heartbeat's answer says that the broker may not deliver now: it has just begun. The client asks another.
        2. Meanwhile the consumer group continues to the next segment. The question's answer names that segment, and the
           broker's own news are on their way: 25 ms.
        3. The client gives the stream up, with all other partitions on it, and complains of a healthy broker.
        """
        place = await self._servers.ask(subscription.partition_id, subscription.start_at, None, link.address)
        served = subscription.core.place
        assert served is not None, "a place is replaced, but never removed"
        if place is None or self._link_of(subscription) is not link:
            return  # the news came meanwhile: it has left this stream
        is_silent = asyncio.get_running_loop().time() - link.heard_at >= SILENCE_S
        if (place.segment, place.server_epoch) <= (served.segment, served.server_epoch):
            return
        if is_silent or (place.address != link.address and place.segment == served.segment):
            await self._give_up(link)  # another broker is the server: this one is frozen, or cut off
        elif self._behind.get(subscription) == served:
            await self._give_up(link)
        else:
            # Each one is kept, because another one may be looked at in between, again and again.
            self._behind = {one: place for one, place in self._behind.items() if one.core.place == place}
            self._behind[subscription] = served
            self._doubted.discard(subscription)  # what comes later may say it again

    async def _give_up(self, link: ConsumeLink) -> None:
        link.give_up()
        await link.close()
