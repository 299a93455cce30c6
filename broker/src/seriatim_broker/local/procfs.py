"""What the kernel says about a process: enough to be sure that a pid still means the process it meant.

Linux only (`/proc`), as the rest of the local cluster is: it stands on pidfds and on a parent-death signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ProcessState = Literal["running", "frozen", "dead"]


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process for ever: a pid is reused, a pid with its start time (in clock ticks since boot) is not."""

    pid: int
    started_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of the process that has `pid` now; None if there is none."""
    fields = _stat(pid)
    return None if fields is None else ProcessIdentity(pid, int(fields[19]))


def state_of(identity: ProcessIdentity) -> ProcessState:
    """Whether that very process runs, is stopped by a signal, or has ended (also if nobody has reaped it yet)."""
    fields = _stat(identity.pid)
    if fields is None or int(fields[19]) != identity.started_ticks or fields[0] in "ZX":
        return "dead"
    return "frozen" if fields[0] in "Tt" else "running"


def boot_id() -> str:
    """A random id of this run of the machine's kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third on: the second, the command, may hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()
