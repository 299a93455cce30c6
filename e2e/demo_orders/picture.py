"""Draws the picture of a run: what each consumer finished, the attempts at some aircraft, and all faults, in time.

`e2e.demo.svg` has what this picture shares with that of the other demo. The colour of a mark says in which process the
handler ran, so one sees aircraft move from process to process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from e2e.demo.report import DemoFault, RateSample
from e2e.demo.svg import (
    BOTTOM,
    COLOURS,
    FAINT,
    FAULT_COLOUR,
    GROUND,
    INK,
    LANE_HEIGHT,
    LEFT,
    LEGEND_AT,
    LINE,
    PANEL_SPACE,
    RATE_HEIGHT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    add,
    begin,
    end,
    fault_labels,
    fault_lanes,
    fault_lines,
    rate_panel,
    text_at,
    time_grid,
)
from e2e.demo_orders.delivery_attempts import FAILED, DeliveryAttempt
from e2e.demo_orders.judging import RATE_STEP_S, DeadLettered, Parked, finished_rates

LANES_MAX: Final = 14
"""So many aircraft have a lane."""

_STRIP_HEIGHT: Final = 9
_STRIP_SPACE: Final = 2
_PROCESS_SPACE: Final = 5
_KEY_HEIGHT: Final = 22
_LEVELS: Final = 6  # of the strength of a colour
_PARKED_COLOUR: Final = "#F2C84B"
_DEAD_COLOUR: Final = "#8C6BB1"
MARKS: Final = ("done", "failed", "cut off", "overtaken")
"""The kinds of marks."""

_SHARES: Final = (("overtaken", 2), ("cut off", 4), ("failed", 3), ("done", LANES_MAX))
"""So many lanes are for aircraft to which this happened most often."""


@dataclass(frozen=True, slots=True)
class Story:
    """What the picture shows. Times are in seconds of the monotonic clock, but those of `faults`.

    Attributes:
        attempts: All calls of handlers.
        places: The places of consumers, by process.
        faults: All faults; their times count from `begun_at`.
        parked: What happened to the parked aircraft.
        dead: What happened to the dead-lettered aircraft.
        begun_at: When the first message was sent.
        duration_s: The end of the axis, in seconds from `begun_at`.
    """

    attempts: Sequence[DeliveryAttempt]
    places: Sequence[Sequence[str]]
    faults: Sequence[DemoFault]
    parked: Parked | None
    dead: DeadLettered | None
    begun_at: float
    duration_s: float


def write(path: Path, story: Story, *, title: str, subtitle: str = "") -> None:
    """Draw into a file.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(draw(story, title=title, subtitle=subtitle))


def draw(story: Story, *, title: str, subtitle: str = "") -> str:
    """Return the picture as the text of an SVG file."""
    assert story.duration_s > 0
    scale = Scale(story.duration_s)
    faults = sorted(story.faults, key=lambda fault: fault.at_s)
    labels = fault_labels(faults)
    keys = sample(story)
    colours = {name: COLOURS[n % len(COLOURS)] for n, names in enumerate(story.places) for name in names}
    lanes_top = TOP + RATE_HEIGHT + PANEL_SPACE
    strips_top = lanes_top + len(labels) * LANE_HEIGHT + (PANEL_SPACE if labels else 0)
    strip_count = sum(map(len, story.places))
    strips_end = strips_top + strip_count * (_STRIP_HEIGHT + _STRIP_SPACE) + len(story.places) * _PROCESS_SPACE
    keys_top = strips_end + PANEL_SPACE
    keys_end = keys_top + len(keys) * _KEY_HEIGHT
    figures = f"{len(story.attempts)} attempts by {strip_count} consumers, {len(faults)} faults"
    svg = begin(keys_end + BOTTOM, title, subtitle, figures)
    _legend(svg, story)
    time_grid(svg, scale, TOP, keys_end)
    rate_panel(svg, scale, _rates(story.attempts, story), TOP, what="finished")
    fault_lanes(svg, scale, faults, labels, lanes_top)
    _strips(svg, scale, story, strips_top, colours)
    fault_lines(svg, scale, faults, strips_top - 6, keys_end)
    text_at(svg, LEFT, keys_top - 10, f"attempts at {len(keys)} aircraft", size=11, fill=FAINT)
    for n, key in enumerate(keys):
        _key(svg, scale, story, key, keys_top + n * _KEY_HEIGHT, colours)
    return end(svg)


def sample(story: Story) -> list[str]:
    """The aircraft that have a lane: the two that failed, then some to which each of the other things happened."""
    keys = [one.key for one in (story.parked, story.dead) if one is not None]
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in MARKS}
    for attempt in story.attempts:
        counts[_kind(attempt)][attempt.key] += 1
    for kind, share in _SHARES:
        found = (
            key for key, _ in sorted(counts[kind].items(), key=lambda item: (-item[1], item[0])) if key not in keys
        )
        keys += islice(found, min(share, LANES_MAX - len(keys)))
    return keys


def _kind(attempt: DeliveryAttempt) -> str:
    """One of the four kinds of marks."""
    if attempt.outcome in FAILED:
        return "failed"
    return attempt.outcome if attempt.outcome in ("cut off", "overtaken") else "done"


def _rates(attempts: Sequence[DeliveryAttempt], story: Story) -> list[RateSample]:
    counts = finished_rates(attempts, story.begun_at, story.duration_s)
    return [RateSample((n + 0.5) * RATE_STEP_S, count / RATE_STEP_S) for n, count in enumerate(counts)]


def _legend(svg: ET.Element, story: Story) -> None:
    """Draw the legend on a line of its own: processes, marks, bars."""
    x = float(LEFT)

    def label(text: str) -> None:
        nonlocal x
        text_at(svg, x + 20, LEGEND_AT, text)
        x += 20 + 7.2 * len(text) + 18  # a guess at the text's width, generous for most fonts

    for n, _names in enumerate(story.places):
        add(svg, "rect", x=x, y=LEGEND_AT - 11, width=14, height=13, rx=3, fill=COLOURS[n % len(COLOURS)])
        label(f"process {n + 1}")
    y = LEGEND_AT - 4.5
    for kind in MARKS:
        _mark(svg, x + 8, y, kind, FAINT)
        label(kind)
    for one, colour, text in (
        (story.parked, _PARKED_COLOUR, "parked"),
        (story.dead, _DEAD_COLOUR, "dead letters wait"),
    ):
        if one is not None:
            add(svg, "rect", x=x, y=y - 5, width=14, height=10, rx=2, fill=colour, fill_opacity=0.45)
            label(text)


def _strips(svg: ET.Element, scale: Scale, story: Story, top: float, colours: Mapping[str, str]) -> None:
    """Draw a strip for each consumer. The stronger the colour, the more it finished in that half second."""
    by_place: dict[str, list[DeliveryAttempt]] = defaultdict(list)
    for attempt in story.attempts:
        by_place[attempt.place].append(attempt)
    counts = {
        name: finished_rates(by_place[name], story.begun_at, story.duration_s)
        for names in story.places
        for name in names
    }
    most = max((max(row, default=0) for row in counts.values()), default=0) or 1
    y = top
    for n, names in enumerate(story.places):
        middle = y + len(names) * (_STRIP_HEIGHT + _STRIP_SPACE) / 2
        text_at(svg, LEFT - 12, middle - 3, f"process {n + 1}", anchor="end", weight="600")
        text_at(svg, LEFT - 12, middle + 11, f"{names[0]} to {names[-1]}", size=11, fill=FAINT, anchor="end")
        for name in names:
            group = add(svg, "g")
            total = sum(counts[name])
            add(group, "title", text=f"{name}: {total:,} finished")
            add(
                group, "rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=_STRIP_HEIGHT, fill="#FFFFFF",
                stroke=LINE, stroke_width=0.5,
            )  # fmt: skip
            cells: dict[int, str] = defaultdict(str)
            for step, count in enumerate(counts[name]):
                if count:
                    x, until = scale.x(step * RATE_STEP_S), scale.x((step + 1) * RATE_STEP_S)
                    width = max(until - x, 0.5)
                    cells[-(-_LEVELS * count // most)] += f"M{x:g} {y:g}h{width:.2f}v{_STRIP_HEIGHT}h-{width:.2f}z"
            for level, path in sorted(cells.items()):
                add(group, "path", d=path, fill=colours[name], fill_opacity=round(0.1 + 0.9 * level / _LEVELS, 2))
            y += _STRIP_HEIGHT + _STRIP_SPACE
        y += _PROCESS_SPACE


def _key(svg: ET.Element, scale: Scale, story: Story, key: str, top: float, colours: Mapping[str, str]) -> None:
    """Draw the lane of one aircraft: a mark for each attempt, and a bar while it was parked or its letters waited."""
    y = top + _KEY_HEIGHT / 2
    text_at(svg, LEFT - 12, y + 4, key, anchor="end", weight="600" if _is_special(story, key) else "400")
    add(svg, "line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, stroke=LINE, stroke_width=1)
    own = [attempt for attempt in story.attempts if attempt.key == key]
    parked, dead = story.parked, story.dead
    if parked is not None and parked.key == key:
        words = f"parked, {parked.waiting} messages wait"
        _bar(svg, scale, story, y, parked.parked_at, parked.released_at, _PARKED_COLOUR, words)
    if dead is not None and dead.key == key:
        gave_up = [attempt.begun_at for attempt in own if attempt.outcome == "gave up"]
        if gave_up:
            words = f"{len(dead.letters)} dead letters"
            _bar(svg, scale, story, y, gave_up[0], dead.replayed_at, _DEAD_COLOUR, words)
    for attempt in own:
        mark = add(svg, "g")
        add(mark, "title", text=_words(attempt, story.begun_at))
        _mark(mark, scale.x(attempt.begun_at - story.begun_at), y, _kind(attempt), colours.get(attempt.place, INK))


def _is_special(story: Story, key: str) -> bool:
    return key in (story.parked.key if story.parked else "", story.dead.key if story.dead else "")


def _bar(
    svg: ET.Element, scale: Scale, story: Story, y: float, since: float, until: float, colour: str, words: str
) -> None:
    x, to = scale.x(since - story.begun_at), scale.x(until - story.begun_at)
    height = _KEY_HEIGHT - 4
    bar = add(svg, "g")
    add(bar, "title", text=words)
    add(bar, "rect", x=x, y=y - height / 2, width=max(to - x, 1.0), height=height, rx=3, fill=colour, fill_opacity=0.4)
    if to - x > 7.0 * len(words):
        text_at(bar, (x + to) / 2, y + 4, words, size=11, anchor="middle")


def _words(attempt: DeliveryAttempt, begun_at: float) -> str:
    flags = ", flagged" if attempt.flagged else ""
    return (
        f"event {attempt.number}, attempt {attempt.attempt}{flags}, {attempt.consumer}, at"
        f" {attempt.begun_at - begun_at:.2f} s: {attempt.outcome}"
    )


def _mark(parent: ET.Element, x: float, y: float, kind: str, colour: str) -> None:
    """Draw a stroke (done), a cross (failed), a ring (cut off) or a square (overtaken)."""
    if kind == "done":
        add(parent, "line", x1=x, x2=x, y1=y - 6, y2=y + 6, stroke=colour, stroke_width=2)
    elif kind == "failed":
        for sign in (-1, 1):
            add(
                parent, "line", x1=x - 3.5, x2=x + 3.5, y1=y - 3.5 * sign, y2=y + 3.5 * sign, stroke=FAULT_COLOUR,
                stroke_width=1.6,
            )  # fmt: skip
    elif kind == "cut off":
        add(parent, "circle", cx=x, cy=y, r=4, fill=GROUND, stroke=colour, stroke_width=1.8)
    else:
        add(parent, "rect", x=x - 3.5, y=y - 3.5, width=7, height=7, fill=INK)
