"""Where a client works: in the process and in the event loop in which it was connected.

gRPC gives the answers of a call to the event loop in which the call began, and has threads that a forked process does
not have. So a client that is used elsewhere would wait for ever, or the process would end with a signal.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from typing import Final

from seriatim_api.errors import PreconditionError

_AFTER_FORK: Final = (
    "connect after the fork (in gunicorn's post_fork, in Celery's worker_process_init), and close clients before it, "
    "or start processes with multiprocessing's method spawn"
)

_GRPC_THREAD: Final = "_poll_wrapper"
"""A part of the name of the thread with which `grpc.aio` waits for the network. If it runs at a fork, gRPC does not
work in the new process."""

_open: weakref.WeakSet[Home] = weakref.WeakSet()
_is_first = True
_runs_at_fork = False
_broken_by: int | None = None  # in a forked process whose gRPC cannot be used: the process that was forked


class Home:
    """The process and the event loop in which a client works.

    Raises:
        PreconditionError: This process was forked while gRPC was in use, so gRPC cannot be used in it.
        RuntimeError: No event loop runs.
    """

    __slots__ = ("__weakref__", "_is_closed", "_loop", "_pid")

    def __init__(self) -> None:
        global _is_first
        if _broken_by is not None:
            raise PreconditionError(
                f"process {os.getpid()} was forked from process {_broken_by} while a client was open there, so gRPC "
                f"does not work in it: {_AFTER_FORK}"
            )
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._is_closed = False
        if _is_first:
            _is_first = False
            os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
        _open.add(self)

    def check(self) -> None:
        """Refuse to continue in another event loop, thread or process.

        Raises:
            PreconditionError: The text says what to do.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is self._loop:
            return
        check_process(self._pid)
        raise PreconditionError(
            "the client was connected in another event loop: use it there, connect one in each event loop, or use "
            "seriatim.sync, whose clients any thread may call"
        )

    def check_open(self) -> None:
        """Refuse as `check` does, and after the end of the client.

        Raises:
            PreconditionError: The text says what to do.
        """
        self.check()
        if self._is_closed:
            raise PreconditionError("the client is closed: connect another one")

    def close(self) -> None:
        """The client has ended: from now on `check_open` refuses."""
        self._is_closed = True
        _open.discard(self)


def check_process(pid: int) -> None:
    """Refuse to continue in a process that was forked from the client's process `pid`.

    Raises:
        PreconditionError: This is another process.
    """
    if os.getpid() != pid:
        raise PreconditionError(
            f"the client was connected in process {pid}, and this is process {os.getpid()}, which was forked from it: "
            f"{_AFTER_FORK}"
        )


def _before_fork() -> None:
    """Let gRPC end all its threads if no client is open. It does when the last of its objects is freed."""
    global _runs_at_fork
    if not _open:
        gc.collect()
    _runs_at_fork = any(_GRPC_THREAD in thread.name for thread in threading.enumerate())


def _after_fork() -> None:
    global _broken_by
    if _runs_at_fork:
        _broken_by = os.getppid()
