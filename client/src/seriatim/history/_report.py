"""The checker's report: counts, and findings with their evidence, as text and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from seriatim.history._format import MessageId

LOST: Final = "lost"
REPEATED: Final = "repeated"
REORDERED: Final = "reordered"
REORDERED_PRODUCER: Final = "reordered_producer"
REORDERED_OFFSET: Final = "reordered_offset"
REORDERED_GROUP: Final = "reordered_group"
REORDERED_REALTIME: Final = "reordered_realtime"
OVERLAPPED: Final = "overlapped"
TWO_HANDS: Final = "two_hands"
STALE_TOKEN: Final = "stale_token"  # noqa: S105 - a kind of finding
MISCOUNTED: Final = "miscounted"
ACKNOWLEDGED_AGAIN: Final = "acknowledged_again"
TWICE: Final = "twice"
DEAD_TWICE: Final = "dead_twice"
DEAD_MISPLACED: Final = "dead_misplaced"
UNFINISHED: Final = "unfinished"
FAILED_DELIVERED: Final = "failed_delivered"
EARLY: Final = "early"
NOT_CANCELLED: Final = "not_cancelled"
MISPLACED: Final = "misplaced"
CONTRADICTED: Final = "contradicted"
UNSENT: Final = "unsent"
STUCK: Final = "stuck"

KINDS: Final = (
    LOST, UNFINISHED, REPEATED, TWICE, ACKNOWLEDGED_AGAIN, REORDERED_PRODUCER, REORDERED_OFFSET, REORDERED_GROUP,
    REORDERED_REALTIME, OVERLAPPED, TWO_HANDS, STALE_TOKEN, MISCOUNTED, DEAD_TWICE, DEAD_MISPLACED, FAILED_DELIVERED,
    EARLY, NOT_CANCELLED, MISPLACED, CONTRADICTED, UNSENT, STUCK,
)  # fmt: skip
"""Every kind of finding, in the order in which they are printed."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of the history, with names instead of short keys. If it is a batch, only one message of it is shown."""

    source: str
    line: int
    event: Mapping[str, object]

    def __str__(self) -> str:
        said = " ".join(f"{name}={value}" for name, value in self.event.items() if name not in ("kind", "at"))
        at = self.event.get("at")
        when = f"{at:>12.6f} s  " if isinstance(at, (int, float)) else ""
        return f"{when}{self.event.get('kind')!s:<8} {said}  ({self.source}:{self.line})"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise.

    Attributes:
        kind: One of `KINDS`.
        text: A sentence that says what happened.
        events: The lines that show it, in the order in which the sentence needs them.
        message: The message's id; None if it is not about one message.
        group: The consumer group's name; None if it is not about one.
        topic: The topic's name; None if not known.
        partition: The partition's number in the topic; None if not known.
        fault: The last fault that was injected or healed before it; None if none was recorded.
    """

    kind: str
    text: str
    events: tuple[Evidence, ...]
    message: MessageId | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    fault: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check.

    Attributes:
        counts: Exact figures: the events (`sent`, `ok`, `failed`, `unknown`, `no_outcome`, `delivered`, …), and the
            findings of each of `KINDS`. `reordered` counts each (group, message) of the four ways once.
        findings: The first findings of each kind, up to the caller's limit.
        unknown_share: Unknown outcomes as a share of the messages sent, 0 to 1. Sends without any outcome count too.
        span_s: The time from the first to the last event, in seconds.
        groups: The names of the consumer groups, sorted.
        unjudged: What the checker could not judge, and why: a sentence for each group or topic.
    """

    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    unknown_share: float
    span_s: float
    groups: tuple[str, ...]
    unjudged: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no finding."""
        return not any(self.counts[kind] for kind in KINDS)

    def to_dict(self) -> dict[str, object]:
        """The report as plain data, ready for JSON."""
        return {
            "ok": self.ok,
            "counts": dict(self.counts),
            "unknown_share": self.unknown_share,
            "span_s": self.span_s,
            "groups": list(self.groups),
            "unjudged": list(self.unjudged),
            "findings": [_plain(finding) for finding in self.findings],
        }


def _plain(finding: Finding) -> dict[str, object]:
    return {
        "kind": finding.kind,
        "text": finding.text,
        "message": finding.message,
        "group": finding.group,
        "topic": finding.topic,
        "partition": finding.partition,
        "events": [_plain_evidence(evidence) for evidence in finding.events],
        "fault": None if finding.fault is None else _plain_evidence(finding.fault),
    }


def _plain_evidence(evidence: Evidence) -> dict[str, object]:
    return {"source": evidence.source, "line": evidence.line, "event": dict(evidence.event)}


def render(report: Report) -> str:
    """The report for humans, as plain text of several lines, without a newline at its end."""
    counts = report.counts
    lines = [
        f"{counts['sent']:,} sent: {counts['ok']:,} ok, {counts['failed']:,} failed, {counts['unknown']:,} unknown"
        + (f", {counts['no_outcome']:,} without outcome" if counts["no_outcome"] else "")
        + f" ({report.unknown_share:.4%} unknown), over {report.span_s:.1f} s",
        f"{counts['delivered']:,} first deliveries to {_plural(len(report.groups), 'group')}"
        + (f" ({', '.join(report.groups)})" if report.groups else "")
        + f" from {_plural(counts['partitions'], 'partition')}, {counts['redelivered']:,} flagged repeats,"
        f" {_plural(counts['gaps'], 'declared gap')} ({counts['in_gaps']:,} messages),"
        f" {_plural(counts['faults'], 'fault event')}",
    ]
    if counts["nacks"] or counts["dead_letters"] or counts["waiting"]:
        lines.append(
            f"{_plural(counts['nacks'], 'failed attempt')}, {_plural(counts['dead_letters'], 'dead letter')}, "
            f"{_plural(counts['waiting'], 'message')} after parked ones"
        )
    if counts["cancelled"]:
        lines.append(f"{_plural(counts['cancelled'], 'delayed message')} cancelled, or perhaps, and not delivered")
    if counts["cut_runs"]:
        lines.append(f"{_plural(counts['cut_runs'], 'recording process')} killed, {counts['torn_lines']:,} torn lines")
    if counts["unsent_in_cut_runs"]:
        lines.append(f"{counts['unsent_in_cut_runs']:,} delivered messages whose send a killed recorder did not keep")
    lines += [f"Not judged: {what}." for what in report.unjudged]
    if not counts["sent"]:
        lines.append("Nothing was sent, so nothing is shown by this history.")
    elif not report.groups:
        lines.append("No consumer group was recorded, so nothing is known of deliveries.")
    lines.append("")
    for kind in KINDS:
        if counts[kind]:
            lines.append(f"{kind}: {counts[kind]:,}")
            shown = [finding for finding in report.findings if finding.kind == kind]
            for finding in shown:
                lines.extend(_render(finding))
            if counts[kind] > len(shown):
                lines.append(f"  … and {counts[kind] - len(shown):,} more")
            lines.append("")
    good = "OK: nothing lost, repeated or reordered" + (" in what was judged" if report.unjudged else "")
    lines.append(good if report.ok else "FAILED: " + _summary(counts))
    return "\n".join(lines)


def _render(finding: Finding) -> list[str]:
    lines = [f"  - {finding.text}"]
    lines += [f"      {evidence}" for evidence in finding.events]
    if finding.fault is not None:
        lines.append(f"      last fault before: {str(finding.fault).strip()}")
    return lines


def _summary(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if counts[kind])


def _plural(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}es" if noun.endswith("s") else f"{count:,} {noun}s"
