"""Gives the progress that Spark reports about a pipeline's query to the pipeline's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from seriatim_spark.options import parse
from seriatim_spark.pipelines.metrics import LagWatch, PipelineMetrics
from seriatim_spark.progress import offsets_of
from seriatim_spark.reading.brokers import RealBrokers
from seriatim_spark.reading.lag import LagCounter

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class MetricsListener(StreamingQueryListener):
    """Follows the only query of a session.

    Args:
        metrics: Gets the number of messages that micro-batches have read.
        source: The options of the topics that the query reads.
    """

    def __init__(self, metrics: PipelineMetrics, source: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._watch = LagWatch(metrics, LagCounter(RealBrokers(parse(source))))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing, because nothing was read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Count the messages of a micro-batch."""
        for source in event.progress.sources:
            offsets = offsets_of(source.endOffset)
            if offsets is not None:
                self._metrics.read(source.numInputRows)
                self._watch.has_read(offsets)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Note that there was nothing to read."""
        self._metrics.idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: the driver ends soon, or starts the query again."""

    def close(self) -> None:
        """Stop asking brokers. The caller also removes the listener from the session."""
        self._watch.close()
