"""Commands of the host that are run to their end, and waiting for a state with a deadline."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.kubernetes.errors import ClusterError, EndedError

OUTPUT_SHOWN_BYTES: Final = 4000
"""How much of a failed command's output an error quotes: its end, where tools say what was wrong."""


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = 120,
) -> str:
    """Run a command to its end; its standard output.

    Args:
        argv: The program and its arguments; no shell sees them.
        cwd: Where it runs.
        environment: Added to ours.
        stdin: What it reads.
        timeout_s: When it is killed.

    Raises:
        ClusterError: It is not there, failed, or took too long.
    """
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"took more than {timeout_s:.0f} s: {_shown(command)}") from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr)[-OUTPUT_SHOWN_BYTES:].strip()
        raise ClusterError(f"exit status {done.returncode} of {_shown(command)}\n{output}")
    return done.stdout


def succeeds(argv: Sequence[str | Path], timeout_s: float = 30) -> bool:
    """Whether a command runs and ends with exit status 0."""
    try:
        run(argv, timeout_s=timeout_s)
    except ClusterError:
        return False
    return True


def wait_until(
    what: str, condition: Callable[[], bool], *, timeout_s: float, interval_s: float = 0.1, hint: str = ""
) -> None:
    """Poll until `condition` holds.

    Args:
        what: For the error: what was waited for.
        condition: Cheap; a `ClusterError` of it counts as "not yet", an `EndedError` as "never".
        timeout_s: How long.
        interval_s: Between two tries.
        hint: Added to the error: where to look.

    Raises:
        EndedError: It will not hold.
        ClusterError: It did not hold in time.
    """
    deadline = time.monotonic() + timeout_s
    last: ClusterError | None = None
    while True:
        try:
            if condition():
                return
            last = None
        except EndedError as error:
            raise EndedError(f"{what}: {error}{f' ({hint})' if hint else ''}") from error
        except ClusterError as error:
            last = error
        if time.monotonic() >= deadline:
            because = f": {last}" if last is not None else ""
            raise ClusterError(f"{what}: not within {timeout_s:.0f} s{because}{f' ({hint})' if hint else ''}")
        time.sleep(interval_s)


def _shown(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 300 else text[:300] + " …"
