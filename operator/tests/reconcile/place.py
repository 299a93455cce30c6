"""A cluster, its machines, and operators that come and go: what the tests of passes act on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from seriatim_operator.cluster.kinds import kind_of
from seriatim_operator.cluster.pki import DEFAULT_DOMAIN, SETTLE_TIME
from seriatim_operator.plan.observed import SPREAD_QUIET_S, EtcdView
from seriatim_operator.reconcile.cache import Cache
from seriatim_operator.reconcile.cluster import WATCHED, ClusterReconciler
from seriatim_operator.reconcile.known import Known
from seriatim_operator.resources.cluster_children import ClusterChildren

from ..memory_kube import MemoryKube
from .fake_cluster import NAMESPACE, FakeBrokers, FakeMachines, broker_cluster, is_ready, storage_class


class Died(BaseException):
    """The operator's process was killed."""


def _die(write: str) -> None:
    raise Died(write)


class Place:
    """A cluster, its machines, and operators that come and go."""

    def __init__(self, nodes: int = 3, **spec: object) -> None:
        self.kube = MemoryKube(NAMESPACE, began=datetime.now(UTC))
        self.brokers = FakeBrokers(self.kube)
        self.machines = FakeMachines(self.kube, self.brokers, nodes)
        self.kube.put(storage_class())
        self.kube.put(broker_cluster(**spec))
        self.known = Known(lambda _key, _after_s: None)
        self.lives = 0
        self.spread_quiet_s = SPREAD_QUIET_S
        self.clock: Callable[[], float] = time.monotonic
        self.etcd: EtcdView | None = None

    def operator(
        self, domain: str = DEFAULT_DOMAIN, settle: timedelta = SETTLE_TIME
    ) -> tuple[ClusterReconciler, Cache]:
        """A new process: it knows what it lists."""
        self.lives += 1
        cache = Cache()
        make = lambda cluster: ClusterChildren(cluster, "seriatim.dev/broker:dev", "seriatim-system")  # noqa: E731
        made = ClusterReconciler(
            self.kube,
            cache,
            self.known,
            make,
            lambda: self.lives,
            domain,
            lambda *_: self.brokers,
            settle,
            self.spread_quiet_s,
            lambda: self.clock(),
            lambda _: self.etcd,
        )
        return made, cache

    def refresh(self, cache: Cache) -> None:
        """What the watches report."""
        for kind in WATCHED:
            there = {(m["metadata"].get("namespace") or "", m["metadata"]["name"]) for m in self.kube.of(kind)}
            for manifest in list(cache.of(kind)):
                if (manifest["metadata"].get("namespace") or "", manifest["metadata"]["name"]) not in there:
                    cache.drop(kind, manifest)
            for manifest in self.kube.of(kind):
                assert kind_of(manifest).kind == kind
                cache.put(kind, manifest)

    async def a_pass(self, reconciler: ClusterReconciler, cache: Cache) -> float | None:
        """The operator hears what the watches report, and looks after the cluster once."""
        self.refresh(cache)
        return await reconciler.reconcile(NAMESPACE, "orders")

    async def run(self, passes: int = 60, *, until: Callable[[], bool]) -> None:
        """One operator, until all is well."""
        reconciler, cache = self.operator()
        for _ in range(passes):
            await self.a_pass(reconciler, cache)
            self.machines.step()
            if until() and self.is_stable():
                return
        raise AssertionError((self.status(), self.kube.writes[-8:]))

    async def run_dying(self, passes: int = 800, *, until: Callable[[], bool]) -> None:
        """Each operator dies right after its first write; the next one begins with what it finds."""
        for _ in range(passes):
            self.kube.on_write = _die
            reconciler, cache = self.operator()
            with contextlib.suppress(Died):
                await self.a_pass(reconciler, cache)
            self.kube.on_write = None
            self.machines.step()
            if until() and self.is_stable():
                return
        raise AssertionError((self.status(), self.kube.writes[-8:]))

    def status(self) -> dict:  # type: ignore[type-arg]
        """Of the cluster."""
        return dict(self.kube.objects["BrokerCluster", NAMESPACE, "orders"].get("status") or {})

    def condition(self, type_: str, kind: str = "BrokerCluster", name: str = "orders") -> dict[str, str]:
        """A condition of an object, with its status, reason and message."""
        conditions = self.kube.objects[kind, NAMESPACE, name].get("status", {}).get("conditions", ())
        return next(dict(each) for each in conditions if each["type"] == type_)

    def is_stable(self) -> bool:
        """Whether it says so, and of this generation."""
        cluster = self.kube.objects["BrokerCluster", NAMESPACE, "orders"]
        status = self.status()
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        return conditions.get("Stable") == "True" and status["observedGeneration"] == cluster["metadata"]["generation"]

    def edit(self, **spec: object) -> None:
        """An administrator changes the spec."""
        self.kube.change("BrokerCluster", "orders", **spec)

    def pods(self) -> list[str]:
        """Names of ready pods."""
        return [pod["metadata"]["name"] for pod in self.kube.of("Pod") if is_ready(pod)]


async def started(**spec: object) -> Place:
    """A place whose cluster serves."""
    place = Place(**spec)  # type: ignore[arg-type]
    await place.run(until=lambda: len(place.pods()) == 2 * place.kube.of("BrokerCluster")[0]["spec"]["groups"])
    place.kube.writes.clear()
    return place
