"""The Topics and ConsumerGroups of all clusters: a stream from each cluster's brokers, and passes over what changed."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from seriatim_api.errors import SeriatimError, StaleOperatorError
from seriatim_api.v1 import broker_pb2

from ..cluster.kinds import BROKER_CLUSTER, CONSUMER_GROUP, TOPIC, Kind
from ..cluster.kube import Api
from ..plan.consumer_groups import CONSUMER_GROUP_FINALIZER
from ..plan.topics import TOPIC_FINALIZER, Surroundings
from .asking import TopicBrokers
from .cache import Cache
from .consumer_group_pass import ConsumerGroupPass
from .departed import Departed
from .dispatch import ConsumerGroupsKey, TopicsKey
from .known import Known
from .losses import Losses
from .object_pass import ClusterAccess, ObjectPass
from .topic_mirror import TopicMirror
from .topic_pass import TopicPass
from .unclaimed import Unclaimed

STREAM_PAUSE_S: Final = 0.5
"""Seconds between two attempts to open the stream. The next attempt asks another broker."""

SILENCE_S: Final = 60.0
"""Seconds without an answer after which objects report that no broker answers. A rolling change or a failover takes
less."""

_FINALIZERS: Final = {TOPIC.kind: TOPIC_FINALIZER, CONSUMER_GROUP.kind: CONSUMER_GROUP_FINALIZER}

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class TopicsReconciler:
    """Makes passes over Topics and ConsumerGroups, and keeps a stream open to the brokers of each cluster.

    The stream reports all topics, with and without an object, because the cluster's status speaks of all of them.

    Args:
        api: The API, for writes to objects.
        cache: The objects that the watches reported.
        brokers_of: Returns the client of a cluster's brokers, by namespace and name.
        add: Adds a key to the work queue, due after a number of seconds.
        known: What the passes over clusters know.
        home: The operator's own namespace. The operator sets no finalizers there, because it may be deleted before the
            objects if the namespace is deleted.
        clock: Returns monotonic seconds.
    """

    _api: Api
    _cache: Cache
    _brokers_of: Callable[[str, str], TopicBrokers]
    _add: Callable[[Hashable, float], None]
    _known: Known
    _home: str
    _clock: Callable[[], float] = time.monotonic
    _departed: Departed = field(default_factory=Departed)
    _unclaimed: defaultdict[tuple[str, str], Unclaimed] = field(default_factory=lambda: defaultdict(Unclaimed))
    _clusters: dict[tuple[str, str], _ClusterTopics] = field(default_factory=dict)

    def see_deleted(self, kind: Kind, manifest: dict[str, Any]) -> None:
        """Note that a watch reported the deletion of an object.

        In the operator's own namespace the last manifest is kept, until its `deletionPolicy` is carried out.
        """
        finalizer = _FINALIZERS.get(kind.kind)
        if finalizer is None:
            return
        namespace, spec = manifest["metadata"]["namespace"], manifest.get("spec") or {}
        if spec.get("deletionPolicy") != "Delete":
            incarnation = (manifest.get("status") or {}).get("incarnation")
            if incarnation:
                self._unclaimed[namespace, str(spec.get("cluster"))].let_go(incarnation)
        elif namespace == self._home:
            self._departed.add(manifest, finalizer)

    async def reconcile(self, key: TopicsKey | ConsumerGroupsKey) -> float | None:
        """Make one pass over one cluster's objects of one kind.

        Returns:
            After how many seconds to make the next one; None if nothing is due.

        Raises:
            StaleOperatorError: A newer operator acts: this one must end.
        """
        place = (key.namespace, key.name)
        brokers, before = self._brokers_of(*place), self._clusters.get(place)
        if before is not None and before.brokers is not brokers:
            # The cluster was deleted, and its client with it. If it is there again, it has other brokers.
            del self._clusters[place]
            await before.close()
        if place not in self._clusters:
            holds = key.namespace != self._home
            losses = Losses(brokers, self._cache, *place, self._clock)
            access = ClusterAccess(self._api, self._cache, *place, brokers, self._clock, self._departed, holds, losses)
            self._clusters[place] = _ClusterTopics(access, self._add, self._known)
        cluster = self._clusters[place]
        cluster.see_live()
        cluster.scan()
        manifest = self._cache.get(BROKER_CLUSTER.kind, *place)
        unclaimed = self._unclaimed[place]
        surroundings = cluster.surroundings_of(manifest)
        if manifest is not None and surroundings is Surroundings.HERE:
            await cluster.tell_unclaimed(unclaimed, manifest)
        if not cluster.has_objects and surroundings is Surroundings.GONE:
            await self._leave(place, cluster, is_gone=manifest is None)
            return None
        await cluster.tend_stream(is_wanted=manifest is not None)
        return await cluster.part(key).work(cluster.surroundings_of(manifest)) if cluster.has_objects else None

    async def _leave(self, place: tuple[str, str], cluster: _ClusterTopics, *, is_gone: bool) -> None:
        """Close the stream of a cluster without objects, and forget its state. A new object starts both again."""
        if self._clusters.get(place) is cluster:
            del self._clusters[place]
        if is_gone:
            self._unclaimed.pop(place, None)
            self._known.forget(*place)
        await cluster.close()

    async def close(self) -> None:
        """Close the streams of all clusters."""
        clusters, self._clusters = self._clusters, {}
        await asyncio.gather(*(cluster.close() for cluster in clusters.values()))


class _Part:
    """The passes over the objects of one kind, with the cluster's surroundings at the last pass."""

    def __init__(self, objects: ObjectPass[Any, Any], clock: Callable[[], float]) -> None:
        self._objects = objects
        self._clock = clock
        self._before: tuple[Surroundings, bool] | None = None
        self._silent_since: float | None = None

    async def work(self, surroundings: Surroundings) -> float | None:
        """Make one pass. If the surroundings have changed, all objects are due. Returns when to make the next pass."""
        now_s = self._clock()
        if surroundings is not Surroundings.SILENT:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now_s
        silence_ends_s = None if self._silent_since is None else self._silent_since + SILENCE_S
        is_long_silent = silence_ends_s is not None and now_s >= silence_ends_s
        if (surroundings, is_long_silent) != self._before:
            self._before = (surroundings, is_long_silent)
            self._objects.look_at_all()
        again_s = await self._objects.work(surroundings, is_long_silent=is_long_silent)
        if silence_ends_s is None or is_long_silent:
            return again_s
        told_s = max(0.0, silence_ends_s - self._clock())
        return told_s if again_s is None else min(again_s, told_s)


class _ClusterTopics:
    """One cluster's topics and consumer groups, and the stream in which brokers report topics."""

    def __init__(self, at: ClusterAccess, add: Callable[[Hashable, float], None], known: Known) -> None:
        self._place = (at.namespace, at.cluster)
        self._known = known
        self._keys = (TopicsKey(at.namespace, at.cluster), ConsumerGroupsKey(at.namespace, at.cluster))
        self._api = at.api
        self.brokers = at.brokers
        self._add = add
        self._mirror = TopicMirror()
        self._topics = TopicPass(at, self._mirror)
        self._groups = ConsumerGroupPass(at, self._mirror, self._topics.claimed)
        self._parts = {self._keys[0]: _Part(self._topics, at.clock), self._keys[1]: _Part(self._groups, at.clock)}
        self._stream: asyncio.Task[None] | None = None

    async def tell_unclaimed(self, unclaimed: Unclaimed, manifest: dict[str, Any]) -> None:
        """Report the topics without an object in an Event on the cluster; `manifest` is the cluster's own."""
        await unclaimed.tell(self._api, manifest, self._mirror.topics, self._topics.claimed())

    @property
    def has_objects(self) -> bool:
        """Whether any object names the cluster."""
        return bool(len(self._topics) or len(self._groups))

    def part(self, key: TopicsKey | ConsumerGroupsKey) -> _Part:
        """The passes over the objects of the key's kind."""
        return self._parts[key]

    def see_live(self) -> None:
        """Take which brokers answer or are away as planned. Topics that have changed by that are due."""
        live, planned = self._known.live(*self._place), self._known.planned(*self._place)
        changed = self._mirror.counts.see_live(live, planned, self._mirror.topics)
        if changed:
            self._add(self._keys[0], self._topics.told(changed))
            self._tell_chains()

    def _tell_chains(self) -> None:
        if self._mirror.is_current:
            self._known.note_chains(*self._place, self._mirror.counts.view())

    def scan(self) -> None:
        """Find the objects that changed, and make their claims due."""
        self._topics.scan()
        if self._groups.scan() and self._topics.take_dead_letters(self._groups.dead_letter_sources()):
            self._add(self._keys[0], 0.0)

    def surroundings_of(self, manifest: dict[str, Any] | None) -> Surroundings:
        """Whether the brokers can be asked and changed; `manifest` is the cluster's own, None if it does not exist."""
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            return Surroundings.GONE
        if manifest["spec"].get("paused"):
            return Surroundings.PAUSED
        return Surroundings.HERE if self._mirror.is_current else Surroundings.SILENT

    # ---- the stream ----

    async def tend_stream(self, *, is_wanted: bool) -> None:
        """Run the stream while the cluster exists.

        Raises:
            StaleOperatorError: A newer operator acts: this one must end.
            Exception: The stream ended with an error that is a mistake in our code. It ends the operator.
        """
        if self._stream is not None and self._stream.done():
            self._stream.result()
        if is_wanted and self._stream is None:
            self._stream = asyncio.create_task(self._follow(), name=f"topics of {self._keys[0].name}")
            self._stream.add_done_callback(lambda _: self._wake_all())
        elif not is_wanted:
            await self.close()

    async def _follow(self) -> None:
        """Take what the brokers report, until cancelled. A broken stream is opened again after 0.5 s."""
        told = ""
        while True:
            self._mirror.begin()
            try:
                async for response in self.brokers.watch_topics():
                    self._take(response)
                    told = ""
            except StaleOperatorError:
                raise
            except SeriatimError as exc:
                if str(exc) != told:  # not twice a second while no broker answers
                    told = str(exc)
                    _log.info("topic_stream_ended", cluster=self._keys[0].name, error=told)
            self._mirror.end()
            self._wake_all()
            await asyncio.sleep(STREAM_PAUSE_S)

    def _take(self, response: broker_pb2.WatchTopicsResponse) -> None:
        topics_key, groups_key = self._keys
        changed = self._mirror.take(response)
        if changed:
            self._add(topics_key, self._topics.told(changed))
        if self._groups.told(changed):
            self._add(groups_key, 0.0)
        if response.is_whole:
            self._wake_all()
        if changed or response.is_whole:
            self._tell_chains()

    def _wake_all(self) -> None:
        for key in self._keys:
            self._add(key, 0.0)

    async def close(self) -> None:
        """Close the stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
        self._mirror.end()
