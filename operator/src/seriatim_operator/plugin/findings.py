"""What a doctor says: what was looked at, how it is, and what can be done."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text


class Level(enum.IntEnum):
    """How bad it is."""

    WELL = 0
    UNKNOWN = 1
    WARNING = 2
    BAD = 3


@dataclass(frozen=True)
class Finding:
    """One sentence of the doctor's.

    Attributes:
        about: What was examined, in a word or two.
        text: How it is.
        remedy: What to do; empty if it is well.
    """

    level: Level
    about: str
    text: str
    remedy: str = ""


_MARKS = {
    Level.WELL: ("✔", "green"),
    Level.UNKNOWN: ("?", "yellow"),
    Level.WARNING: ("!", "yellow"),
    Level.BAD: ("✘", "red"),
}


def well(about: str, text: str) -> Finding:
    """It is as it should be."""
    return Finding(Level.WELL, about, text)


def unknown(about: str, text: str, remedy: str) -> Finding:
    """It could not be examined."""
    return Finding(Level.UNKNOWN, about, text, remedy)


def warning(about: str, text: str, remedy: str) -> Finding:
    """It works, and will not always."""
    return Finding(Level.WARNING, about, text, remedy)


def bad(about: str, text: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding(Level.BAD, about, text, remedy)


def draw_findings(findings: Iterable[Finding], *, verbose: bool) -> RenderableType:
    """What is not well, worst first, and how much is."""
    found = sorted(findings, key=lambda finding: -finding.level)
    lines: list[Text] = []
    for finding in found:
        if finding.level is Level.WELL and not verbose:
            continue
        mark, style = _MARKS[finding.level]
        line = Text.assemble((f"{mark} {finding.about}: ", style), finding.text)
        if finding.remedy:
            line.append(f"\n    remedy: {finding.remedy}", style="dim")
        lines.append(line)
    number = sum(finding.level is Level.WELL for finding in found)
    lines.append(Text(f"{number} of {len(found)} examinations found nothing wrong"))
    return Group(*lines)
