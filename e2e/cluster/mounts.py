"""Mounts that containers and pods leave behind when they die without their runtime."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.running import run, succeeds


def mounts_below(mountinfo: str, directory: Path) -> list[Path]:
    """Every mount point at or below a directory, the latest first, from the text of /proc/self/mountinfo."""
    points = [_unescape(line.split()[4]) for line in mountinfo.splitlines()]
    found = [point for point in points if point == str(directory) or point.startswith(f"{directory}/")]
    return [Path(point) for point in reversed(found)]


def unmount_below(directory: Path) -> None:
    """Unmount all of them, also what is still in use."""
    for point in mounts_below(Path("/proc/self/mountinfo").read_text(), directory.resolve()):
        if not succeeds(["umount", point]):
            run(["umount", "--lazy", point])


def _unescape(field: str) -> str:
    """The kernel writes space, tab, newline and backslash as octal."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
