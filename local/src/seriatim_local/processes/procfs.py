"""Facts of the kernel about a process. With them one can be sure that a pid still means the same process.

This works on Linux only (`/proc`), as all of the local cluster does: it needs pidfds and a parent-death signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ProcessState = Literal["running", "frozen", "dead"]


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The identity of one process. A pid is reused, but a pid with its start time (clock ticks since boot) is not."""

    pid: int
    started_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of the process that has `pid` now; None if there is none."""
    fields = _stat(pid)
    return None if fields is None else ProcessIdentity(pid, int(fields[19]))


def state_of(identity: ProcessIdentity) -> ProcessState:
    """Whether this process runs, is stopped by a signal, or has ended (also if it was not reaped yet)."""
    fields = _stat(identity.pid)
    if fields is None or int(fields[19]) != identity.started_ticks or fields[0] in "ZX":
        return "dead"
    return "frozen" if fields[0] in "Tt" else "running"


def boot_id() -> str:
    """A random id that the kernel makes at each boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third on. The second, the command, may have spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()
