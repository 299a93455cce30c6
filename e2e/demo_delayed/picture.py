"""The picture of a run: how late each message was, above the moment at which it came."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from e2e.charts import COLOURS, FAINT, add
from e2e.demo.picture import RunPicture
from e2e.demo_delayed.fates import Fates

HEIGHT: Final = 300
LEAST_MS: Final = 1.0
RATE_STEP_S: Final = 0.5
DOT: Final = 2.4


def draw(file: Path, fates: Fates, begin: float) -> None:
    """Draw into a file.

    Args:
        file: The file.
        fates: What happened.
        begin: When the first message was sent, by the monotonic clock, in seconds.

    Raises:
        OSError: The file cannot be written.
    """
    came = [(at - begin, max(late_ms, LEAST_MS)) for at, late_ms in fates.late]
    subtitle = f"{len(came):,} messages; each dot is one: when it came, and how long after it was due"
    picture = RunPicture("Lateness of delayed messages", subtitle, duration_s=fates.duration_s, faults=fates.faults)
    picture.fault_legend()
    counts = [0] * (int(fates.duration_s / RATE_STEP_S) + 1)
    for at_s, _ in came:
        counts[min(int(at_s / RATE_STEP_S), len(counts) - 1)] += 1
    picture.rate([((n + 0.5) * RATE_STEP_S, count / RATE_STEP_S) for n, count in enumerate(counts)], "fired")
    picture.lanes()
    top, powers = picture.y, math.ceil(math.log10(max([10.0, *(late_ms for _, late_ms in came)])))
    scale = HEIGHT / powers
    for power in range(powers + 1):
        picture.line(top + HEIGHT - scale * power)
        picture.label(top + HEIGHT - scale * power, f"{10**power:,} ms", "late" if power == powers else "", fill=FAINT)
    picture.y = top + HEIGHT
    picture.fault_lines(top, picture.y)
    dots = {(round(picture.x(at_s)), round(top + HEIGHT - scale * math.log10(late_ms))) for at_s, late_ms in came}
    path = "".join(f"M{x} {y}h0" for x, y in sorted(dots))
    add(
        picture.svg, "path", d=path, stroke=COLOURS[0], stroke_width=DOT, stroke_linecap="round", stroke_opacity=0.6
    )  # fmt: skip
    picture.save(file)
