"""Collects findings: it counts each of them, and keeps the first of each kind with their lines."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from seriatim.history import _format as f
from seriatim.history import _report as kinds
from seriatim.history._collect import NONE, History
from seriatim.history._format import MessageId
from seriatim.history._report import Evidence, Finding
from seriatim.history._sources import Lines

Shown = tuple[int, int]
"""A line, and the row of a message in it (NONE: the whole line)."""


class Findings:
    """Collects findings.

    Args:
        history: The history that was read.
        lines: Reads a line again.
        limit: How many findings of each kind to keep. All are counted.
    """

    def __init__(self, history: History, lines: Lines, limit: int) -> None:
        self.counts: Counter[str] = Counter()
        self.ids: list[MessageId] = history.messages.ids()
        self._kept: dict[str, list[Finding]] = {kind: [] for kind in kinds.KINDS}
        self._lines = lines
        self._limit = limit
        self._streams = history.streams.all()
        self._fault_lines = sorted(history.faults)

    def all(self) -> tuple[Finding, ...]:
        """The findings that were kept, one kind after another."""
        return tuple(finding for kind in kinds.KINDS for finding in self._kept[kind])

    def wants(self, kind: str) -> bool:
        """Count one more finding of a kind. Returns whether to call `keep` for it."""
        self.counts[kind] += 1
        return len(self._kept[kind]) < self._limit

    def keep(
        self,
        kind: str,
        text: str,
        shown: list[Shown],
        *,
        row: int = NONE,
        group: str | None = None,
        stream: int = NONE,
    ) -> None:
        """Keep the finding just counted, with the lines that show it."""
        events = tuple(self._evidence(line, of) for line, of in shown if line != NONE)
        topic, partition = self.stream(stream)
        at = max((_at(event) for event in events), default=None)
        self._kept[kind].append(
            Finding(
                kind, text, events,
                message=self.ids[row] if row != NONE else None,
                group=group, topic=topic, partition=partition, fault=self._fault_before(at),
            )
        )  # fmt: skip

    def stream(self, number: int) -> tuple[str | None, int | None]:
        """The topic and partition of a stream's number; None and None for NONE."""
        if number == NONE:
            return None, None
        stream = self._streams[number]
        assert isinstance(stream, tuple)
        return stream

    def _evidence(self, line: int, row: int) -> Evidence:
        event = self._lines.event_of(line)
        source, number = self._lines.place_of(line)
        if row == NONE:
            return Evidence(source, number, f.in_words(event, None, None))
        message = self.ids[row]
        return Evidence(source, number, f.in_words(event, f.decode_ids(event).index(message), message))

    def _fault_before(self, at: float | None) -> Evidence | None:
        if at is None:
            return None
        count = bisect_right(self._fault_lines, at, key=lambda fault: fault[0])
        return self._evidence(self._fault_lines[count - 1][1], NONE) if count else None


def _at(evidence: Evidence) -> float:
    at = evidence.event["at"]
    assert isinstance(at, (int, float))
    return at
