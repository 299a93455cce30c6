"""Asks a user a question on the terminal. The commands `seriatim` and `kubectl seriatim` share it.

It waits for the answer on the event loop and not in a thread. A thread that reads the terminal cannot be interrupted,
so Ctrl-C would end the command only after the next Enter.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

ANSWER_BYTES_MAX: Final = 4096
"""A terminal gives at most this many bytes of a line."""

_ANSWERS: Final = {"y": True, "yes": True, "n": False, "no": False, "": False}


class NoTerminalError(Exception):
    """stdin is no terminal, so no administrator can answer."""


async def ask(question: str) -> bool:
    """Ask a question on stderr, and wait for the answer as long as it takes. Returns whether it is yes.

    Enter alone and Ctrl-D mean no. Another answer is asked again. If the call is cancelled (Ctrl-C), it ends at once.

    Args:
        question: The question, with its question mark.

    Raises:
        NoTerminalError: stdin is closed, or is no terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise NoTerminalError
    descriptor = sys.stdin.fileno()
    while True:
        _say(f"{question} [y/N]: ")
        answer = await _line(descriptor)
        if not answer:  # Ctrl-D leaves the cursor after the question
            _say("\n")
        found = _ANSWERS.get(answer.strip().lower())
        if found is not None:
            return found


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


async def _line(descriptor: int) -> str:
    """The next line that is typed; empty at Ctrl-D."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(descriptor, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, ANSWER_BYTES_MAX).decode(errors="replace")
