"""The metrics that the driver of a pipeline serves to Prometheus about its progress, beside Spark's own metrics.

    seriatim_pipeline_rows_read_total                 messages that micro-batches have read
    seriatim_pipeline_rows_written_total              rows that were put into files or into a topic
    seriatim_pipeline_lag_messages                    messages that are there and not read, of all partitions
    seriatim_pipeline_lag_messages_max                the same, of the partition that has most of them
    seriatim_pipeline_progress_timestamp_seconds      when a micro-batch ended, or nothing was there to read

Each driver has five series, for any number of partitions. Counts begin at 0 when the driver starts. A series is left
out while its value is not known, because brokers do not answer or no micro-batch has ended yet. Nothing here needs
Spark.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from seriatim_spark.errors import OptionError, SourceError
from seriatim_spark.offsets import Offsets
from seriatim_spark.reading.lag import LagCounter

LAG_EVERY_S: Final = 15.0
"""Seconds between two requests to brokers for the ends of partitions."""

REQUEST_S_MAX: Final = 10.0
"""Seconds after which a request for metrics is given up. Requests are answered one after another."""

_log = logging.getLogger("seriatim.spark")


class PipelineMetrics(Collector):
    """The numbers of one driver. Any thread may write and read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read = 0
        self._written = 0
        self._lags: tuple[int, int] | None = None  # the lag of all partitions together, and the largest one
        self._progress_at: float | None = None

    def read(self, rows: int) -> None:
        """Note that a micro-batch has ended which has read `rows` messages."""
        with self._lock:
            self._read += rows
            self._progress_at = time.time()

    def idle(self) -> None:
        """Note that there is nothing to read."""
        with self._lock:
            self._progress_at = time.time()

    def wrote(self, rows: int) -> None:
        """Note that `rows` rows were put into files or into a topic."""
        with self._lock:
            self._written += rows

    def lags(self, rows: Collection[int] | None) -> None:
        """Note the unread messages of each partition; None: not known."""
        with self._lock:
            self._lags = None if rows is None else (sum(rows), max(rows, default=0))

    def collect(self) -> Iterable[Metric]:
        """Return all known numbers, for a scrape."""
        with self._lock:
            read, written, lags, at = self._read, self._written, self._lags, self._progress_at
        yield CounterMetricFamily(
            "seriatim_pipeline_rows_read", "Messages that micro-batches of this driver have read", read
        )
        text = "Rows that this driver has put into files or into a topic"
        yield CounterMetricFamily("seriatim_pipeline_rows_written", text, written)
        if lags is not None:
            yield GaugeMetricFamily(
                "seriatim_pipeline_lag_messages", "Messages that are there and were not read", lags[0]
            )
            text = "Messages that were not read of the partition that has most of them"
            yield GaugeMetricFamily("seriatim_pipeline_lag_messages_max", text, lags[1])
        if at is not None:
            text = "When a micro-batch ended, or nothing was there to read"
            yield GaugeMetricFamily("seriatim_pipeline_progress_timestamp_seconds", text, at)


class LagWatch:
    """Counts every `every_s` seconds, in a thread of its own, the messages that the query has not read.

    Args:
        metrics: Gets the numbers.
        counter: Asks the brokers.
        every_s: Seconds from one answer to the next request.
    """

    def __init__(self, metrics: PipelineMetrics, counter: LagCounter, every_s: float = LAG_EVERY_S) -> None:
        self._metrics = metrics
        self._counter = counter
        self._every_s = every_s
        self._read: Offsets = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="seriatim lag", daemon=True)
        self._thread.start()

    def has_read(self, offsets: Offsets) -> None:
        """Note where a micro-batch of the query has ended."""
        with self._changed:
            is_first = not self._read
            self._read = {**self._read, **offsets}
            if is_first:
                self._changed.notify_all()

    def close(self) -> None:
        """Stop asking. A request that is under way ends by its own deadline, and its answer is not used."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._read or self._is_closed)
        while not self._is_closed:
            self._look()
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, self._every_s)

    def _look(self) -> None:
        with self._changed:
            read = self._read
        try:
            found: Collection[int] | None = self._counter.lags(read).values()
            said = ""
        except SourceError as exc:
            found, said = None, str(exc)
        if said and said != self._said:
            _log.warning("the metrics show no lag until brokers answer again: %s", said)
        self._said = said
        if not self._is_closed:
            self._metrics.lags(found)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Do not log scrapes."""


class _Server(WSGIServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level only, because a scrape that was given up is no error of the pipeline."""
        _log.debug("a request for metrics from %s failed", client_address, exc_info=True)


class _ServerV6(_Server):
    address_family = socket.AF_INET6


def address_of(text: str) -> tuple[str, int]:
    """Split `HOST:PORT` into host and port.

    Raises:
        ValueError: The text does not have this form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("HOST:PORT, such as 127.0.0.1:7105")
    return host.removeprefix("[").removesuffix("]"), int(port)


@contextmanager
def served(listen: str | None) -> Iterator[PipelineMetrics]:
    """Answer `GET /metrics` for as long as the block lasts.

    Args:
        listen: `HOST:PORT`; None: the numbers are not served.

    Raises:
        OptionError: The address is not one of this machine, or the port is taken.
    """
    metrics = PipelineMetrics()
    if listen is None:
        yield metrics
        return
    registry = CollectorRegistry()
    registry.register(metrics)
    host, port = address_of(listen)
    try:
        server = make_server(host, port, make_wsgi_app(registry), _ServerV6 if ":" in host else _Server, _Handler)
    except OSError as exc:
        raise OptionError(
            f"metrics cannot be served at {listen}: {exc.strerror or exc}. Give --metrics-listen an address of this "
            "machine and a port that is free"
        ) from exc
    thread = threading.Thread(target=server.serve_forever, name="seriatim metrics", daemon=True)
    thread.start()
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join(REQUEST_S_MAX)
