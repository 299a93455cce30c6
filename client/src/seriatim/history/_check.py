"""The checker: reads a history, checks it, and reports.

`_order` checks order and repeats. This module checks what needs all partitions at once: missing messages, messages that
failed and were delivered, and messages without an outcome.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from seriatim.history import _format as f
from seriatim.history import _report as kinds
from seriatim.history._by_key import Excuses, tell_copies_apart
from seriatim.history._collect import FAILED, NO_OUTCOME, NONE, OK, UNKNOWN, Deliveries, End, History, covering
from seriatim.history._findings import Findings
from seriatim.history._format import format_offset
from seriatim.history._moves import ANY_OFFSET, Move, Moves
from seriatim.history._order import ConsumerGroupView, StreamJudge
from seriatim.history._report import Report
from seriatim.history._sources import Event, FileLines, Lines, MemoryLines

FINDINGS_MAX: Final = 10
"""The findings that are shown of each kind: enough to see a pattern, few enough to read."""


def check(
    paths: str | Path | Iterable[str | Path], *, groups: Collection[str] = (), limit: int = FINDINGS_MAX
) -> Report:
    """Check the history in these files.

    The time is linear in the number of messages, except for a merge by time if several files have deliveries to one
    group. It takes about 100 bytes of memory for each message, and 40 for each delivery.

    Args:
        paths: The files of all processes, in any order.
        groups: Consumer groups that must appear, even if no line is about them.
        limit: How many findings of each kind are kept with their lines. Counts are exact in any case.

    Raises:
        HistoryFormatError: A file has a line that no recorder writes, or a file is given twice.
        OSError: A file cannot be read.
    """
    files = [paths] if isinstance(paths, str | Path) else paths
    return _check(FileLines(Path(path) for path in files), groups, limit)


def check_events(events: Iterable[Event], *, groups: Collection[str] = (), limit: int = FINDINGS_MAX) -> Report:
    """Check a history in memory. Its events have the form of the lines, in the order in which they happened.

    Args:
        events: For example `MemoryHistory.events`.
        groups: As in `check`.
        limit: As in `check`.

    Raises:
        HistoryFormatError: An event that no recorder writes; `line` is its position, counted from 1.
    """
    return _check(MemoryLines(events), groups, limit)


def _check(lines: Lines, groups: Collection[str], limit: int) -> Report:
    assert limit >= 0
    history = History()
    lines.read(history.take)
    return _Checker(history, lines, groups, limit).report()


class _Checker:
    def __init__(self, history: History, lines: Lines, groups: Collection[str], limit: int) -> None:
        self._history = history
        self._messages = history.messages
        self._lines = lines
        copies = tell_copies_apart(history)
        self._findings = Findings(history, lines, limit)
        named = {group for group, _ in history.deliveries} | {group for group, _ in history.acked}
        named |= {end.group for end in history.ends if end.group is not None}
        self._deleted = {topic for topic, act in history.topic_acts if act == "delete"}
        self._without = history.unjudged
        self._groups = tuple(sorted((named | set(groups)) - set(self._without)))
        count = history.messages.row_count
        none = array("i", [NONE])
        self._views = {name: ConsumerGroupView(name, none * count, none * count) for name in self._groups}
        self._judge = StreamJudge(history, self._findings, copies)
        self._stream_count = len(history.streams.all())
        self._run_starts = [run.first_line for run in history.runs]
        self._in_gaps = 0
        self._unsent_excused = 0
        self._waiting_count = 0
        self._cancelled_count = 0
        self._rewound: dict[tuple[str, int], Move] = {}  # what did not come again, and the rewind
        self._excuses: dict[tuple[str, int], Excuses] = {}
        topics = {topic for topic, act in history.topic_acts if act == "publish"}
        self._published = {
            row
            for (_, stream), by_source in history.deliveries.items()
            if topics and self._topic(stream) in topics
            for seen in by_source.values()
            for row in seen.message
        }
        self._keys = [str(key) for key in history.keys.all()]

    def report(self) -> Report:
        for stream in range(self._stream_count):
            if self._topic(stream) not in self._deleted:
                self._judge.judge(stream, self._views)
        self._judge_messages()
        for group, stream, row, act in self._judge.copies.missing:
            if group in self._without or self._topic(stream) in self._deleted:
                continue
            if not self._is_excused(group, stream, row, ANY_OFFSET, act.at) and self._findings.wants(kinds.LOST):
                text = f"the dead letter of message {self._findings.ids[row]!r} was replayed, and no copy was delivered"
                self._findings.keep(kinds.LOST, text, [(act.line, NONE)], row=row, group=group, stream=stream)
        for group in self._groups:
            self._judge_group(group)
        return self._make_report()

    def _judge_messages(self) -> None:
        """Check each message alone, without the groups that received it."""
        messages, findings, first_line = self._messages, self._findings, self._judge.first_line
        for row, line in self._history.contradictions:
            if findings.wants(kinds.CONTRADICTED):
                text = f"message {findings.ids[row]!r} was given two outcomes"
                shown = [(messages.outcome_line[row], row), (line, row)]
                findings.keep(kinds.CONTRADICTED, text, shown, row=row, stream=messages.stream[row])
        for row in range(len(messages)):  # without the copies that were replayed: no producer sent them
            sent_to, outcome, came = messages.stream[row], messages.outcome[row], first_line[row]
            if outcome == FAILED and came != NONE and findings.wants(kinds.FAILED_DELIVERED):
                text = f"message {findings.ids[row]!r} was reported as failed, and delivered"
                shown = [(messages.send_line[row], row), (messages.outcome_line[row], row), (came, row)]
                findings.keep(kinds.FAILED_DELIVERED, text, shown, row=row, stream=sent_to)
            if sent_to == NONE and came != NONE:
                self._judge_unsent(row, came)
            if messages.due[row] and self._history.cancels:
                self._judge_cancelled(row, came)
            waits = outcome == NO_OUTCOME and sent_to != NONE and not self._was_cut(messages.send_line[row])
            if waits and findings.wants(kinds.STUCK):
                text = f"message {findings.ids[row]!r} was sent and has no outcome"
                shown = [(messages.send_line[row], row), (came, row)]
                findings.keep(kinds.STUCK, text, shown, row=row, stream=sent_to)

    def _cancellations(self, row: int) -> list[tuple[str, int]]:
        """The answers to all cancellations of a message, with their lines. "" stands for a question."""
        return self._history.cancels.get(self._messages.stream[row], {}).get(self._messages.offset[row], [])

    def _judge_cancelled(self, row: int, came: int) -> None:
        """Check that a cancelled message never came, and that cancellations have one answer."""
        cancellations = self._cancellations(row)
        lines = {answer: line for answer, line in cancellations if answer in (f.CANCELLED, f.TOO_LATE)}
        findings, stream = self._findings, self._messages.stream[row]
        shown = [(self._messages.outcome_line[row], row), *((line, NONE) for line in sorted(lines.values()))]
        if f.CANCELLED in lines and came != NONE and findings.wants(kinds.NOT_CANCELLED):
            text = f"message {findings.ids[row]!r} was cancelled, and delivered"
            findings.keep(kinds.NOT_CANCELLED, text, [*shown, (came, row)], row=row, stream=stream)
        if len(lines) > 1 and findings.wants(kinds.CONTRADICTED):
            text = f"message {findings.ids[row]!r} was said to be cancelled, and to be due"
            findings.keep(kinds.CONTRADICTED, text, shown, row=row, stream=stream)

    def _is_cancelled(self, row: int) -> bool:
        """Whether a delayed message need not come: it was cancelled, or the answer to that is not known."""
        answers = {answer for answer, _ in self._cancellations(row)} if self._messages.due[row] else set()
        return f.CANCELLED in answers or answers == {""}

    def _judge_unsent(self, row: int, came: int) -> None:
        if row in self._published:
            return  # no producer sent it
        if not all(run.closed for run in self._history.runs):
            # The lines that a killed process had not flushed are gone. The send of this message may be one of them.
            self._unsent_excused += 1
        elif self._findings.wants(kinds.UNSENT):
            text = f"message {self._findings.ids[row]!r} was delivered, but no producer recorded its send"
            self._findings.keep(kinds.UNSENT, text, [(came, row)], row=row)

    def _was_cut(self, line: int) -> bool:
        """Whether the process that wrote this line was killed, so that it could not record an outcome any more."""
        run = bisect_right(self._run_starts, line) - 1
        return run >= 0 and not self._history.runs[run].closed

    def _judge_group(self, group: str) -> None:
        view = self._views[group]
        ends = [end for end in self._history.ends if end.group in (None, group)]
        topics = self._topics(group, ends)
        if not topics and self._deleted:
            return
        drained = {topic: _last_end(ends, topic) for topic in topics}
        is_at_most_once = self._history.modes.get(group, (False, False))[1]
        missing = {} if is_at_most_once else self._missing(view, topics)  # what a dead consumer had is gone
        stuck_streams = 0
        for stream, rows in sorted(missing.items()):
            topic, _partition = self._findings.stream(stream)
            assert topic is not None
            end = drained[topic]
            if end is not None and end.drained:
                for row in rows:
                    self._lost(view, stream, row, end)
            else:
                stuck_streams += 1
                self._stuck(view, stream, rows, end)
        for (name, stream), judge in sorted(self._judge.by_key.items()):
            end = drained.get(self._topic(stream)) if name == group else None
            if end is not None and end.drained:
                judge.judge_end(end.line)
        undrained = [end for end in drained.values() if end is None or not end.drained]
        if not stuck_streams and (undrained or not drained):
            self._undrained(view, undrained[0] if undrained else _last_end(ends, None))

    def _topics(self, group: str, ends: list[End]) -> list[str]:
        """The topics whose messages the group must see: those that it read, or that its `end` lines name."""
        everything = sorted({self._topic(stream) for stream in range(self._stream_count)})
        read = {self._topic(stream) for name, stream in self._history.deliveries if name == group}
        read |= {self._topic(stream) for name, stream in self._history.acked if name == group}
        read |= {end.topic for end in ends if end.topic is not None}
        return sorted((read or set(everything)) - self._deleted)

    def _topic(self, stream: int) -> str:
        topic, _partition = self._findings.stream(stream)
        assert topic is not None
        return topic

    def _is_excused(self, group: str, stream: int, row: int, offset: int, at: float) -> bool:
        """Whether the message never came because it waits behind a parked one, or an administrator let the group pass
        it."""
        place = group, stream
        if place not in self._excuses:
            judge = self._judge.by_key.get(place)
            self._excuses[place] = judge.excuses if judge is not None else Excuses(self._history, group, stream)
        excuses, number = self._excuses[place], self._messages.key[row]
        if offset in excuses.passed or excuses.moves.passes(offset, at):
            return True
        return excuses.is_parked(None if number == NONE else self._keys[number], offset)

    def _missing(self, view: ConsumerGroupView, topics: list[str]) -> dict[int, list[int]]:
        """For each stream, the messages that the group must see and did not, without declared gaps, in offset order."""
        messages = self._messages
        wanted = [self._topic(stream) in topics for stream in range(self._stream_count)]
        missing: dict[int, list[int]] = {}
        for row, (first, outcome, came) in enumerate(
            zip(view.first, messages.outcome, self._judge.first_line, strict=True)
        ):
            if row >= len(messages):
                break  # a copy that was replayed is for one group
            if first != NONE or (outcome != OK and came == NONE):
                continue  # what it got before it was rewound is looked at below
            stream = messages.stream[row]
            if stream == NONE or not wanted[stream]:
                continue
            offset = self._judge.offset_of(row)
            if covering(self._history.gaps.get(stream, []), view.name, offset) is not None:
                self._in_gaps += 1
            elif self._is_excused(view.name, stream, row, offset, messages.send_at[row]):
                self._waiting_count += 1
            elif self._is_cancelled(row):
                self._cancelled_count += 1
            elif messages.due[row] and any(
                gap.group in (None, view.name) and gap.end > offset for gap in self._history.gaps.get(stream, [])
            ):
                self._in_gaps += 1  # it may have been fired there
            else:
                missing.setdefault(stream, []).append(row)
        for (group, stream), by_source in self._history.deliveries.items():
            if group == view.name and wanted[stream]:
                for row in self._not_again(view, stream, by_source):
                    missing.setdefault(stream, []).append(row)
        for rows in missing.values():
            rows.sort(key=lambda row: (self._judge.offset_of(row), messages.send_at[row]))
        return missing

    def _not_again(self, view: ConsumerGroupView, stream: int, by_source: dict[int, Deliveries]) -> list[int]:
        """The messages that the group got, and did not get again although an administrator rewound it to them or
        before."""
        place = view.name, stream
        by_key = any(seen.by_key for seen in by_source.values())
        moves = Moves(self._history.acts.get(place, ()), by_key=by_key)
        if not moves.has_rewinds:
            return []
        came: dict[int, tuple[int, float]] = {}  # message -> its first place, and when it came last
        for seen in by_source.values():
            for row, offset, at in zip(seen.message, seen.offset, seen.at, strict=True):
                first, last = came.get(row, (offset, at))
                came[row] = min(offset, first), max(at, last)
        end = _last_end([end for end in self._history.ends if end.group in (None, view.name)], self._topic(stream))
        gaps = self._history.gaps.get(stream, [])
        settled = self._history.settled.get(place)
        acked = {offset for offset, _ in settled.acked} if settled is not None else set()
        found: list[int] = []
        for row, (offset, at) in came.items():
            move = moves.owed_after(offset)
            if move is None or at >= move.begun or row >= len(self._messages):
                continue
            if by_key and offset not in acked:
                continue  # it is `unfinished`
            if end is not None and end.at < move.until:
                continue  # it was rewound after all was done
            if covering(gaps, view.name, offset) is not None:
                self._in_gaps += 1
            elif self._is_excused(view.name, stream, row, offset, at):
                self._waiting_count += 1
            else:
                found.append(row)
                self._rewound[view.name, row] = move
        return found

    def _lost(self, view: ConsumerGroupView, stream: int, row: int, end: End) -> None:
        if not self._findings.wants(kinds.LOST):
            return
        messages = self._messages
        offset = self._judge.offset_of(row)
        place = f" at {format_offset(offset)}" if offset != NONE else ""
        rewound = self._rewound.get((view.name, row))
        known = f"was acknowledged{place}" if messages.outcome[row] == OK else f"came to another group{place}"
        skip = covering(self._history.skips.get(stream, []), view.name, offset)
        text = f"message {self._findings.ids[row]!r} {known} and never came to group {view.name}"
        if rewound is not None:
            to = format_offset(rewound.to)
            text = (
                f"message {self._findings.ids[row]!r}{place} did not come again to group {view.name}, rewound to {to}"
            )
        if skip is not None:
            text += ", which was told to skip it as a repeat"
        shown = [
            (messages.send_line[row], row),
            (messages.outcome_line[row], row),
            (self._judge.first_line[row], row),
            (skip.line if skip is not None else NONE, NONE),
            (end.line, NONE),
        ]
        self._findings.keep(kinds.LOST, text, shown, row=row, group=view.name, stream=stream)

    def _stuck(self, view: ConsumerGroupView, stream: int, rows: list[int], end: End | None) -> None:
        if not self._findings.wants(kinds.STUCK):
            return
        topic, partition = self._findings.stream(stream)
        messages, first = self._messages, rows[0]
        offset = self._judge.offset_of(first)
        place = f" ({format_offset(offset)})" if offset != NONE else ""
        acked, acked_line = self._history.acked.get((view.name, stream), (NONE, NONE))
        by_source = self._history.deliveries.get((view.name, stream), {})
        last_line = max((seen.line[-1] for seen in by_source.values()), default=NONE)
        text = (
            f"group {view.name} did not drain {topic}/{partition}: it waits for {len(rows):,} messages, the first is"
            f" {self._findings.ids[first]!r}{place}"
            + (f"; it has acknowledged up to {format_offset(acked)}" if acked != NONE else "")
            + (f"; it says: {end.waiting}" if end is not None and end.waiting else "")
        )
        shown = [
            (messages.send_line[first], first),
            (messages.outcome_line[first], first),
            (last_line, NONE),
            (acked_line, NONE),
            (end.line if end is not None else NONE, NONE),
        ]
        self._findings.keep(kinds.STUCK, text, shown, row=first, group=view.name, stream=stream)

    def _undrained(self, view: ConsumerGroupView, end: End | None) -> None:
        if end is not None and end.drained:
            return
        if self._findings.wants(kinds.STUCK):
            said = "never said that it had drained" if end is None else "did not drain"
            more = f"; it says: {end.waiting}" if end is not None and end.waiting else ""
            text = f"group {view.name} has all that was acknowledged, but {said}{more}"
            shown = [(end.line, NONE)] if end is not None else []
            self._findings.keep(kinds.STUCK, text, shown, group=view.name)

    def _make_report(self) -> Report:
        history, outcomes = self._history, self._messages.outcome
        sent = sum(stream != NONE for stream in self._messages.stream)
        no_outcome = sum(
            outcome == NO_OUTCOME and stream != NONE
            for outcome, stream in zip(outcomes, self._messages.stream, strict=True)
        )
        unknown = outcomes.count(UNKNOWN)  # the copies that were replayed have no outcome
        counts = {
            "sent": sent,
            "ok": outcomes.count(OK),
            "failed": outcomes.count(FAILED),
            "unknown": unknown,
            "no_outcome": no_outcome,
            "delivered": self._judge.first_count,
            "redelivered": self._judge.repeat_count,
            "acks": history.ack_count,
            "nacks": history.nack_count,
            "dead_letters": sum(map(len, history.dead.values())),
            "waiting": self._waiting_count,
            "cancelled": self._cancelled_count,
            "gaps": sum(map(len, history.gaps.values())),
            "in_gaps": self._in_gaps,
            "skips": sum(map(len, history.skips.values())),
            "faults": len(history.faults),
            "groups": len(self._groups),
            "partitions": self._stream_count,
            "producers": len(history.producers.all()),
            "torn_lines": sum(source.torn_lines for source in self._lines.sources),
            "cut_runs": sum(not run.closed for run in history.runs),
            "unsent_in_cut_runs": self._unsent_excused,
            kinds.REORDERED: self._judge.reordered_count,
        }
        counts.update({kind: self._findings.counts[kind] for kind in kinds.KINDS})
        return Report(
            counts=counts,
            findings=self._findings.all(),
            unknown_share=(unknown + no_outcome) / sent if sent else 0.0,
            span_s=max(0.0, history.at_last - history.at_first),
            groups=self._groups,
            unjudged=self._unjudged(),
        )

    def _place(self, line: int) -> str:
        return "{}:{}".format(*self._lines.place_of(line))

    def _unjudged(self) -> tuple[str, ...]:
        found = [f"group {group}, because {why} ({self._place(line)})" for group, (why, line) in self._without.items()]
        for (topic, act), line in self._history.topic_acts.items():
            where = f"({self._place(line)})"
            if act == "delete":
                found.append(
                    f"deliveries from topic {topic}, because it was deleted, so its offsets started over {where}"
                )
            else:
                found.append(f"whether messages of topic {topic} were sent, because rows were published there {where}")
        return tuple(sorted(found))


def _last_end(ends: list[End], topic: str | None) -> End | None:
    """The last `end` line about this topic, by time."""
    return max((end for end in ends if end.topic in (None, topic)), key=lambda end: (end.at, end.line), default=None)
