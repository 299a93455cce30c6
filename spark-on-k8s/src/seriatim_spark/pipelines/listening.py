"""Hands what Spark says of a pipeline's query to its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from seriatim_spark.brokers import RealBrokers
from seriatim_spark.lag import LagCounter
from seriatim_spark.options import parse
from seriatim_spark.pipelines.metrics import LagWatch, PipelineMetrics
from seriatim_spark.progress import offsets_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class MetricsListener(StreamingQueryListener):
    """For a session in which no other query runs.

    Args:
        metrics: Told what micro-batches have read.
        source: Options of the topics that the query reads.
    """

    def __init__(self, metrics: PipelineMetrics, source: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._watch = LagWatch(metrics, LagCounter(RealBrokers(parse(source))))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing was read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch is done."""
        for source in event.progress.sources:
            offsets = offsets_of(source.endOffset)
            if offsets is not None:
                self._metrics.read(source.numInputRows)
                self._watch.has_read(offsets)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing to read."""
        self._metrics.idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The driver ends soon, or goes on with another run of the query."""

    def close(self) -> None:
        """Ask brokers no more. Remove the listener from the session as well."""
        self._watch.close()
