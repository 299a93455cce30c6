"""The state file of a local cluster. Other commands find the cluster with it, and a later cluster cleans up with it.

The file is written as a whole and renamed into place. Its list of processes may be out of date at any time. So it names
each process with its start time, and with the machine's boot. A pid that now means another process is never touched.
The lock on the directory, and not this file, says whether a runner lives.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TextIO

from seriatim_api.errors import PreconditionError

from seriatim_local.processes.procfs import ProcessIdentity, boot_id, state_of

DIRECTORY_DEFAULT: Final = ".local/cluster"
STATE_FILE_NAME: Final = "cluster.json"
FORMAT_VERSION: Final = 1
_LOCK_FILE_NAME: Final = "lock"
_LOCK_TRY_COUNT: Final = 5
_LOCK_RETRY_S: Final = 0.01


def find_directory() -> str:
    """The directory of the cluster that runs here, or under a directory above that belongs to the same user.

    If none runs, `DIRECTORY_DEFAULT`. The command `seriatim` of the client finds the addresses in the same way.
    """
    here = Path.cwd()
    above = itertools.takewhile(lambda directory: directory.stat().st_uid == os.geteuid(), here.parents)
    for directory in (Path(), *above):
        with suppress(PermissionError, NotADirectoryError):
            if is_running(directory / DIRECTORY_DEFAULT):
                return str(directory / DIRECTORY_DEFAULT)
    return DIRECTORY_DEFAULT


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A process of the cluster, as it was at the last write of the file."""

    name: str
    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The content of the file.

    Attributes:
        cluster: The cluster's name.
        boot: The boot id of the machine at which the processes ran.
        base_port: The first port. It is kept over stops, so that a cluster keeps its addresses with its data.
        group_count: The number of broker groups.
        member_count: The number of members in each.
        proxy: Whether links go through the proxy.
        coordinator_kind: `embedded` or `etcd`.
        coordinator: The coordinator's address.
        bootstrap: The addresses for clients to connect to.
        control: The path of the runner's control socket; empty if the cluster takes no commands.
        processes: The runner first, then its children.
        tls_directory: The directory with the certificates; empty: plain text.
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
        PreconditionError: The file cannot be read, or another version wrote it.
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
    """Replace the file. A reader gets the old file or the new one, never a part."""
    path = directory / STATE_FILE_NAME
    temporary = path.with_suffix(".json.new")
    temporary.write_text(json.dumps({"version": FORMAT_VERSION, **asdict(state)}, indent=1) + "\n")
    temporary.rename(path)


def leftovers(state: ClusterState) -> tuple[ProcessEntry, ...]:
    """The processes of the file that still live. Another process with an old pid does not count."""
    if state.boot != boot_id():
        return ()
    return tuple(
        entry
        for entry in state.processes
        if state_of(ProcessIdentity(entry.pid, entry.started_ticks)) != "dead" and entry.pid != os.getpid()
    )


def end_leftovers(state: ClusterState) -> tuple[ProcessEntry, ...]:
    """Kill the processes that a dead runner left. Mostly there are none, because the kernel ends them with the runner.

    Returns:
        The processes that were killed.
    """
    killed = []
    for entry in leftovers(state):
        try:
            descriptor = os.pidfd_open(entry.pid)
        except ProcessLookupError:
            continue
        try:  # checked again with the pidfd open, because the pid may have been reused since the first check
            if state_of(ProcessIdentity(entry.pid, entry.started_ticks)) != "dead":
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                killed.append(entry)
        except ProcessLookupError:
            continue
        finally:
            os.close(descriptor)
    return tuple(killed)


class DirectoryLock:
    """The right to run a cluster in a directory. The kernel frees it when the process ends, also after a crash."""

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
        for _ in range(_LOCK_TRY_COUNT):  # more than once, because `is_running` holds the lock for a moment
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_RETRY_S)
            else:
                return cls(file)
        file.close()
        raise PreconditionError(f"a cluster runs in {directory} already: 'seriatim cluster down' ends it")

    def release(self) -> None:
        """Give the lock back."""
        self._file.close()

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_running(directory: Path) -> bool:
    """Whether a runner has the lock of the directory now."""
    try:
        with (directory / _LOCK_FILE_NAME).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
