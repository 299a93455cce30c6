"""The metrics of a broker, for Prometheus.

What `counters` has counted becomes samples only when Prometheus reads the page. Names begin with `seriatim_`; those of
the process have the names that all programs with Prometheus' library have. No label has a partition in it. Series with
a topic in a label are those of topics and consumer groups, and their number has a limit (`topics`, `consumer_groups`).
So it does not grow with the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ..counters.broker import Counters, Histogram

VERSION: Final = version("seriatim-broker")

_COUNTERS: Final = (
    ("appended_batches", "Batches of producers that were accepted"),
    ("appended_messages", "Messages of producers that were accepted"),
    ("appended_bytes", "Bytes of producers that were accepted, headers included"),
    ("committed_batches", "Batches answered as accepted, at their ack level"),
    ("delayed_cancelled", "Cancellations of delayed messages that this broker, as their server, answered with success"),
    ("delayed_moved", "Delayed messages that this broker, as their server, moved before retention dropped them"),
    ("delivered_batches", "Batches sent to consumers"),
    ("delivered_bytes", "Bytes sent to consumers"),
    ("range_batches", "Batches sent to readers of ranges"),
    ("range_bytes", "Bytes sent to readers of ranges, headers included"),
    ("publications_decided", "Publications that this broker decided on behalf of writers"),
    ("published_rows", "Rows of the publications that this broker decided"),
    ("adopted_bytes", "Bytes of published bodies that this disk had from staging, so that it did not write them again"),
    ("retention_trims", "Transactions with which this broker, as a master, dropped the oldest messages of a partition"),
    ("retention_dropped_messages", "Messages that retention dropped in partitions which this broker leads"),
    ("retention_dropped_bytes", "Bytes of the dropped messages on one disk, headers included"),
    ("events", "Events that the core handled"),
)
GAUGES: Final = (
    ("partitions", "Partitions that this broker keeps in memory"),
    ("producers", "Producers in the producer tables of this broker's open segments"),
    ("producers_max", "Producers in the largest producer table of this broker's open segments"),
    ("streams", "Append, consume and range streams"),
    ("tcp_streams", "Append and consume streams over TCP; the other streams go over gRPC"),
    ("in_flight_bytes", "Bytes of batches that this broker took and has not answered"),
    ("links_up", "Links to other brokers that are up"),
    ("storage_queue", "Writes that were handed to the storage and are not durable yet"),
    ("storage_saturated", "1 while this broker refuses appends because the disk cannot keep up, otherwise 0"),
    ("kept_scans", "Places of sequential readers that the storage keeps"),
    ("read_ahead_bytes", "Bytes that the storage has read ahead for sequential readers, or is reading"),
    ("retained_bytes", "Bytes kept, on one disk, in the partitions with retention that this broker leads"),
    ("retained_seconds", "Age of the oldest message kept in the partitions with retention that this broker leads"),
    (
        "retention_unread_ratio",
        "How near retention is to the oldest message that a consumer group has not read; 1: it is dropped",
    ),
    (
        "retention_unread_seconds",
        "Seconds until age drops the oldest message that a consumer group has not read; infinite: never",
    ),
    ("publications_waiting", "Publications that are decided and not finished, as the controller sees them"),
    ("publications_waiting_seconds", "Seconds since the oldest of the waiting publications was decided"),
    (
        "publication_bytes",
        "Bytes of staged batches that this broker has in memory for publications until they are committed",
    ),
    (
        "delayed_overdue_seconds",
        "Seconds since the oldest delayed message was due that is not fired, of segments served here; 0: none is due",
    ),
    ("disk_full", "1 while the disk has reached its reserve, otherwise 0"),
    ("disk_size_bytes", "Bytes of the file system that has the data directory"),
    ("disk_free_bytes", "Free bytes on the disk"),
    ("disk_reserve_bytes", "Bytes on the disk that are kept free of new messages"),
    (
        "quarantined_segments",
        "Segments that this broker keeps and does not serve, because the chain contradicts its disk",
    ),
    ("disk_stall_seconds", "Seconds for which the disk has completed no write although one waits"),
    ("posted_events", "Events that wait until the event loop gives them to the core"),
    ("coordinator_behind", "1 if the coordinator has lost decisions that this broker knows, otherwise 0"),
    ("coordinator_refuses", "1 while the coordinator answers but refuses to write, otherwise 0"),
    ("coordinator_transactions", "Transactions that this broker sent to the coordinator and that have no answer yet"),
    (
        "balance_excess",
        "How much the busiest broker group was above the mean, as a ratio, when the controller last measured",
    ),
    ("controller", "1 if this broker is the controller, otherwise 0"),
    ("ready", "1 if this broker is admitted and serving, otherwise 0"),
)
_FAMILIES: Final = (
    ("refused", "number", "Batches refused, by error number"),
    ("notes", "name", "Notes that the core wrote to the log, by name"),
    ("switches", "reason", "Switches that this broker ran, by reason"),
    ("coordinator_writes", "outcome", "Transactions of the core at the coordinator, by outcome"),
    ("balance_moves", "result", "Open segments that this broker, as the controller, moved for balance, by result"),
)
_HISTOGRAMS: Final = (
    ("loop_lag_s", "loop_lag_seconds", "Seconds by which the event loop woke a timer too late"),
    ("step_s", "step_seconds", "Seconds for one step of the core with its effects"),
    ("flush_s", "flush_seconds", "Seconds from handing writes to the storage until they are durable, if awaited"),
    ("switch_gap_s", "switch_seconds", "Seconds from the beginning of a switch to its transaction"),
    (
        "delayed_late_s",
        "delayed_late_seconds",
        "Seconds from the due time of a delayed message until it is stored for consumers, by this server's clock",
    ),
)


@dataclass(slots=True, eq=False)
class BrokerCollector:
    """Makes samples of a broker's counters and gauges. It reads the gauges when Prometheus reads the page.

    Args:
        broker: The value of the label `broker`.
        counters: The broker's counts.
        gauges: A function for each of `GAUGES`, which returns the value.
        certificate_ends: Returns when each certificate ends, as Unix times in seconds; nothing without TLS.
    """

    _broker: str
    _counters: Counters
    _gauges: dict[str, Callable[[], float]]
    _certificate_ends: Callable[[], dict[str, float]]

    def collect(self) -> Iterable[Metric]:
        """All samples of this broker. The registry calls it."""
        for name, text in _COUNTERS:
            counter = CounterMetricFamily(f"seriatim_{name}", text, labels=["broker"])
            counter.add_metric([self._broker], getattr(self._counters, name))
            yield counter
        for name, label, text in _FAMILIES:
            counter = CounterMetricFamily(f"seriatim_{name}", text, labels=["broker", label])
            for value, count in sorted(getattr(self._counters, name).items()):
                counter.add_metric([self._broker, value], count)
            yield counter
        for attribute, name, text in _HISTOGRAMS:
            histogram: Histogram = getattr(self._counters, attribute)
            family = HistogramMetricFamily(f"seriatim_{name}", text, labels=["broker"])
            family.add_metric([self._broker], list(histogram.buckets()), histogram.total_s)
            yield family
        longest = GaugeMetricFamily(
            "seriatim_loop_lag_seconds_max", "Longest loop lag since the process started", labels=["broker"]
        )
        longest.add_metric([self._broker], self._counters.loop_lag_s.max_s)
        yield longest
        for name, text in GAUGES:
            gauge = GaugeMetricFamily(f"seriatim_{name}", text, labels=["broker"])
            gauge.add_metric([self._broker], self._gauges[name]())
            yield gauge
        ends = GaugeMetricFamily(
            "seriatim_certificate_end_timestamp_seconds",
            "When the broker's own certificate, and that of the authority, end; of several in a file the first one",
            labels=["broker", "certificate"],
        )
        for certificate, end_s in self._certificate_ends().items():
            ends.add_metric([self._broker, certificate], end_s)
        yield ends
        build = GaugeMetricFamily(
            "seriatim_build_info", "Always 1; the label has the version", labels=["broker", "version"]
        )
        build.add_metric([self._broker, VERSION], 1)
        yield build


class Collector(Protocol):
    """Makes samples of one broker."""

    def collect(self) -> Iterable[Metric]:
        """All samples now."""
        ...


class Exposition:
    """The page that Prometheus reads. Several brokers of one process share it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)

    def add(self, collector: Collector) -> None:
        """Show this broker's samples too."""
        self._registry.register(collector)

    def page(self) -> bytes:
        """All samples in the text format."""
        return generate_latest(self._registry)
