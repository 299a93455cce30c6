"""Reads the facts of the machine on which a figure was measured, and the processor time of processes.

Linux only: most comes from /proc.
"""

from __future__ import annotations

import os
import platform
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

FLUSH_COUNT: Final = 100
FLUSH_BYTES: Final = 1024

CPUCLOCK_SCHED: Final = 2
"""Linux's name for the time that the scheduler gave to a process (`include/linux/posix-timers.h`)."""

_DISTRIBUTIONS = ("grpcio", "pyarrow", "rocksdict")


def machine_facts(directory: Path) -> dict[str, object]:
    """Cores, memory, kernel, Python, libraries, how fast `directory` syncs, and how busy the machine was before the
    run.
    """
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_is_profiled": is_profiled(sysconfig.get_config_vars(), sysconfig.get_scheme_names()),
        "libraries": {name: metadata.version(name) for name in _DISTRIBUTIONS},
        "file_system": _file_system(directory.resolve()),
        "load_average_1m": round(os.getloadavg()[0], 2),
        "sync_ms_p50": round(flush_ms_p50(directory), 3),
    }


def is_profiled(built: Mapping[str, object], schemes: Sequence[str]) -> bool | None:
    """Whether a Python was built with profile-guided optimization; None if it does not report.

    `PROFILE_TASK` and `PGO_PROF_USE_FLAG` do not tell: builds without it have them too.

    Args:
        built: How it was built (`sysconfig.get_config_vars()`).
        schemes: Its places for packages (`sysconfig.get_scheme_names()`).
    """
    if "deb_system" in schemes:
        return True  # Debian and those that come from it build so, and their Python does not show it
    flags = [str(built.get(name) or "") for name in ("CONFIGURE_CFLAGS", "PY_CFLAGS", "PY_CFLAGS_NODIST")]
    if any("-fprofile-use" in flag or "-fprofile-instr-use" in flag for flag in flags):
        return True
    arguments = str(built.get("CONFIG_ARGS") or "")
    return "--enable-optimizations" in arguments if arguments else None


def python_told(facts: Mapping[str, object]) -> str:
    """Say for humans which Python it was, and how it was built."""
    known = {True: "built with", False: "built WITHOUT", None: "perhaps built without"}
    how = known[facts["python_is_profiled"]]  # type: ignore[index]
    return f"Python {facts['python']}, {how} profile-guided optimization"


def flush_ms_p50(directory: Path) -> float:
    """Measure the median time to write and sync `FLUSH_BYTES`, in ms. No flushed message can be faster."""
    taken = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(FLUSH_COUNT):
            begin = time.perf_counter()
            os.write(file.fileno(), bytes(FLUSH_BYTES))
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - begin) * 1000)
    return sorted(taken)[len(taken) // 2]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """The type of the mount that holds the directory."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        if directory.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, name
    return kind


def cpu_s(pid: int) -> float:
    """Processor time of a process and of all its threads so far, user and system, in seconds.

    It comes from the process's own clock (clock_getcpuclockid(3)), which counts nanoseconds. `/proc/PID/stat` counts
    hundredths of a second: six idle brokers use not many more than that in a second.

    Raises:
        OSError: There is no such process.
    """
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


class MachineCpu(NamedTuple):
    """Seconds of all processors together: they worked (busy), the hypervisor kept them from working (stolen), all time
    (total).
    """

    busy_s: float
    stolen_s: float
    total_s: float

    def __sub__(self, earlier: MachineCpu) -> MachineCpu:
        return MachineCpu(*(now - then for now, then in zip(self, earlier, strict=True)))


def machine_cpu() -> MachineCpu:
    """Read the times since the machine started: see proc(5), `/proc/stat`."""
    ticks = os.sysconf("SC_CLK_TCK")
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, idle, iowait, irq, softirq, steal = (int(field) / ticks for field in line.split()[1:9])
    busy_s = user + nice + system + irq + softirq
    return MachineCpu(busy_s, steal, busy_s + steal + idle + iowait)


@dataclass(frozen=True, slots=True)
class CpuClock:
    """The processor time that several processes use from the moment `start` is called.

    Attributes:
        pids: The processes of each role.
        begun_s: The time that each role had used at that moment, in seconds.
    """

    pids: Mapping[str, Sequence[int]]
    begun_s: Mapping[str, float]

    @classmethod
    def start(cls, pids: Mapping[str, Sequence[int]]) -> CpuClock:
        """Begin to count."""
        return cls(pids, {role: sum(map(cpu_s, found)) for role, found in pids.items()})

    def used_s(self) -> dict[str, float]:
        """Return the time that each role has used since then, in seconds."""
        return {role: sum(map(cpu_s, found)) - self.begun_s[role] for role, found in self.pids.items()}

    def per_million(self, message_count: int) -> dict[str, float]:
        """Return the time that each role has used since then, in seconds for a million messages."""
        assert message_count > 0
        return {role: round(used * 1e6 / message_count, 2) for role, used in self.used_s().items()}
