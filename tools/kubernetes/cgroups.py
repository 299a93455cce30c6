"""One cgroup for each node, which holds its containerd, its kubelet, and through them every container.

It lets a node die at one instant: 1. all its processes are frozen, 2. they get SIGKILL, 3. the freeze is lifted. So no
process of the node sees another one die. Works on cgroup v1 (every controller has a hierarchy) and v2 (one).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.kubernetes.errors import ClusterError
from tools.kubernetes.running import wait_until

MOUNTS: Final = Path("/proc/mounts")
KILL_TIMEOUT_S: Final = 20

NODE_WEIGHT: Final = 8
"""How many of the host's processes a node weighs when processors are scarce. With 1, the default, a node with all its
pods gets no more than one compiler that runs beside it, and is taken for lost while it waits."""

SYSTEM_WEIGHT: Final = 4
"""The same for a node's containerd and kubelet beside its pods, which weigh as many as the machine has processors."""


def hierarchies(mounts: str) -> list[Path]:
    """Where cgroup hierarchies are mounted, from the text of /proc/mounts."""
    lines = (line.split() for line in mounts.splitlines())
    return [Path(fields[1]) for fields in lines if len(fields) > 2 and fields[2] in ("cgroup", "cgroup2")]


SYSTEM: Final = "system"
"""The part of a node's cgroup that is not the pods'."""


class Cgroup:
    """One cgroup of the same name in every hierarchy."""

    def __init__(self, name: str) -> None:
        assert name
        assert "/" not in name
        self._name = name

    def create(self) -> None:
        """Make it where it is not there."""
        for directory in self._directories():
            _make(directory, NODE_WEIGHT)
            _make(directory / SYSTEM, SYSTEM_WEIGHT)

    def add(self, pid: int) -> None:
        """Move a process into its `system` part; children it makes from now on are born there."""
        for directory in self._directories():
            with contextlib.suppress(ProcessLookupError):
                (directory / SYSTEM / "cgroup.procs").write_text(str(pid))

    def kill(self) -> None:
        """SIGKILL for everything in it, all at once.

        Raises:
            ClusterError: Something in it cannot be killed.
        """
        if not self.pids():
            return
        with self._frozen():
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until(f"processes of {self._name} to end", self._killed, timeout_s=KILL_TIMEOUT_S, interval_s=0.02)

    def pids(self) -> set[int]:
        """Every process in it or below it, in any hierarchy."""
        found: set[int] = set()
        for directory in self._directories():
            for procs in directory.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):  # a container's cgroup may go while we look
                    found.update(int(line) for line in procs.read_text().split())
        return {pid for pid in found if not _is_zombie(pid)}

    def remove(self) -> None:
        """Remove it; nothing may run in it.

        Raises:
            ClusterError: Something is still in it.
        """
        wait_until(f"{self._name} to be empty", self._removed, timeout_s=KILL_TIMEOUT_S, interval_s=0.05)

    def _removed(self) -> bool:
        try:
            for directory in self._directories():
                below = sorted(path for path in directory.rglob("*") if path.is_dir())
                for path in [*reversed(below), directory] if directory.exists() else []:
                    path.rmdir()
        except OSError as error:  # EBUSY while a dead process waits to be reaped, ENOENT if the kernel was faster
            raise ClusterError(str(error)) from error
        return True

    def _killed(self) -> bool:
        for pid in self.pids():  # one that was being made while we froze
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not self.pids()

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        switches = [
            (path, frozen, thawed)
            for directory in self._directories()
            for path, frozen, thawed in (
                (directory / "freezer.state", "FROZEN", "THAWED"),
                (directory / "cgroup.freeze", "1", "0"),
            )
            if path.exists()
        ]
        for path, frozen, _ in switches:
            path.write_text(frozen)
        try:
            for path, frozen, _ in switches:
                # What waits for the disk freezes late; it cannot act meanwhile, so it need not be waited for.
                with contextlib.suppress(ClusterError):
                    wait_until("freeze", lambda p=path, f=frozen: p.read_text().strip() == f, timeout_s=0.5)  # type: ignore[misc]
            yield
        finally:
            for path, _, thawed in switches:
                path.write_text(thawed)

    def _directories(self) -> list[Path]:
        return [mount / self._name for mount in hierarchies(MOUNTS.read_text())]


def _make(directory: Path, weight: int) -> None:
    """Make one cgroup in one hierarchy, whatever its controllers are."""
    directory.mkdir(exist_ok=True)
    for setting in ("cpuset.cpus", "cpuset.mems"):
        path = directory / setting
        # Version 1: a cpuset without them takes no process. Version 2 takes the parent's.
        if (directory / "tasks").exists() and path.exists() and not path.read_text().strip():
            path.write_text((directory.parent / setting).read_text())
    for setting, one in (("cpu.shares", 1024), ("cpu.weight", 100)):
        if (directory / setting).exists():
            (directory / setting).write_text(str(weight * one))


def _is_zombie(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text[text.rindex(")") + 2] in "ZX"
