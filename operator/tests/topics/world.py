"""A cluster `orders` with its brokers, an API and the topic side of the operator, run until nothing is due."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable

from seriatim_operator.cluster.kinds import kind_of
from seriatim_operator.reconcile.cache import Cache
from seriatim_operator.reconcile.dispatch import ClusterKey, ConsumerGroupsKey, TopicsKey
from seriatim_operator.reconcile.known import Known
from seriatim_operator.reconcile.topics import TopicsReconciler
from seriatim_operator.spec import ConsumerGroup, Topic

from ..memory_kube import Manifest, MemoryKube
from ..spec.objects import good
from .doubles import MemoryBrokers

ALL_LIVE = frozenset({"g0-0", "g0-1", "g1-0", "g1-1"})

SETTLE_TURNS = 20
"""Turns of the loop in which everything that can happen at one time happens."""


class World:
    """What the tests of this folder act on; time passes only when they say so."""

    def __init__(self, home: str = "operators") -> None:
        self.home = home
        self.now_s = 1000.0
        self.cache = Cache()
        self.api = MemoryKube()
        self.api.watch = self._watch
        self.brokers = MemoryBrokers()
        self.reconciler = self._new_reconciler()
        self.api.put(good("BrokerCluster"))

    def _new_reconciler(self) -> TopicsReconciler:
        self._due: dict[Hashable, float] = {}
        self.known = Known(self._wake)
        self.known.note_live("default", "orders", ALL_LIVE)
        made = TopicsReconciler(
            self.api, self.cache, lambda _n, _c: self.brokers, self._wake, self.known, self.home, lambda: self.now_s
        )
        self.hears_deletions = True
        return made

    def _watch(self, event_type: str, manifest: Manifest) -> None:
        """The cache hears of everything at once."""
        if event_type == "DELETED":
            if self.hears_deletions:
                self.reconciler.see_deleted(kind_of(manifest), manifest)
            self.cache.drop(manifest["kind"], manifest)
        else:
            self.cache.put(manifest["kind"], manifest)

    def _wake(self, key: Hashable, after_s: float) -> None:
        if isinstance(key, ClusterKey):
            return  # this world has no passes over the cluster itself
        at_s = self.now_s + after_s
        self._due[key] = min(self._due.get(key, at_s), at_s)

    async def restart(self) -> None:
        """Another operator process, which remembers nothing."""
        await self.reconciler.close()
        self.reconciler = self._new_reconciler()

    async def settle(self, for_s: float = 5.0) -> None:
        """Run passes for this long, as the work queue would."""
        end_s = self.now_s + for_s
        keys = (TopicsKey("default", "orders"), ConsumerGroupsKey("default", "orders"))
        for key in keys:
            self._wake(key, 0.0)
        while True:
            for _ in range(SETTLE_TURNS):
                await asyncio.sleep(0)
                for key in keys:
                    if self._due.get(key, math.inf) <= self.now_s:
                        del self._due[key]
                        again_s = await self.reconciler.reconcile(key)
                        if again_s is not None:
                            self._wake(key, again_s)
            if self.now_s >= end_s:
                return
            self.now_s = min(end_s, max(min(self._due.values(), default=end_s), self.now_s + 0.1))

    # ---- objects ----

    def topic(self, object_name: str = "events", /, *, age: int = 0, **spec: object) -> None:
        """Apply a Topic."""
        self.api.put(good("Topic", object_name, **spec), age=age)

    def consumer_group(self, object_name: str = "billing", /, *, age: int = 0, **spec: object) -> None:
        """Apply a ConsumerGroup."""
        self.api.put(good("ConsumerGroup", object_name, **spec), age=age)

    async def with_topic(self, object_name: str = "events", /, **spec: object) -> None:
        """Apply a Topic, and let the operator make it."""
        self.topic(object_name, **spec)  # type: ignore[arg-type]
        await self.settle()

    async def with_group(self, object_name: str = "billing", /, **spec: object) -> None:
        """Apply a Topic and a ConsumerGroup, and let the operator make both."""
        self.topic()
        self.consumer_group(object_name, **spec)  # type: ignore[arg-type]
        await self.settle()

    async def without(self, kind: str, name: str) -> None:
        """Delete an object, and let the operator follow."""
        self.api.remove(kind, name)
        await self.settle()

    def the_topic(self, name: str = "events") -> Topic:
        """The Topic as it is now."""
        return Topic.from_manifest(self.api.objects["Topic", "default", name])

    def the_group(self, name: str = "billing") -> ConsumerGroup:
        """The ConsumerGroup as it is now."""
        return ConsumerGroup.from_manifest(self.api.objects["ConsumerGroup", "default", name])

    def has(self, kind: str, name: str) -> bool:
        """Whether the object is still there."""
        return (kind, "default", name) in self.api.objects

    def reasons(self, name: str = "events") -> dict[str, tuple[str, str]]:
        """Status and reason of each condition of a Topic."""
        return {c.type: (c.status, c.reason) for c in self.the_topic(name).status.conditions}

    def told(self) -> list[str]:
        """Reasons of the events that were posted."""
        return [reason for _, _, reason, _ in self.api.events]

    @property
    def writes(self) -> int:
        """How often a status was written."""
        return len(self.api.statuses)
