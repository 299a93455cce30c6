"""What the programs have in common that take their settings from variables of the environment.

Their command line has only `--help`. SIGTERM ends them as Ctrl-C does. Their log goes into a file.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TextIO, TypeVar

import structlog

SEED_MAX: Final = 999_999
"""The largest seed that the programs draw themselves. It has few digits, because developers type it again."""

EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

ResultT = TypeVar("ResultT")


class SettingsError(ValueError):
    """A variable of the environment has a value without a meaning."""


def is_on(environment: Mapping[str, str], name: str) -> bool:
    """Whether a variable asks for something, such as QUICK=1."""
    return environment.get(name, "") not in ("", "0", "no", "false")


def read_seed(environment: Mapping[str, str]) -> int:
    """Read SEED, or draw a seed.

    Raises:
        SettingsError: SEED is no number.
    """
    text = environment.get("SEED", "")
    try:
        return int(text) if text else random.SystemRandom().randint(1, SEED_MAX)
    except ValueError:
        raise SettingsError(f"SEED is a whole number, not {text!r}") from None


async def run_until_signal(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Do the work in this task, which SIGTERM ends as Ctrl-C does. If several things fail, raise the first failure."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await work
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


def log_to(file: TextIO) -> None:
    """Write the log of the clusters' runner to a file, because the terminal is drawn on."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(file),
        cache_logger_on_first_use=False,
    )


def read_command_line(program: str, about: str | None, argv: Sequence[str] | None = None) -> None:
    """Print the help if it is asked for, and refuse all other arguments. In both cases the process ends.

    Without it, a user who asks for help starts a run of minutes.

    Args:
        program: The name of the package, such as `e2e.faults`.
        about: What the program does, with its variables.
        argv: The arguments; None: those of this process.

    Raises:
        SystemExit: Status 0 after the help, 2 if there is another argument.
    """
    argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=about,
        epilog=f"Settings are variables of the environment, for example: SEED=7 python -m {program}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
