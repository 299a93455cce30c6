"""Processes that outlive the command that starts them, and are ended later by exactly that identity.

A record holds the pid, its start time in ticks and the boot. So if another process has the pid now, it is left alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.kubernetes.cgroups import Cgroup
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import Layout
from tools.kubernetes.running import wait_until

_children: Final[list[subprocess.Popen[bytes]]] = []
"""What this process started; they outlive it, but those that end before it are its to reap."""


@dataclass(frozen=True, slots=True)
class Record:
    """One process for ever.

    Attributes:
        name: Ours: `kubelet-node1`.
        pid: Its process id.
        started_ticks: When it started, in clock ticks since boot.
        boot: The boot's random id.
    """

    name: str
    pid: int
    started_ticks: int
    boot: str


class Processes:
    """The cluster's processes, as recorded in its state directory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        cgroup: Cgroup | None = None,
    ) -> None:
        """Start it unless it runs: in a session of its own, its output appended to `log/<name>.log`."""
        if self.is_running(name):
            return
        self._layout.processes.mkdir(parents=True, exist_ok=True)
        self._layout.log.mkdir(parents=True, exist_ok=True)
        with self.log_path(name).open("ab") as log:
            child = subprocess.Popen(
                [str(part) for part in argv],
                cwd=self._layout.state,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _children.append(child)
        fields = _stat(child.pid)
        assert fields is not None, "a child that was not reaped has an entry in /proc"
        record = Record(name, child.pid, int(fields[19]), _boot_id())
        self._record_path(name).write_text(json.dumps({slot: getattr(record, slot) for slot in Record.__slots__}))
        if cgroup is not None:
            cgroup.add(child.pid)

    def end(self, name: str, *, grace_s: float = 5, number: signal.Signals = signal.SIGTERM) -> None:
        """End it: by `number`, and by SIGKILL after `grace_s` seconds. Forgets it once it has ended."""
        record = self._read(name)
        if record is not None and is_alive(record):
            _signal(record, number)
            try:
                wait_until(f"{name} to end", lambda: not is_alive(record), timeout_s=grace_s, interval_s=0.02)
            except ClusterError:
                _signal(record, signal.SIGKILL)
                wait_until(f"{name} to end", lambda: not is_alive(record), timeout_s=10, interval_s=0.02)
        self.forget(name)

    def pid(self, name: str) -> int | None:
        """Its process id, while it runs."""
        record = self._read(name)
        return record.pid if record is not None and is_alive(record) else None

    def forget(self, name: str) -> None:
        """Drop the record of a process that has ended."""
        self._record_path(name).unlink(missing_ok=True)

    def is_running(self, name: str) -> bool:
        """Whether that very process is alive."""
        return self.pid(name) is not None

    def names(self) -> list[str]:
        """All recorded, alive or not."""
        return sorted(path.stem for path in self._layout.processes.glob("*.json"))

    def alive(self) -> Iterator[Record]:
        """The records of those that run."""
        for name in self.names():
            record = self._read(name)
            if record is not None and is_alive(record):
                yield record

    def log_path(self, name: str) -> Path:
        """Where its output goes."""
        return self._layout.log / f"{name}.log"

    def _record_path(self, name: str) -> Path:
        return self._layout.processes / f"{name}.json"

    def _read(self, name: str) -> Record | None:
        try:
            return Record(**json.loads(self._record_path(name).read_text()))
        except FileNotFoundError:
            return None


def is_alive(record: Record) -> bool:
    """Whether that very process runs (one that only waits to be reaped does not)."""
    fields = _stat(record.pid)
    if fields is not None and fields[0] in "ZX":
        for child in _children:
            child.poll()  # a dead child of ours is a zombie until we look
        return False
    return fields is not None and int(fields[19]) == record.started_ticks and record.boot == _boot_id()


def _signal(record: Record, number: signal.Signals) -> None:
    try:
        os.kill(record.pid, number)
    except ProcessLookupError:
        return


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third on: the second, the command, may hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()
