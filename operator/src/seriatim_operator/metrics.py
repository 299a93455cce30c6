"""The metrics of the operator, for Prometheus: its passes, its work, and the conditions of the objects.

Series of conditions name an object, so their number has a limit (`CONDITION_SERIES_MAX`). All conditions of
BrokerClusters, BrokerGroups and Brokers have series. There may be many thousands of Topics and ConsumerGroups: of them
only a condition that is not as it should be has one. `seriatim_operator_conditions` counts all.

Only the operator that holds the Lease shows conditions, because another one does not read the objects.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from datetime import datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client import Counter as CounterMetric
from prometheus_client import Histogram as HistogramMetric
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .cluster.kinds import BROKER, BROKER_CLUSTER, BROKER_GROUP, CONSUMER_GROUP, OWN, TOPIC
from .cluster.lease import Leadership
from .reconcile.cache import Cache, Manifest
from .reconcile.queue import WorkQueue

CONDITION_SERIES_MAX: Final = 2000
"""The most series of conditions, each of one object. The kinds come in the order of `KINDS`."""

KINDS: Final = (BROKER_CLUSTER, BROKER_GROUP, BROKER, TOPIC, CONSUMER_GROUP)

GOOD: Final = {
    "ChainHealthy": "True",
    "Degraded": "False",
    "DiskHealthy": "True",
    "EtcdHealthy": "True",
    "ExternalReady": "True",
    "KeysParked": "False",
    "Quiesced": "True",
    "Ready": "True",
    "Scheduled": "True",
    "Stable": "True",
    "StorageBound": "True",
    "Whole": "True",
}
"""The status that each type of condition should have. The other types say what happens, and have no such status."""

PASS_BOUNDS_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)

_MANY: Final = frozenset({TOPIC.kind, CONSUMER_GROUP.kind})


class OperatorMetrics:
    """Counts passes, and makes the page that Prometheus reads.

    Args:
        queue: Its passes and its depth are shown. From now on it reports passes that ended here.
        lease: Whether this process holds the Lease is shown.
        cache: The conditions of its objects are shown.
        snapshot_at: When the newest snapshot of the release's etcd was taken; None: none is taken.
    """

    def __init__(
        self,
        queue: WorkQueue,
        lease: Leadership,
        cache: Cache,
        snapshot_at: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Families(queue, lease, cache, snapshot_at))
        self._took = HistogramMetric(
            "seriatim_operator_pass_seconds",
            "Seconds for one pass of the operator over a cluster, its topics, or its consumer groups",
            ["part"],
            buckets=PASS_BOUNDS_S,
            registry=self._registry,
        )
        self._failed = CounterMetric(
            "seriatim_operator_pass_errors",
            "Passes that failed and are tried again, by the kind of the error",
            ["part", "error"],
            registry=self._registry,
        )
        queue.on_pass(self._count)

    def _count(self, key: Hashable, took_s: float, error: BaseException | None) -> None:
        part = getattr(key, "part", "")
        self._took.labels(part).observe(took_s)
        if error is not None:
            self._failed.labels(part, type(error).__name__).inc()

    def collect(self) -> Iterator[Metric]:
        """All samples now."""
        return iter(self._registry.collect())

    def page(self) -> bytes:
        """All samples in the text format."""
        return generate_latest(self._registry)


class _Families(Collector):
    def __init__(
        self, queue: WorkQueue, lease: Leadership, cache: Cache, snapshot_at: Callable[[], datetime | None]
    ) -> None:
        self._queue = queue
        self._lease = lease
        self._cache = cache
        self._snapshot_at = snapshot_at

    def collect(self) -> Iterator[Metric]:
        """Read all gauges now."""
        for name, text, value in (
            ("leader", "1 if this process holds the Lease, otherwise 0", self._lease.is_held),
            ("lease_epoch", "Epoch of the Lease when it was last acquired", self._lease.epoch),
            ("queue_depth", "Objects that wait for a pass, due or not", self._queue.depth),
        ):
            gauge = GaugeMetricFamily(f"seriatim_operator_{name}", text)
            gauge.add_metric([], float(value))
            yield gauge
        objects = GaugeMetricFamily("seriatim_operator_objects", "Objects that are watched, by kind", labels=["kind"])
        for kind in OWN:
            objects.add_metric([kind.kind], float(self._cache.count(kind.kind)))
        yield objects
        began = GaugeMetricFamily(
            "seriatim_operator_reconcile_in_progress_start_time_seconds",
            "When each pass that is under way began (Unix time); absent while no pass runs",
            labels=["part", "namespace", "name"],
        )
        offset_s = time.time() - time.monotonic()
        for key, began_s in self._queue.running().items():
            part, namespace, name = (getattr(key, field, "") for field in ("part", "namespace", "name"))
            began.add_metric([part, namespace, name], began_s + offset_s)
        yield began
        snapshot = GaugeMetricFamily(
            "seriatim_operator_etcd_snapshot_timestamp_seconds",
            "When the newest snapshot of the release's etcd was taken (Unix time), or when the CronJob for them was "
            "made; absent while none are taken",
        )
        taken_at = self._snapshot_at()
        if taken_at is not None:
            snapshot.add_metric([], taken_at.timestamp())
        yield snapshot
        yield from self._conditions()

    def _conditions(self) -> Iterator[Metric]:
        counted: Counter[tuple[str, str, str, str]] = Counter()
        left_out = 0
        shown = GaugeMetricFamily(
            "seriatim_operator_condition",
            "1 for the present status of each condition; of Topics and ConsumerGroups only what is not as it should be",
            labels=["kind", "namespace", "name", "seriatim_cluster", "condition", "status", "reason"],
        )
        for kind in KINDS if self._lease.is_held else ():
            for manifest in self._cache.of(kind.kind):
                for type_, status, reason in _conditions_of(manifest):
                    counted[kind.kind, type_, status, reason] += 1
                    if kind.kind in _MANY and GOOD.get(type_, status) == status:
                        continue
                    if len(shown.samples) >= CONDITION_SERIES_MAX:
                        left_out += 1
                        continue
                    shown.add_metric([kind.kind, *_name(manifest), type_, status, reason], 1.0)
        yield shown
        left = GaugeMetricFamily(
            "seriatim_operator_conditions_left_out", "Conditions that have no series of their own, because of the limit"
        )
        left.add_metric([], left_out)
        yield left
        counts = GaugeMetricFamily(
            "seriatim_operator_conditions",
            "Objects whose condition has this status and reason",
            labels=["kind", "condition", "status", "reason"],
        )
        for labels, count in sorted(counted.items()):
            counts.add_metric(list(labels), count)
        yield counts


def _conditions_of(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Type, status and reason of each condition that the object has."""
    conditions: list[dict[str, Any]] = (manifest.get("status") or {}).get("conditions") or []
    for condition in conditions:
        yield str(condition.get("type", "")), str(condition.get("status", "Unknown")), str(condition.get("reason", ""))


def _name(manifest: Manifest) -> tuple[str, str, str]:
    """Namespace, name and cluster of the object."""
    metadata = manifest["metadata"]
    name = str(metadata["name"])
    return str(metadata.get("namespace") or ""), name, str((manifest.get("spec") or {}).get("cluster") or name)
