"""The findings of `doctor`: what was examined, how it is, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text


class Level(enum.IntEnum):
    """How bad a finding is; a higher number is worse."""

    WELL = 0
    UNKNOWN = 1
    WARNING = 2
    BAD = 3


@dataclass(frozen=True)
class Finding:
    """One thing that `doctor` examined.

    Attributes:
        level: How bad it is.
        about: What was examined, in one or two words.
        text: How it is, in a sentence.
        remedy: What to do; empty if nothing is wrong.
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
    """Make a finding for something that is as it should be."""
    return Finding(Level.WELL, about, text)


def unknown(about: str, text: str, remedy: str) -> Finding:
    """Make a finding for something that could not be examined."""
    return Finding(Level.UNKNOWN, about, text, remedy)


def warning(about: str, text: str, remedy: str) -> Finding:
    """Make a finding for something that works now but needs attention."""
    return Finding(Level.WARNING, about, text, remedy)


def bad(about: str, text: str, remedy: str) -> Finding:
    """Make a finding for something that does not work."""
    return Finding(Level.BAD, about, text, remedy)


def draw_findings(findings: Iterable[Finding], *, verbose: bool) -> RenderableType:
    """The findings, worst first, and a count of those that found nothing wrong.

    Args:
        findings: All findings.
        verbose: Draw also those of what is well.
    """
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
