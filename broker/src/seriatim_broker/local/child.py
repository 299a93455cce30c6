"""Starts a program that cannot outlive its parent: `python -I -S child.py PARENT_PID PROGRAM ARGUMENT...`.

A killed runner must not leave brokers behind that nobody reaps. The kernel offers that (PR_SET_PDEATHSIG), but only to
a process that asks for itself; asking between fork and exec is unsafe in a parent with threads, so this script asks in
a fresh process and then becomes the program. It uses the standard library alone and takes some 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, make sure that the parent was still there, and become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before we asked: no signal will come
        sys.exit("the parent has ended")
    os.execvp(program[0], program)  # noqa: S606 - an argument vector of our own making, no shell


if __name__ == "__main__":
    main()
