"""The state file of a local cluster: what other commands need to find it, and a later one to clean up after it.

It is written whole and renamed into place. What it says of processes may be out of date at any time, so each is named
with its start time and the machine's boot: a pid that now means another process is never touched. Whether a runner
lives is decided by the lock on its directory, not by this file.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TextIO

from seriatim_api.errors import PreconditionError

from seriatim_broker.local.procfs import ProcessIdentity, boot_id, state_of

DIRECTORY_DEFAULT: Final = ".local/cluster"
STATE_FILE_NAME: Final = "cluster.json"
FORMAT_VERSION: Final = 1
_LOCK_FILE_NAME: Final = "lock"
_LOCK_TRY_COUNT: Final = 5
_LOCK_RETRY_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A process of the cluster as of the last change."""

    name: str
    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What is in the file.

    Attributes:
        boot: The machine's boot that the processes belong to.
        base_port: Kept over stops, so that a cluster keeps its addresses with its data.
        bootstrap: Where clients begin.
        control: The runner's control socket; empty if nobody listens to one.
        processes: The runner first, then its children.
        tls_directory: Where the certificates of a cluster with TLS are; empty for plain text.
    """

    cluster: str
    boot: str
    base_port: int
    group_count: int
    member_count: int
    proxy: bool
    coordinator_kind: str
    coordinator: str
    bootstrap: tuple[str, ...]
    control: str
    processes: tuple[ProcessEntry, ...]
    tls_directory: str = ""


def read_state(directory: Path) -> ClusterState | None:
    """The state of the cluster that has, or had, this directory; None if there never was one.

    Raises:
        PreconditionError: The file is not one of ours, or of another version.
    """
    path = directory / STATE_FILE_NAME
    try:
        fields = json.loads(path.read_text())
        if fields.pop("version") != FORMAT_VERSION:
            raise PreconditionError(f"{path} was written by another version: stop that cluster with it, or delete it")
        processes = tuple(ProcessEntry(**entry) for entry in fields.pop("processes"))
        return ClusterState(**{**fields, "bootstrap": tuple(fields["bootstrap"]), "processes": processes})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PreconditionError(f"{path} cannot be read ({error}): delete it if no cluster runs there") from error


def write_state(directory: Path, state: ClusterState) -> None:
    """Replace the file; a reader sees the old one or the new one."""
    path = directory / STATE_FILE_NAME
    temporary = path.with_suffix(".json.new")
    temporary.write_text(json.dumps({"version": FORMAT_VERSION, **asdict(state)}, indent=1) + "\n")
    temporary.rename(path)


def leftovers(state: ClusterState) -> tuple[ProcessEntry, ...]:
    """The processes of the file that still live: the very ones, not what has their pids now."""
    if state.boot != boot_id():
        return ()
    return tuple(
        entry
        for entry in state.processes
        if state_of(ProcessIdentity(entry.pid, entry.started_ticks)) != "dead" and entry.pid != os.getpid()
    )


def end_leftovers(state: ClusterState) -> tuple[ProcessEntry, ...]:
    """Kill what a runner that died left behind (the kernel ends its children with it, so as a rule nothing)."""
    killed = []
    for entry in leftovers(state):
        try:
            descriptor = os.pidfd_open(entry.pid)
        except ProcessLookupError:
            continue
        try:  # looked at again, through the pidfd's process: between the two the pid may have got another meaning
            if state_of(ProcessIdentity(entry.pid, entry.started_ticks)) != "dead":
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                killed.append(entry)
        except ProcessLookupError:
            continue
        finally:
            os.close(descriptor)
    return tuple(killed)


class DirectoryLock:
    """The right to run a cluster in a directory; the kernel gives it back when the process ends, however it ends."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    @classmethod
    def acquire(cls, directory: Path) -> DirectoryLock:
        """Take the lock.

        Raises:
            PreconditionError: Another runner has it.
        """
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / _LOCK_FILE_NAME).open("a")
        for _ in range(_LOCK_TRY_COUNT):  # more than once: `is_running` holds it for a moment to look
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_RETRY_S)
            else:
                return cls(file)
        file.close()
        raise PreconditionError(f"a cluster runs in {directory} already: 'seriatim cluster down' ends it")

    def release(self) -> None:
        """Give it back."""
        self._file.close()

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_running(directory: Path) -> bool:
    """Whether a runner holds the directory now."""
    try:
        with (directory / _LOCK_FILE_NAME).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
