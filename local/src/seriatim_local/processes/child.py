"""Starts a program that cannot outlive its parent: `python -I -S child.py PARENT_PID PROGRAM ARGUMENT...`.

If a runner is killed, its brokers must end too, because no other process reaps them. The kernel can do this
(PR_SET_PDEATHSIG), but a process must ask for itself. To ask between fork and exec is unsafe in a parent with threads.
So this script asks in a fresh process, and then becomes the program. It uses only the standard library, and takes about
20 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, check that the parent still lives, and become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # the parent died before this process asked, so no signal will come
        sys.exit("the parent has ended")
    os.execvp(program[0], program)  # noqa: S606 - an argument vector of our own making, no shell


if __name__ == "__main__":
    main()
