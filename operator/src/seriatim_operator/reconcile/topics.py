"""The Topics and ConsumerGroups of all clusters: a stream from each cluster's brokers, and passes over what changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

import structlog
from seriatim_api.errors import SeriatimError

from ..cluster.kinds import BROKER_CLUSTER
from ..cluster.kube import Api
from ..plan.topics import Surroundings
from .asking import TopicBrokers
from .cache import Cache
from .consumer_group_pass import ConsumerGroupPass
from .dispatch import TopicsKey
from .topic_mirror import TopicMirror
from .topic_pass import TopicPass

STREAM_PAUSE_S: Final = 0.5
"""Between two attempts at the stream: another broker answers, or none does."""

SILENCE_S: Final = 60.0
"""Only then objects are told that no broker answers: a rolling change or a failover takes less."""

_log = structlog.get_logger(__name__)


class TopicsReconciler:
    """Passes over Topics and ConsumerGroups; keeps a stream open to the brokers of each cluster that has any.

    Args:
        api: Writes to objects.
        cache: What the watches told.
        brokers_of: The brokers of a cluster, by namespace and name.
        add: Has a key worked on, after so many seconds.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        brokers_of: Callable[[str, str], TopicBrokers],
        add: Callable[[Hashable, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._cache = cache
        self._brokers_of = brokers_of
        self._add = add
        self._clock = clock
        self._clusters: dict[TopicsKey, _ClusterTopics] = {}

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass over one cluster's objects; returns after how many seconds to come again.

        Raises:
            StaleOperatorError: A newer operator acts: this one must end.
        """
        key = TopicsKey(namespace, name)
        cluster = self._clusters.get(key)
        if cluster is None:
            cluster = self._clusters[key] = self._open(key)
        cluster.scan()
        manifest = self._cache.get(BROKER_CLUSTER.kind, namespace, name)
        if not cluster.has_objects:
            await self._clusters.pop(key).close()
            return None
        return await cluster.work(manifest)

    async def close(self) -> None:
        """End all streams."""
        clusters, self._clusters = self._clusters, {}
        await asyncio.gather(*(cluster.close() for cluster in clusters.values()))

    def _open(self, key: TopicsKey) -> _ClusterTopics:
        brokers = self._brokers_of(key.namespace, key.name)
        return _ClusterTopics(
            self._api, self._cache, key, brokers, lambda after_s: self._add(key, after_s), self._clock
        )


class _ClusterTopics:
    """One cluster's topics and consumer groups, and the stream that tells of them."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        key: TopicsKey,
        brokers: TopicBrokers,
        wake: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._key = key
        self._brokers = brokers
        self._wake = wake
        self._clock = clock
        self._mirror = TopicMirror()
        self._topics = TopicPass(api, cache, key.namespace, key.name, brokers, self._mirror, clock)
        self._groups = ConsumerGroupPass(api, cache, key.namespace, key.name, brokers, clock)
        self._surroundings: Surroundings | None = None
        self._silent_since: float | None = None
        self._is_long_silent = False
        self._stream: asyncio.Task[None] | None = None

    @property
    def has_objects(self) -> bool:
        """Whether any object names the cluster."""
        return bool(len(self._topics) or len(self._groups))

    def scan(self) -> None:
        """Find out which objects changed."""
        self._topics.scan()
        self._groups.scan()

    async def work(self, manifest: dict[str, Any] | None) -> float | None:
        """One pass; `manifest` is the cluster's, None if there is none."""
        await self._tend_stream(is_wanted=manifest is not None)
        self._look_around(manifest)
        assert self._surroundings is not None
        pauses = [
            await self._topics.work(self._surroundings, is_long_silent=self._is_long_silent),
            await self._groups.work(self._surroundings, is_long_silent=self._is_long_silent),
        ]
        if self._silent_since is not None and not self._is_long_silent:
            pauses.append(max(0.0, self._silent_since + SILENCE_S - self._clock()))
        return min((pause for pause in pauses if pause is not None), default=None)

    def _look_around(self, manifest: dict[str, Any] | None) -> None:
        """How the cluster is; when that has changed, all objects are looked at."""
        before = (self._surroundings, self._is_long_silent)
        self._surroundings = self._surroundings_of(manifest)
        if self._surroundings is not Surroundings.SILENT:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = self._clock()
        silent_s = 0.0 if self._silent_since is None else self._clock() - self._silent_since
        self._is_long_silent = silent_s >= SILENCE_S
        if (self._surroundings, self._is_long_silent) != before:
            self._topics.look_at_all()
            self._groups.look_at_all()

    def _surroundings_of(self, manifest: dict[str, Any] | None) -> Surroundings:
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            return Surroundings.GONE
        if manifest["spec"].get("paused"):
            return Surroundings.PAUSED
        return Surroundings.HERE if self._mirror.is_current else Surroundings.SILENT

    # ---- the stream ----

    async def _tend_stream(self, *, is_wanted: bool) -> None:
        """Have the stream run while there is a cluster. One that ended by a mistake of ours ends the operator."""
        if self._stream is not None and self._stream.done():
            self._stream.result()
        if is_wanted and self._stream is None:
            self._stream = asyncio.create_task(self._follow(), name=f"topics of {self._key.name}")
            self._stream.add_done_callback(lambda _: self._wake(0.0))
        elif not is_wanted:
            await self.close()

    async def _follow(self) -> None:
        """Take what the brokers tell until cancelled."""
        while True:
            self._mirror.begin()
            try:
                async for response in self._brokers.watch_topics():
                    changed = self._mirror.take(response)
                    pause_s = self._topics.told(changed)
                    self._groups.told(changed)
                    if changed or response.is_whole:
                        self._wake(0.0 if response.is_whole else pause_s)
            except SeriatimError as exc:
                _log.info("topic_stream_ended", cluster=self._key.name, error=str(exc))
            self._mirror.end()
            self._wake(0.0)
            await asyncio.sleep(STREAM_PAUSE_S)

    async def close(self) -> None:
        """End the stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
        self._mirror.end()
