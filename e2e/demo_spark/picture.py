"""The picture of the replay: rows in the second topic over time, and what was killed when."""

from __future__ import annotations

from pathlib import Path

from e2e.demo.picture import RunPicture
from e2e.demo_spark.strikes import Course

HEIGHT = 260


def draw(file: Path, course: Course, total: int) -> None:
    """Draw into a file.

    Args:
        file: The file.
        course: The course of the replay.
        total: The number of rows that it had to send.

    Raises:
        OSError: The file cannot be written.
    """
    span_s = course.took_s or 1.0
    subtitle = f"in {span_s:.0f} s, by {course.starts} drivers, {len(course.strikes)} kills"
    picture = RunPicture(f"{total:,} rows replayed", subtitle, duration_s=span_s, faults=course.strikes)
    picture.axis = "time since the replay began"
    picture.fault_legend()
    top = picture.y
    picture.rate([*course.rows, (span_s, total)], "rows", "published", unit="", height=HEIGHT, is_capped=False)
    picture.lanes()
    picture.fault_lines(top, top + HEIGHT)
    picture.save(file)
