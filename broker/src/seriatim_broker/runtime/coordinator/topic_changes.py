"""Lets calls wait until a topic has grown, was deleted, or was made again.

A client that keeps a topic in use must hear of these within a second, also if it sends and reads nothing. A question
every second from each of a thousand idle clients would take a processor of a broker. So such a call waits here, for as
long as half a minute, and one watch on all topics wakes those that wait for the topic that changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog
from google.protobuf.message import DecodeError
from seriatim_api.v1 import records_pb2

from ...interfaces.coordinator import Coordinator
from .keys import Keys
from .mirror import mirror
from .topic_limits import TopicLimits

WAIT_S_MAX: Final = 60.0
"""The longest that one call may wait, in seconds."""

WAITING_MAX: Final = 10_000
"""The most calls that wait at once at one broker. Each takes about 20 KB, nearly all of it in gRPC: 200 MB in all. A
further call is answered at once, and its client asks again after 2 s."""

_log = structlog.get_logger(__name__)


class Known(NamedTuple):
    """What can change under a client: whether its topic is there, and with how many partitions."""

    incarnation: str
    partition_count: int


class TopicChanges:
    """Follows all topics in the coordinator, and wakes the calls that wait for one of them.

    Args:
        coordinator: It has the topics.
        keys: The names of its keys.
        is_connected: Whether the coordinator has answered this broker within the last seconds.
        limits: Gets the size limits of the topics.
    """

    def __init__(
        self, coordinator: Coordinator, keys: Keys, is_connected: Callable[[], bool], limits: TopicLimits
    ) -> None:
        self._limits = limits
        limits.is_current = lambda: self._is_followed and self._is_connected()
        self._coordinator = coordinator
        self._keys = keys
        self._is_connected = is_connected
        self._topics: dict[str, Known] = {}  # those that are ready, by name
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}  # by the topic's name
        self._waiting_count = 0
        self._is_followed = False

    @property
    def waiting_count(self) -> int:
        """How many calls wait now."""
        return self._waiting_count

    async def run(self) -> None:
        """Follow the topics until cancelled. Then all calls that wait are answered."""
        try:
            await mirror(self._coordinator, self._keys.topics, self._changed)
        finally:
            self._is_followed = False
            for name in list(self._waiting):
                self._wake(name)

    async def unchanged(self, name: str, known: Known, wait_s: float) -> bool:
        """Wait until a topic is another one than the client knows, at most for a time.

        Args:
            name: The topic's name.
            known: What the client knows of it.
            wait_s: Seconds to wait, at most `WAIT_S_MAX`.

        Returns:
            Whether the time is over and nothing has changed. If not, the coordinator must be asked: the topic may have
            changed, this broker may be stopping or cut off from the coordinator, or it may not know the topic yet, or
            as many calls wait as may.
        """
        if self._waiting_count >= WAITING_MAX or self._is_news(name, known):
            return False
        woken = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(name, {})
        waiting[woken] = None
        self._waiting_count += 1
        try:
            async with asyncio.timeout(min(wait_s, WAIT_S_MAX)):
                await woken
        except TimeoutError:
            # 1. This broker is cut off from the coordinator. Its watch tries again and again, and says nothing. 2. The
            # topic grows. 3. A consumer that waits here must not be notified for hours that nothing has changed.
            return self._is_connected()
        finally:
            self._waiting_count -= 1
            waiting.pop(woken, None)
            if not waiting and self._waiting.get(name) is waiting:
                del self._waiting[name]
        return False

    def _is_news(self, name: str, known: Known) -> bool:
        found = self._topics.get(name)
        if not self._is_followed or not self._is_connected():
            return True
        if found is None or found.incarnation != known.incarnation:
            return True
        return found.partition_count > known.partition_count

    def _changed(self, values: Mapping[str, bytes], changed: Sequence[str]) -> None:
        self._is_followed = True
        for key in changed:
            name = key.removeprefix(self._keys.topics)
            record = _record(values.get(key), key)
            self._limits.change(name, record)
            before, now = self._topics.pop(name, None), _known(record)
            if now is not None:
                self._topics[name] = now
            if now != before:
                self._wake(name)

    def _wake(self, name: str) -> None:
        for woken in self._waiting.pop(name, {}):
            if not woken.done():
                woken.set_result(None)


def _record(value: bytes | None, key: str) -> records_pb2.TopicRecord | None:
    """A topic's record; None: there is no such topic."""
    if value is None:
        return None
    try:
        return records_pb2.TopicRecord.FromString(value)
    except DecodeError:
        _log.error("topic_unreadable", key=key)
        return None


def _known(record: records_pb2.TopicRecord | None) -> Known | None:
    """What a topic's record says; None: there is no such topic, or it is being made or deleted."""
    if record is None or record.state != records_pb2.TOPIC_STATE_READY:
        return None
    return Known(record.incarnation, len(record.partition_ids))
