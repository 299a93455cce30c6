"""The segments of all partitions along an axis of time: what the terminal and the picture show of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, groupby
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from rich.text import Text

from e2e.charts import COLOURS, GROUND, add, box, ink_on, text_at, titled
from e2e.demo.live import Scene
from e2e.demo.picture import RunPicture
from e2e.demo.report import DemoFault
from e2e.observe import Snapshot

_LABEL_WIDTH: Final = 5
_ROW_HEIGHT: Final = 26
_ROW_SPACE: Final = 7
_NOTCH_HEIGHT: Final = 7
_NUMBER_WIDTH_MIN: Final = 18  # a bar narrower than this has no room for its segment's number


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """One segment of one partition's chain.

    Attributes:
        partition: The partition in the topic.
        segment_no: The segment's number.
        group: The broker group that held it.
        state: OPEN, SEALED, UNSETTLED or LOST, at the end of the demo.
        opened_at_s: When it was opened, in seconds since the demo began to send (negative: before that).
        sealed_at_s: When the next segment was opened; None: it is open.
        length: The number of messages in it; None: not settled.
    """

    partition: int
    segment_no: int
    group: str
    state: str
    opened_at_s: float
    sealed_at_s: float | None
    length: int | None


Silence = tuple[int, float, float]
"""A partition that acknowledged nothing while messages waited: from when to when, in seconds since the demo began."""


def spans(snapshot: Snapshot, begin_ms: int) -> list[SegmentSpan]:
    """Return all segments of a snapshot along an axis of time that begins at `begin_ms` of the wall clock.

    The record of an unsettled segment has no end. For the eye it ends where the next segment begins.
    """
    ends = {reader.partition: reader.end_position for reader in snapshot.readers if reader.known}
    found = []
    for chain in snapshot.chains:
        for segment, following in zip(chain.segments, [*chain.segments[1:], None], strict=True):
            length, sealed_at_ms = segment.sealed_len, segment.sealed_at_ms
            if length is None and segment.base is not None and following is None and chain.partition in ends:
                length = max(0, ends[chain.partition] - segment.base)
            if not sealed_at_ms and following is not None:
                sealed_at_ms = following.opened_at_ms
            sealed_at_s = (sealed_at_ms - begin_ms) / 1000 if sealed_at_ms else None
            opened_at_s = (segment.opened_at_ms - begin_ms) / 1000
            found.append(
                SegmentSpan(chain.partition, segment.no, segment.group, segment.state, opened_at_s, sealed_at_s, length)
            )
    return found


def colours_of(segments: Sequence[SegmentSpan]) -> dict[str, str]:
    """The colour of each broker group."""
    return dict(zip(sorted({segment.group for segment in segments}), cycle(COLOURS), strict=False))


@dataclass(slots=True)
class ChainScene(Scene):
    """The scene of a demo that shows chains. They share the axis of time with the faults.

    Attributes:
        segments: Every segment of every chain.
        accepted: By partition: the number of events that were acknowledged. Their sum is `acknowledged`.
        consumed: By partition: the number of events that the consumer has got. Their sum is `delivered`.
    """

    delivered: int = 0
    segments: Sequence[SegmentSpan] = ()
    accepted: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    consumed: dict[int, int] = field(default_factory=dict)

    def figures(self) -> list[tuple[str, str]]:
        """What was consumed, and outcomes that are not known."""
        unknown = [(f"  {self.unknown:,} unknown", "not bold yellow")] if self.unknown else []
        return [(f"  {self.delivered:,} consumed", "not bold"), *unknown]

    def more(self) -> str:
        """What was consumed, and the number of segments."""
        return f"  {self.delivered:>9,} consumed  {len(self.segments):>3} segments"

    def panels(self, width: int) -> list[tuple[str, Text]]:
        """The chains."""
        columns = width - _LABEL_WIDTH - 12
        duration_s = max(self.at_s, 1.0)
        colours = colours_of(self.segments)
        marks = [" "] * columns
        for fault in self.faults:
            marks[_column(fault.at_s, duration_s, columns)] = "✕" if fault.hit else "·"
        text = Text(no_wrap=True, overflow="crop")
        text.append(" " * _LABEL_WIDTH)
        text.append("".join(marks), style="bold red")
        for partition, found in groupby(self.segments, key=lambda span: span.partition):
            shown = list(found)
            text.append(f"\n{partition:>3}  ")
            text.append_text(ribbon(shown, duration_s, columns, colours))
            text.append(f" {self._behind(partition, shown)}", style="dim")
        text.append("\n     ")
        for group, colour in colours.items():
            text.append("█", style=colour)
            text.append(f" {group}   ")
        text.append("▒ not settled   ┊ next segment   ✕ fault", style="dim")
        return [("chains (right: the consumer's backlog)", text)]

    def _behind(self, partition: int, shown: Sequence[SegmentSpan]) -> str:
        if any(span.state == "UNSETTLED" for span in shown):
            return "not settled"  # how many messages it has is not known, so the consumer cannot be level
        backlog = self.accepted.get(partition, 0) - self.consumed.get(partition, 0)
        return f"-{backlog:,}" if backlog > 0 else "level"


def ribbon(shown: Sequence[SegmentSpan], duration_s: float, columns: int, colours: dict[str, str]) -> Text:
    """Draw one partition's segments along the axis of time.

    Each cell is a step of time. It shows the newest segment that touches it.
    """
    cells: list[tuple[str, str]] = [(" ", "")] * columns
    for number, span in enumerate(shown):
        begin = _column(span.opened_at_s, duration_s, columns)
        end = columns - 1 if span.sealed_at_s is None else _column(span.sealed_at_s, duration_s, columns)
        body = "█" if span.state in ("OPEN", "SEALED") else "▒"
        cells[begin : end + 1] = [(body, colours[span.group])] * (end + 1 - begin)
        if number:
            cells[begin] = ("┊", colours[span.group])
    runs = groupby(cells, key=lambda cell: cell[1])
    return Text.assemble(*(("".join(character for character, _ in run), style) for style, run in runs))


def _column(at_s: float, duration_s: float, columns: int) -> int:
    return min(max(int(at_s / duration_s * columns), 0), columns - 1)


def draw(
    file: Path, segments: Sequence[SegmentSpan], faults: Sequence[DemoFault], rates: Sequence[tuple[float, float]],
    silences: Sequence[Silence], *, duration_s: float, subtitle: str,
) -> None:  # fmt: skip
    """Draw which broker group held each partition at which time, all faults, and the rate.

    Args:
        file: The file of the picture.
        segments: The segments of all partitions. Each partition is a row, each segment a bar.
        faults: The faults.
        rates: How many events were acknowledged in a second, and when.
        silences: When a partition acknowledged nothing: a notch in its row.
        duration_s: The end of the axis of time, in seconds.
        subtitle: The line below the headline.

    Raises:
        OSError: The file cannot be written.
    """
    picture = RunPicture("Segments and faults of the demo", subtitle, duration_s=duration_s, faults=faults)
    stripes = {"width": 7, "height": 7, "patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    pattern = add(add(picture.svg, "defs"), "pattern", id="unsettled", **stripes)
    add(pattern, "rect", width=3, height=7, fill="#FFFFFF", fill_opacity=0.65)
    colours = colours_of(segments)
    for group, colour in colours.items():
        picture.legend(group, box(colour))
    for state in ("UNSETTLED", "LOST"):
        if any(segment.state == state for segment in segments):
            picture.legend(state.lower(), partial(_sign, state=state))
    picture.fault_legend()
    if silences:
        picture.legend("nothing acknowledged", _silent_sign)
    picture.rate(rates, "accepted")
    picture.lanes()
    top = picture.y
    rows = {}
    for partition in sorted({segment.partition for segment in segments}):
        rows[partition] = picture.y
        picture.label(picture.y + _ROW_HEIGHT / 2, f"partition {partition}")
        picture.y += _ROW_HEIGHT + _ROW_SPACE
    for segment in segments:
        length = "length not settled" if segment.length is None else f"{segment.length:,} messages"
        words = f"segment {segment.segment_no} on {segment.group}: {segment.state}, {length}"
        x, width = _extent(picture, segment)
        _bar(
            titled(picture.svg, words),
            x,
            rows[segment.partition],
            width,
            _ROW_HEIGHT,
            colours[segment.group],
            segment.state,
        )
    for partition, begin_s, end_s in silences:
        if partition in rows:
            notch = titled(picture.svg, f"nothing acknowledged for {(end_s - begin_s) * 1000:,.0f} ms")
            x, y = picture.x(begin_s), rows[partition] + _ROW_HEIGHT - _NOTCH_HEIGHT
            add(notch, "rect", x=x, y=y, width=max(picture.x(end_s) - x, 2.0), height=_NOTCH_HEIGHT, fill=GROUND)
    picture.fault_lines(top - 6, picture.y - _ROW_SPACE + 3)
    for segment in segments:  # the numbers come last, so that no line crosses one
        _number(picture, segment, rows[segment.partition], colours[segment.group])
    picture.save(file)


def _extent(picture: RunPicture, segment: SegmentSpan) -> tuple[float, float]:
    """Return where a segment's bar begins, and its width. Thin gaps separate bars. The shortest bar stays visible."""
    x = picture.x(segment.opened_at_s)
    end_x = picture.x(math.inf if segment.sealed_at_s is None else segment.sealed_at_s)
    return x, max(end_x - x - 1.2, 0.8)


def _number(picture: RunPicture, segment: SegmentSpan, y: float, colour: str) -> None:
    """Write the number of a segment into its bar, if there is room."""
    x, width = _extent(picture, segment)
    room = 7.5 * len(str(segment.segment_no)) + 6
    if width >= max(room, _NUMBER_WIDTH_MIN):
        ground = GROUND if segment.state in ("UNSETTLED", "LOST") else colour
        place = {"x": x + (width - room) / 2, "y": y + 5, "width": room, "height": _ROW_HEIGHT - 10}
        add(picture.svg, "rect", rx=3, fill=ground, **place)
        text_at(
            picture.svg, x + width / 2, y + _ROW_HEIGHT / 2 + 4, str(segment.segment_no),
            size=11, fill=ink_on(ground), anchor="middle", weight="600",
        )  # fmt: skip


def _sign(parent: ET.Element, x: float, y: float, state: str) -> None:
    _bar(parent, x - 8, y - 6.5, 16, 13, "#9AA5B1", state)


def _silent_sign(parent: ET.Element, x: float, y: float) -> None:
    _sign(parent, x, y, "SEALED")
    add(parent, "rect", x=x - 3, y=y + 6.5 - _NOTCH_HEIGHT, width=6, height=_NOTCH_HEIGHT, fill=GROUND)


def _bar(parent: ET.Element, x: float, y: float, width: float, height: float, colour: str, state: str) -> None:
    place = {"x": x, "y": y, "width": width, "height": height, "rx": min(3.0, width / 2)}
    if state == "LOST":
        inside = {"x": x + 0.7, "y": y + 0.7, "width": max(width - 1.4, 0.4), "height": height - 1.4}
        stroke = {"stroke": colour, "stroke_width": 1.4, "stroke_dasharray": "3 2"}
        add(parent, "rect", fill=GROUND, **{**place, **inside}, **stroke)
        return
    add(parent, "rect", fill=colour, **place)
    if state == "UNSETTLED":
        add(parent, "rect", fill="url(#unsettled)", **place)
