"""What the processes of each role used while a workload ran: processor time, wake-ups, bytes written, memory.

Linux only: see proc(5).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.bench.measures.machine import cpu_s


@dataclass(frozen=True, slots=True)
class Used:
    """What a role used.

    Attributes:
        cpu_s: Processor time of all its threads, user and system, in seconds.
        wakeups: How often one of its threads gave up the processor by itself: it then waits, and is woken up.
        written_bytes: Bytes that it gave to the disk, in whole pages of 4 KiB.
        memory_mib: Resident memory at the end, in MiB.
    """

    cpu_s: float
    wakeups: int
    written_bytes: int
    memory_mib: float


class UsageClock:
    """Counts what the roles use from the moment it is made. A process must live until `used` is called."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = {role: tuple(found) for role, found in pids.items()}
        self._before = {role: _sum(found) for role, found in self._pids.items()}
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self._begin

    def used(self) -> dict[str, Used]:
        """What each role used since then.

        Raises:
            OSError: A process has ended.
        """
        after = {role: _sum(found) for role, found in self._pids.items()}
        return {
            role: Used(
                now.cpu_s - (then := self._before[role]).cpu_s,
                now.wakeups - then.wakeups,
                now.written_bytes - then.written_bytes,
                round(now.memory_mib, 1),
            )
            for role, now in after.items()
        }


def _sum(pids: Sequence[int]) -> Used:
    return Used(
        sum(map(cpu_s, pids)),
        sum(count for pid in pids for count in _wakeups(pid)),
        sum(_field(Path(f"/proc/{pid}/io"), "write_bytes") for pid in pids),
        sum(_field(Path(f"/proc/{pid}/status"), "VmRSS") for pid in pids) / 1024,
    )


def _wakeups(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            yield _field(thread / "status", "voluntary_ctxt_switches")
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended since


def _field(file: Path, name: str) -> int:
    """The number after `name:` in a file of lines."""
    for line in file.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"{file} has no {name}")
