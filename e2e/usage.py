"""The command line of programs that take their settings from variables of the environment: it has only `--help`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def read_command_line(program: str, about: str | None, argv: Sequence[str] | None = None) -> None:
    """Print the help if it is asked for, and refuse all other arguments. In both cases the process ends.

    Without it, a person who asks for help starts a run of minutes.

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
