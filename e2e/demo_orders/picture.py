"""Draws what each consumer finished, the attempts at some aircraft, and all faults, in time.

The colour of a mark says in which process the handler ran, so one sees aircraft move from process to process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from e2e.charts import COLOURS, FAINT, GROUND, INK, LINE, PANEL_SPACE, add, box, text_at, titled
from e2e.demo.picture import FAULT_COLOUR, RunPicture
from e2e.demo.report import DemoFault
from e2e.demo_orders.delivery_attempts import FAILED, DeliveryAttempt
from e2e.demo_orders.judging import DeadLettered, Parked

RATE_STEP_S: Final = 0.5
"""Finished messages are counted in steps of this length."""

LANES_MAX: Final = 14
"""How many aircraft have a lane."""

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
"""How many lanes are for aircraft to which this happened most often."""


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

    def finished(self, attempts: Iterable[DeliveryAttempt]) -> list[int]:
        """How many messages were finished in each `RATE_STEP_S`."""
        counts = [0] * (int(self.duration_s / RATE_STEP_S) + 1)
        for attempt in attempts:
            if attempt.outcome == "done" and attempt.ended_at is not None:
                step = int((attempt.ended_at - self.begun_at) / RATE_STEP_S)
                if 0 <= step < len(counts):
                    counts[step] += 1
        return counts


def draw(file: Path, story: Story, subtitle: str) -> None:
    """Draw into a file.

    Raises:
        OSError: The file cannot be written.
    """
    picture = RunPicture(
        "Attempts and faults of the demo", subtitle, duration_s=story.duration_s, faults=story.faults
    )  # fmt: skip
    colours = dict(zip((names[0] for names in story.places), COLOURS * len(story.places), strict=False))
    for number, colour in enumerate(colours.values()):
        picture.legend(f"process {number + 1}", box(colour))
    for kind in MARKS:
        picture.legend(kind, partial(_mark, kind=kind, colour=FAINT))
    if story.parked is not None:
        picture.legend("parked", box(_PARKED_COLOUR, 0.45))
    if story.dead is not None:
        picture.legend("dead letters wait", box(_DEAD_COLOUR, 0.45))
    rates = [((n + 0.5) * RATE_STEP_S, count / RATE_STEP_S) for n, count in enumerate(story.finished(story.attempts))]
    picture.rate(rates, "finished")
    picture.lanes()
    top = picture.y
    _strips(picture, story, colours)
    keys = sample(story)
    picture.y += PANEL_SPACE
    text_at(picture.svg, picture.left, picture.y - 10, f"attempts at {len(keys)} aircraft", size=11, fill=FAINT)
    picture.fault_lines(top - 6, picture.y + len(keys) * _KEY_HEIGHT)
    of_place = {name: colours[names[0]] for names in story.places for name in names}
    for key in keys:
        _key(picture, story, key, of_place)
    picture.save(file)


def sample(story: Story) -> list[str]:
    """The aircraft that have a lane: the two that failed, then some to which each of the other things happened."""
    keys = [one.key for one in (story.parked, story.dead) if one is not None]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for attempt in story.attempts:
        counts[_kind(attempt)][attempt.key] += 1
    for kind, share in _SHARES:
        most = sorted(counts[kind].items(), key=lambda item: (-item[1], item[0]))
        keys += islice((key for key, _ in most if key not in keys), min(share, LANES_MAX - len(keys)))
    return keys


def _kind(attempt: DeliveryAttempt) -> str:
    """One of the four kinds of marks."""
    if attempt.outcome in FAILED:
        return "failed"
    return attempt.outcome if attempt.outcome in ("cut off", "overtaken") else "done"


def _strips(picture: RunPicture, story: Story, colours: dict[str, str]) -> None:
    """Draw a strip for each consumer. The stronger the colour, the more it finished in that half second."""
    by_place: dict[str, list[DeliveryAttempt]] = defaultdict(list)
    for attempt in story.attempts:
        by_place[attempt.place].append(attempt)
    counts = {name: story.finished(by_place[name]) for names in story.places for name in names}
    most = max((count for row in counts.values() for count in row), default=0) or 1
    for number, names in enumerate(story.places):
        middle = picture.y + len(names) * (_STRIP_HEIGHT + _STRIP_SPACE) / 2
        picture.label(middle, f"process {number + 1}", f"{names[0]} to {names[-1]}", weight="600")
        for name in names:
            y = picture.y
            strip = titled(picture.svg, f"{name}: {sum(counts[name]):,} finished")
            add(
                strip, "rect", x=picture.left, y=y, width=picture.right - picture.left, height=_STRIP_HEIGHT,
                fill="#FFFFFF", stroke=LINE, stroke_width=0.5,
            )  # fmt: skip
            cells: dict[int, str] = defaultdict(str)
            for step, count in enumerate(counts[name]):
                if count:
                    x, until = picture.x(step * RATE_STEP_S), picture.x((step + 1) * RATE_STEP_S)
                    width = max(until - x, 0.5)
                    cells[-(-_LEVELS * count // most)] += f"M{x:g} {y:g}h{width:.2f}v{_STRIP_HEIGHT}h-{width:.2f}z"
            for level, path in sorted(cells.items()):
                opacity = round(0.1 + 0.9 * level / _LEVELS, 2)
                add(strip, "path", d=path, fill=colours[names[0]], fill_opacity=opacity)
            picture.y += _STRIP_HEIGHT + _STRIP_SPACE
        picture.y += _PROCESS_SPACE


def _key(picture: RunPicture, story: Story, key: str, colours: dict[str, str]) -> None:
    """Draw the lane of one aircraft: a mark for each attempt, and a bar while it was parked or its letters waited."""
    y = picture.y + _KEY_HEIGHT / 2
    picture.y += _KEY_HEIGHT
    parked = story.parked if story.parked is not None and story.parked.key == key else None
    dead = story.dead if story.dead is not None and story.dead.key == key else None
    picture.label(y, key, weight="600" if parked or dead else "400")
    picture.line(y)
    own = [attempt for attempt in story.attempts if attempt.key == key]
    if parked:
        words = f"parked, {parked.waiting} messages wait"
        _bar(picture, story, y, parked.parked_at, parked.released_at, _PARKED_COLOUR, words)
    if dead and (gave_up := [attempt.begun_at for attempt in own if attempt.outcome == "gave up"]):
        _bar(picture, story, y, gave_up[0], dead.replayed_at, _DEAD_COLOUR, f"{len(dead.letters)} dead letters")
    for attempt in own:
        at_s, flags = attempt.begun_at - story.begun_at, ", flagged" if attempt.flagged else ""
        words = f"event {attempt.number}, attempt {attempt.attempt}{flags}, {attempt.consumer}, at {at_s:.2f} s"
        mark = titled(picture.svg, f"{words}: {attempt.outcome}")
        _mark(mark, picture.x(at_s), y, _kind(attempt), colours.get(attempt.place, INK))


def _bar(picture: RunPicture, story: Story, y: float, since: float, until: float, colour: str, words: str) -> None:
    x, to = picture.x(since - story.begun_at), picture.x(until - story.begun_at)
    height, width = _KEY_HEIGHT - 4, max(to - x, 1.0)
    bar = titled(picture.svg, words)
    add(bar, "rect", x=x, y=y - height / 2, width=width, height=height, rx=3, fill=colour, fill_opacity=0.4)
    if width > 7.0 * len(words):
        text_at(bar, (x + to) / 2, y + 4, words, size=11, anchor="middle")


def _mark(parent: ET.Element, x: float, y: float, kind: str, colour: str) -> None:
    """Draw a stroke (done), a cross (failed), a ring (cut off) or a square (overtaken)."""
    if kind == "done":
        add(parent, "line", x1=x, x2=x, y1=y - 6, y2=y + 6, stroke=colour, stroke_width=2)
    elif kind == "failed":
        cross = f"M{x - 3.5:g} {y - 3.5:g}l7 7m-7 0l7 -7"
        add(parent, "path", d=cross, stroke=FAULT_COLOUR, stroke_width=1.6)
    elif kind == "cut off":
        add(parent, "circle", cx=x, cy=y, r=4, fill=GROUND, stroke=colour, stroke_width=1.8)
    else:
        add(parent, "rect", x=x - 3.5, y=y - 3.5, width=7, height=7, fill=INK)
