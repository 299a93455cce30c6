"""One child process. It cannot outlive this process, is watched through its pidfd, and is reaped at once at its end.

The caller decides which program it is, where its log is, and what its end means for the cluster.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from seriatim_api.errors import DeadlineExceededError, PreconditionError

from seriatim_local.processes import child
from seriatim_local.processes.procfs import ProcessIdentity, ProcessState, identify, state_of

_CHILD_SCRIPT: Final = str(Path(child.__file__).resolve())


class ManagedProcess:
    """A child of this process.

    Start it from a thread that lives as long as the child should. When that thread ends, the kernel ends the child.

    Args:
        name: Its name in messages.
        argv: The program and its arguments, without a shell.
        log_path: The file to which its stdout and stderr are appended.
        environment: The child's complete environment.
        on_end: Called once, in the event loop, right after the child was reaped.
        pass_fds: Descriptors that the child keeps open, under the same numbers.

    Raises:
        PreconditionError: The program cannot be started.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str],
        on_end: Callable[[ManagedProcess], None] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._on_end = on_end
        self._ended = asyncio.Event()
        starter = [sys.executable, "-I", "-S", _CHILD_SCRIPT, str(os.getpid()), *argv]
        try:
            with log_path.open("ab") as log:
                self._popen = subprocess.Popen(  # noqa: S603 - an argument vector of our own making, no shell
                    starter,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=dict(environment),
                    start_new_session=True,  # so that only the runner gets a Ctrl-C at the terminal
                    pass_fds=tuple(pass_fds),
                )
        except OSError as error:
            raise PreconditionError(f"{name} cannot be started: {error}") from error
        found = identify(self._popen.pid)
        assert found is not None, "a child that was not reaped has an entry in /proc"
        self.identity: ProcessIdentity = found
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        """Its process id. When it has ended, the number has no meaning any more."""
        return self.identity.pid

    @property
    def ended(self) -> bool:
        """Whether it has been reaped."""
        return self._ended.is_set()

    @property
    def exit_status(self) -> int | None:
        """Its exit status; the negative number of a signal if that ended it; None while it lives."""
        return self._popen.returncode

    @property
    def state(self) -> ProcessState:
        """Whether it runs, is frozen, or has ended, as the kernel says."""
        return "dead" if self.ended else state_of(self.identity)

    def describe_end(self) -> str:
        """How it ended, in words for humans."""
        status = self._popen.returncode
        assert status is not None, "it has not ended"
        if status >= 0:
            return f"exited with status {status}"
        try:
            return f"ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"ended by signal {-status}"

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal. Returns False if it has ended. Another process with its old pid never gets the signal."""
        if self.ended:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:  # it has ended, and is reaped in this turn of the event loop or the next
            return False
        return True

    async def wait(self, deadline_s: float) -> int:
        """Wait until it has ended and was reaped. Returns its exit status.

        Raises:
            DeadlineExceededError: It still runs after `deadline_s` seconds.
        """
        try:
            async with asyncio.timeout(deadline_s):
                await self._ended.wait()
        except TimeoutError:
            raise DeadlineExceededError(f"{self.name} (pid {self.pid}) still runs after {deadline_s} s") from None
        assert self._popen.returncode is not None
        return self._popen.returncode

    async def end(self, *, grace_s: float) -> int:
        """Ask it to end (SIGTERM). If it runs after `grace_s` seconds, kill it (SIGKILL). Returns its exit status."""
        if self.send(signal.SIGTERM):
            self.send(signal.SIGCONT)  # because a frozen process does not handle SIGTERM
        try:
            return await self.wait(grace_s)
        except DeadlineExceededError:
            self.send(signal.SIGKILL)
            return await self.wait(grace_s + 10)

    def _reap(self) -> None:
        if self._popen.poll() is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()
        if self._on_end is not None:
            self._on_end(self)
