"""Writes `reference/metrics.md` from what brokers and the operator export.

python docs/generate_metrics.py           writes the page
python docs/generate_metrics.py --check   writes nothing; exit status 1 if the page is not current
python docs/generate_metrics.py --json    prints all metrics, with which tests compare alerts and dashboards
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from seriatim_broker.counters.broker import Counters
from seriatim_broker.counters.consumer_groups import ConsumerGroupTally
from seriatim_broker.metrics.broker import GAUGES, BrokerCollector
from seriatim_broker.metrics.cluster import ClusterMeter
from seriatim_broker.metrics.consumer_groups import ConsumerGroupMeter
from seriatim_broker.metrics.topics import TopicMeter
from seriatim_operator.metrics import OperatorMetrics
from seriatim_operator.reconcile.cache import Cache
from seriatim_operator.reconcile.queue import WorkQueue

PAGE: Final = Path(__file__).resolve().parent / "reference" / "metrics.md"

_INTRODUCTION: Final = """\
<!-- Made by docs/generate_metrics.py from the code. Change the descriptions there, not this page. -->

# Metrics

All metrics that brokers and the operator export, with the names that samples have: counters end in `_total`. A
histogram has `_bucket`, `_sum` and `_count`. Times are in seconds, sizes in bytes.

[Health and metrics](../operating/local.md#health-and-metrics) says where a broker serves them and what to look at
first, and [Installing with Helm](../operating/helm.md) how Prometheus finds them on Kubernetes. The chart has
[alerts](../operating/runbooks/README.md) and dashboards on them.

**How many series there are.** No label names a partition. Series that name a topic or a consumer group have a limit on
each broker (`topic_series_max`, `group_series_max`: 20 each unless set); all others are added up, with `(other)` in the
labels. Series that name a Kubernetes object have a limit of 2,000. So a cluster with 10,000 topics has no more series
than one with 40.

**What they cost.** Nothing is computed for a message. Code that handles batches adds to integers. Everything else is
computed when the page is read, or in the seconds after that, for the next reading. While nothing reads the page of a
broker, it measures no topics, no consumer groups and no cluster.
"""

_SECTIONS: Final = {
    "broker": (
        "A broker",
        "All have the label `broker`; it is left out of the table.",
    ),
    "cluster": (
        "The whole cluster",
        """\
Only the broker that is the controller has values. A broker that does not run has no copy for these figures, even if it
is listed. Take the maximum over all brokers. All have the label `broker`.""",
    ),
    "topics": (
        "Topics",
        "Add the brokers up: `sum by (topic) (…)`. All have the labels `broker` and `topic`.",
    ),
    "consumer groups": (
        "Consumer groups",
        """\
Add the brokers up; of ages, take the maximum. All consumers of a broadcast group are one consumer group here. The
unread messages are counted once in five minutes. All have the labels `broker`, `topic` and `consumer_group`.""",
    ),
    "process": ("The process", "Brokers and the operator have these, without labels."),
    "operator": ("The operator", "The operator serves them at the port `metrics` of its pod."),
}


_NOTHING: Final = cast(Any, None)
"""What a collector reads only to have values."""


class Exported(NamedTuple):
    """One metric as samples have it, without the endings of a histogram."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def exported() -> dict[str, list[Exported]]:
    """All metrics by section of the page."""
    return {
        "broker": _broker(),
        "cluster": _listed(_cluster().collect()),
        "topics": _listed(TopicMeter("b", _NOTHING, 1).collect()),
        "consumer groups": _listed(
            ConsumerGroupMeter("b", _NOTHING, _NOTHING, int, ConsumerGroupTally(), dict, 1).collect()
        ),
        "process": _listed(ProcessCollector(registry=CollectorRegistry()).collect()),
        "operator": _operator(),
    }


def _cluster() -> ClusterMeter:
    clock: Any = SimpleNamespace(monotonic_us=int)
    return ClusterMeter("b", _NOTHING, _NOTHING, bool, bool, int, clock)


def _broker() -> list[Exported]:
    gauges = dict.fromkeys((name for name, _ in GAUGES), float)
    return _listed(BrokerCollector("b", Counters(), gauges, dict).collect())


def _operator() -> list[Exported]:
    lease = SimpleNamespace(is_held=True, epoch=1)
    shown = OperatorMetrics(WorkQueue(cast(Any, None)), cast(Any, lease), Cache())
    return [found for found in _listed(shown.collect()) if not found.name.startswith("process_")]


def _listed(families: Iterable[Metric]) -> list[Exported]:
    found = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        known = getattr(family, "_labelnames", ()) or _LABELS.get(name, ())
        found.append(Exported(name, family.type, tuple(known), family.documentation))
    return sorted(found)


_LABELS: Final = {
    "seriatim_operator_pass_errors_total": ("part", "error"),
    "seriatim_operator_pass_seconds": ("part",),
}
"""The labels of what the library counts itself: a family without samples does not report them."""

_EVERYWHERE: Final = {
    "cluster": ("broker",),
    "topics": ("broker", "topic"),
    "consumer groups": ("broker", "topic", "consumer_group"),
    "broker": ("broker",),
}


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for section, metrics in exported().items():
        title, text = _SECTIONS[section]
        parts.append(f"\n## {title}\n\n{text}\n\n| metric | kind | labels | what |\n|---|---|---|---|\n")
        common = _EVERYWHERE.get(section, ())
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels if label not in common)
            parts.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text.rstrip('.')} |\n")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, compare it, or print all metrics."""
    if arguments not in ([], ["--check"], ["--json"]):
        sys.stderr.write("usage: generate_metrics.py [--check | --json]\n")
        return 2
    if arguments == ["--json"]:
        sys.stdout.write(json.dumps([metric._asdict() for metrics in exported().values() for metric in metrics]))
    elif arguments == ["--check"]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
            sys.stderr.write(f"{PAGE.name} is not current: run python docs/generate_metrics.py\n")
            return 1
    else:
        PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
