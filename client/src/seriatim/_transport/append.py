"""Append streams: one for each broker, shared by all producers and partitions of a client.

A link joins the batches that are ready into frames, and gives replies to the partitions that sent. It says whether it
has room within the broker's credit; it does not refuse a batch. The producer's core decides what is sent and resent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from google.protobuf.message import DecodeError
from seriatim_api.errors import SeriatimError
from seriatim_api.protocol import PROTOCOL, check_protocol, says_another_protocol
from seriatim_api.v1 import broker_pb2
from seriatim_api.wire.frames import AppendEntry, FrameError, append_frame_pieces

from seriatim._core.distance import distance_of
from seriatim._transport.carriage import Carriage
from seriatim._transport.carriages import Carriages
from seriatim._transport.warm_streams import WarmStreams

FRAME_BYTES_MAX: Final = 512 << 10
"""The largest frame, in bytes. Frames of this size use the full rate of a stream; larger ones only add delay."""

OPEN_DEADLINE_S: Final = 1.0
"""Seconds from the first byte to the broker's credit, besides the way to the broker. A frozen process accepts
connections and sends nothing."""

SILENCE_S: Final = 3.0
"""If answers are due on a link and nothing comes for this many seconds, it is given up, and its connection too."""

SUSPICIOUS_S: Final = 0.25
"""If answers are due and nothing comes for this many seconds and two round trips, another broker is asked whether the
partition has moved. By then the slave of a frozen master has begun a switch. It is a question and not a complaint, and
is about one partition of the link."""

STREAM_BYTES_NEAR: Final = 8 << 20
"""The most bytes on a link without an answer, over all partitions, to a broker that is near. Over a distance it is more
(`_core.distance`), up to the broker's credit."""

BATCHES_MAX: Final = 128
"""The most batches on a link without an answer, over all partitions, to a broker that is near. With a thousand
partitions this limit makes batches grow, because a partition that waits for its turn gathers messages meanwhile."""

CALM_BATCHES: Final = 16
"""Below this many unanswered batches a link to a broker that is near is calm, and a small batch is sent at once.
Otherwise small batches wait to become larger."""

PACE_S: Final = 0.0005
"""The rough cost of a small batch for a client and a broker, in seconds. The more partitions wait, the longer each may
gather messages."""

GATHER_S_MAX: Final = 1.0


class AppendUser(Protocol):
    """A producer's partition, as a link sees it. Its methods never raise, because a link has other users too."""

    def link_up(self, link: AppendLink) -> None:
        """The link for which this user asked is up."""

    def link_down(self, address: str, stream: int | None) -> None:
        """A link has ended, or (with `stream` None) could not be opened."""

    def link_refused(self, error: SeriatimError) -> None:
        """The broker speaks another protocol: it takes no link of this client."""

    def replied(self, reply: broker_pb2.AppendReply) -> None:
        """One of the user's batches was answered."""

    def link_has_room(self) -> None:
        """The link has room again, after this user found none."""

    def link_is_silent(self, link: AppendLink) -> None:
        """Answers are due on the link, and none comes: ask whether the partition has moved."""


class Credits(NamedTuple):
    """The limits that the broker sets for the stream."""

    stream_bytes: int
    partition_bytes: int
    batch_bytes: int
    window_batches: int


class AppendLink:
    """One stream to one broker, from its opening to its end."""

    is_finishing = False

    def __init__(self, links: AppendLinks, address: str, stream: int) -> None:
        self._links = links
        self.address = address
        self.stream = stream
        self.credits: Credits | None = None
        self.distance = distance_of(0)
        self.users: dict[AppendUser, None] = {}  # the partitions that sent on it, or wait for it
        self.waiting_for_room: dict[AppendUser, None] = {}
        self.waiting_for_calm: dict[AppendUser, None] = {}
        self._rows: deque[tuple[AppendEntry, bytes, bytes]] = deque()
        self._carriage: Carriage | None = None  # set when the stream is opened
        self._unanswered: dict[tuple[int, bytes, int, int], int] = {}
        self._unanswered_bytes = 0
        self._heard_at = 0.0
        self._is_watched = asyncio.Event()  # cleared while the watch waits for a batch
        self._is_watched.set()

    @property
    def is_up(self) -> bool:
        """Whether batches may be written."""
        return self.credits is not None

    @property
    def has_room(self) -> bool:
        """Whether another batch fits into the stream's credit."""
        return (
            self.credits is not None
            and len(self._unanswered) < self._batches_max
            and self._unanswered_bytes
            < min(self.credits.stream_bytes, STREAM_BYTES_NEAR + self.distance.link_bytes) - self.credits.batch_bytes
        )

    @property
    def _batches_max(self) -> int:
        return BATCHES_MAX + self.distance.link_batches

    @property
    def _calm_batches(self) -> int:
        return CALM_BATCHES + self.distance.link_batches

    @property
    def is_calm(self) -> bool:
        """Whether a small batch may be sent at once."""
        return len(self._unanswered) < self._calm_batches

    @property
    def gather_s(self) -> float:
        """How many seconds a small batch may wait to become larger, unless the link becomes calm before."""
        return min(GATHER_S_MAX, PACE_S * (len(self.waiting_for_calm) + len(self.waiting_for_room)))

    def write(
        self, entry: AppendEntry, partition_id: int, producer: bytes, base_sequence: int, header: bytes, body: bytes
    ) -> None:
        """Queue a batch for the next frame. The windows of the users limit the queue."""
        size = len(header) + len(body)
        if not self._unanswered:
            self._heard_at = asyncio.get_running_loop().time()
            self._is_watched.set()
        self._unanswered[partition_id, producer, base_sequence, entry.run] = size
        self._unanswered_bytes += size
        self._rows.append((entry, header, body))
        assert self._carriage is not None, "batches are written on a link that is up"
        self._carriage.wake()

    async def run(self) -> None:
        """Open the stream and serve it until it ends. The users are told when it is up and when it has ended."""
        refusal: SeriatimError | None = None
        try:
            await self._open()
            await self._serve()
        except (TimeoutError, DecodeError, FrameError):
            if self._carriage is not None:
                self._carriage.give_up()
        except SeriatimError as exc:  # its users open another link, or ask where to
            refusal = exc.with_traceback(None) if says_another_protocol(exc) else None
        finally:
            # This also runs if the link's own code failed. Its users then open another link and resend their batches.
            if self._carriage is not None:
                self._carriage.close()
            self._links.ended(self, refusal)

    async def _open(self) -> None:
        hello = broker_pb2.ClientHello(protocol=PROTOCOL, client=self._links.client_name, is_warm=not self.users)
        async with asyncio.timeout(OPEN_DEADLINE_S + self._links.channels.round_trips.way_s(self.address)):
            self._carriage = await self._links.carriages.choose(self.address, "append")
            await self._carriage.open(hello)
            first = await self._carriage.read()
        self.distance = distance_of(self._carriage.round_trip_us)
        credit = broker_pb2.AppendReplies.FromString(first).credit
        check_protocol(credit.protocol, f"the broker at {self.address}", "this client")
        self.credits = Credits(
            credit.stream_bytes_max, credit.partition_bytes_max, credit.batch_bytes_max, credit.window_batches_max
        )
        self._links.opened(self)

    async def _serve(self) -> None:
        assert self._carriage is not None
        tasks = [
            asyncio.create_task(self._carriage.carry(self), name=f"append carriage {self.address}"),
            asyncio.create_task(self._watch(), name=f"append watch {self.address}"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def next_frame(self) -> Sequence[bytes | memoryview] | None:
        """See `CarriedStream`."""
        if not self._rows:
            return None
        rows: list[tuple[AppendEntry, bytes, bytes]] = []
        size = 0
        while self._rows and (not rows or size + len(self._rows[0][2]) <= FRAME_BYTES_MAX):
            row = self._rows.popleft()
            rows.append(row)
            size += len(row[1]) + len(row[2])
        return append_frame_pieces(rows)

    def take(self, frame: bytes | memoryview) -> None:
        """See `CarriedStream`. The frame has answers."""
        silence = self._links.channels.silence
        self._heard_at = asyncio.get_running_loop().time()
        if silence.is_feared:
            silence.ends(self.address)
        for reply in broker_pb2.AppendReplies.FromString(bytes(frame)).replies:
            key = (reply.partition_id, reply.producer, reply.base_sequence, reply.run)
            self._unanswered_bytes -= self._unanswered.pop(key, 0)
            self._links.dispatch(reply)
        self._offer_room()

    def _offer_room(self) -> None:
        """Notify as many waiting users as can be served that there is room. They cut in the next turn of the loop."""
        count = len(self._unanswered)
        if self.has_room:
            _offer(self.waiting_for_room, self._batches_max - count)
        _offer(self.waiting_for_calm, self._calm_batches - count)

    async def _watch(self) -> None:
        """Watch a link that owes answers. If it is silent, ask about it; after `SILENCE_S`, give it up."""
        loop = asyncio.get_running_loop()
        pause_s = SUSPICIOUS_S / 2
        while True:
            await asyncio.sleep(pause_s)
            if not self._unanswered:  # perhaps for hours
                self._is_watched.clear()
                await self._is_watched.wait()
                pause_s = SUSPICIOUS_S
                continue
            silent_s = loop.time() - self._heard_at
            pause_s = SUSPICIOUS_S / 2
            suspicious_s = SUSPICIOUS_S + 2 * self._links.channels.round_trips.round_trip_s(self.address)
            if silent_s < suspicious_s:
                pause_s = min(pause_s, suspicious_s - silent_s)
                continue
            if silent_s > SILENCE_S:
                raise TimeoutError(f"the broker sent no answer for {SILENCE_S:.0f} s")
            user = self._links.user_of(*next(iter(self._unanswered))[:2])
            if user is not None:
                user.link_is_silent(self)


def _offer(waiting: dict[AppendUser, None], count: int) -> None:
    for user in list(islice(waiting, max(0, count))):
        del waiting[user]
        user.link_has_room()


def report_unexpected(task: asyncio.Task[None]) -> None:
    """Report a task that failed to the event loop. A link's task ends by itself or is cancelled; all else is a bug."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": f"{task.get_name()} failed", "exception": error})


class AppendLinks:
    """The links of a client, by address."""

    def __init__(self, carriages: Carriages, client_name: str) -> None:
        self.carriages = carriages
        self.channels = carriages.channels
        self.client_name = client_name
        self._links: dict[str, AppendLink] = {}
        self._tasks: dict[AppendLink, asyncio.Task[None]] = {}
        self._users: dict[tuple[int, bytes], AppendUser] = {}
        self._stream_count = 0
        self._closed = False
        self._warm_streams = WarmStreams(self._stay_open)

    def register(self, partition_id: int, producer: bytes, user: AppendUser) -> None:
        """Give the replies for this producer on this partition to `user`."""
        assert (partition_id, producer) not in self._users
        self._users[partition_id, producer] = user

    def forget(self, partition_id: int, producer: bytes) -> None:
        """Give out no more replies for this producer on this partition."""
        user = self._users.pop((partition_id, producer), None)
        if user is not None:
            for link in self._links.values():
                link.users.pop(user, None)
                link.waiting_for_room.pop(user, None)
                link.waiting_for_calm.pop(user, None)

    def user_of(self, partition_id: int, producer: bytes) -> AppendUser | None:
        """The user that sends the batches of this producer to this partition."""
        return self._users.get((partition_id, producer))

    def open(self, address: str, user: AppendUser) -> AppendLink | None:
        """The link, if it is up. Else open it; `user` is notified by `link_up` or `link_down`."""
        assert not self._closed
        link = self._links.get(address) or self._begin(address)
        link.users[user] = None
        return link if link.is_up else None

    def _begin(self, address: str) -> AppendLink:
        self._stream_count += 1
        link = AppendLink(self, address, self._stream_count)
        task = asyncio.create_task(link.run(), name=f"append link {address}")
        self._links[address], self._tasks[link] = link, task
        task.add_done_callback(partial(self._task_ended, link))
        return link

    def warm(self, address: str) -> None:
        """Keep a link to a broker that may take over next. It only saves time later; see `warm_streams`."""
        self.channels.warm(address)
        self._warm_streams.keep(address)

    async def _stay_open(self, address: str) -> None:
        """See `WarmStreams`."""
        try:
            has_port = await self.carriages.has_port(address, "append")
        except SeriatimError:
            self.channels.rest(address)  # the broker may be gone for good
            raise
        if not has_port:
            return
        link = self._links.get(address) or self._begin(address)
        task = self._tasks[link]
        try:
            await asyncio.wait([task])
        finally:
            if not (link.users or self._closed):
                self._end_unused(link)

    def _end_unused(self, link: AppendLink) -> None:
        """End a link that no partition uses.

        It is forgotten at once, although it takes some turns of the event loop to end. Without it: 1. In one of these
        turns a partition moves to this broker. 2. It gets this link, and sends. 3. The link ends, and the partition
        complains of a healthy master.
        """
        task = self._tasks.get(link)
        if task is not None:  # else it has ended
            del self._links[link.address]
            task.cancel()

    def opened(self, link: AppendLink) -> None:
        """A link is up: notify its users."""
        for user in list(link.users):
            user.link_up(link)

    def _task_ended(self, link: AppendLink, task: asyncio.Task[None]) -> None:
        """A link's task has ended, for any reason. Its users must not wait for it any more."""
        report_unexpected(task)
        if link in self._tasks:
            self.ended(link)

    def ended(self, link: AppendLink, refusal: SeriatimError | None = None) -> None:
        """A link has ended: notify its users. `refusal`: the broker speaks another protocol."""
        if self._links.get(link.address) is link:
            del self._links[link.address]
        stream = link.stream if link.is_up else None
        link.credits = None
        if not self._closed:
            for user in list(link.users):
                if refusal is not None:
                    user.link_refused(refusal)
                else:
                    user.link_down(link.address, stream)
        self._tasks.pop(link, None)

    def dispatch(self, reply: broker_pb2.AppendReply) -> None:
        """Give a reply to the user that sent the batch."""
        user = self.user_of(reply.partition_id, reply.producer)
        if user is not None:
            user.replied(reply)

    async def close(self) -> None:
        """End all links, and wait until their tasks have ended."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:  # before anything is awaited, because this call may be cancelled there
            task.cancel()
        await self._warm_streams.close()
        await asyncio.gather(*tasks, return_exceptions=True)
