"""Reports to the cluster how far streaming queries are, so that `seriatim group list` and `describe` show their lag.

A listener in the driver gets the end of each micro-batch from Spark, also of the last one of a query. It reports this
end as an external group. A lost report does no harm, because the next one replaces it, and because Spark's checkpoint
decides where a query continues.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import NAME_RULE, is_legal_name

from seriatim_spark.connection import connected
from seriatim_spark.errors import OffsetsError, OptionError, SourceError
from seriatim_spark.offsets import VERSION, Offsets, from_json
from seriatim_spark.options import Target, parse_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

AGAIN_S: Final = 3600.0
"""Seconds after which an idle query repeats its report, long before brokers forget a silent group (7 days)."""

REPORT_DEADLINE_S: Final = 10.0
QUERIES_MAX: Final = 1000

_log = logging.getLogger("seriatim.spark")


def report_progress(
    spark: SparkSession, target: Mapping[str, str], group: str | None = None, query: str | None = None
) -> ProgressListener:
    """Report the progress of streaming queries that read topics of a cluster, from now on.

    Args:
        spark: The session; queries that it starts later are reported too.
        target: The cluster: options bootstrap, tlsCa, tlsCert, tlsKey, tlsServerName, as of the source.
        group: The group's name; None: `spark-` and the query's id, for each query.
        query: Name or id of the only query to report; None: all.

    Raises:
        OptionError: An option of `target` is wrong, or `group` is not a legal name.
    """
    if group is not None and not is_legal_name(group):
        raise OptionError(f"{group!r} cannot name a group: {NAME_RULE}")
    listener = ProgressListener(parse_target(target), group, query)
    spark.streams.addListener(listener)
    return listener


class ProgressListener(StreamingQueryListener):
    """Reports in a thread of its own, so Spark never waits for a broker. It keeps only the newest place of a query."""

    def __init__(self, target: Target, group: str | None, query: str | None) -> None:
        self._target = target
        self._group = group
        self._query = query
        self._news: dict[str, Offsets] = {}  # the newest offsets by group
        self._said: dict[str, tuple[float, Offsets]] = {}
        self._ended: deque[str] = deque(maxlen=QUERIES_MAX)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="seriatim progress", daemon=True)
        self._thread.start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing, because nothing was read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report the end of a micro-batch."""
        progress = event.progress
        if self._query is not None and self._query not in (progress.name, str(progress.id)):
            return
        for source in progress.sources:
            offsets = offsets_of(source.endOffset)
            if offsets is not None:
                self._put(self._group or f"spark-{progress.id}", offsets)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Repeat the last report every `AGAIN_S`, although there is nothing to read."""
        with self._changed:
            for group, (at, offsets) in self._said.items():
                if time.monotonic() - at > AGAIN_S:
                    self._news.setdefault(group, offsets)
                    self._changed.notify()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: the report stays until the group is deleted or forgotten."""
        with self._changed:
            self._ended.append(str(event.runId))
            self._changed.notify_all()

    def flush(self, run_id: str, timeout_s: float = REPORT_DEADLINE_S) -> bool:
        """Wait until all micro-batches of a run that has ended are reported. Return whether they are.

        Spark announces a micro-batch some time after it. Its last announcement about a run is the end of the run.

        Args:
            run_id: The id of the query's run.
            timeout_s: The most seconds to wait.
        """
        with self._changed:
            return self._changed.wait_for(lambda: run_id in self._ended and not self._news, timeout_s)

    def close(self) -> None:
        """Stop reporting. The caller also removes the listener from the session."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _put(self, group: str, offsets: Offsets) -> None:
        with self._changed:
            if group not in self._said and len(self._said) >= QUERIES_MAX:
                self._said.pop(next(iter(self._said)))
            self._news[group] = {**self._news.get(group, {}), **offsets}
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._news or self._closed)
                if self._closed:
                    return
                group, offsets = next(iter(self._news.items()))
            self._report(group, offsets)
            with self._changed:
                self._said[group] = (time.monotonic(), offsets)
                if self._news.get(group) is offsets:
                    del self._news[group]
                self._changed.notify_all()

    def _report(self, group: str, offsets: Offsets) -> None:
        for topic, found in offsets.items():
            try:
                connection = connected(self._target)
                connection.run(
                    connection.client.report_progress(
                        topic, group, found.places, incarnation=found.incarnation, timeout_s=REPORT_DEADLINE_S
                    ),
                    2 * REPORT_DEADLINE_S,
                )
            except (SeriatimError, SourceError) as exc:
                _log.warning("the progress of group %s on %s was not reported: %s", group, topic, exc)


def offsets_of(end_offset: Any) -> Offsets | None:
    """Return the offsets in Spark's report of a source; None if they are of another kind of source."""
    try:
        value = json.loads(end_offset) if isinstance(end_offset, str) else end_offset
        if not isinstance(value, dict) or value.get("v") != VERSION or "t" not in value:
            return None
        return from_json(value)
    except (ValueError, OffsetsError):
        return None
