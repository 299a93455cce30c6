"""`seriatim operator run`: settings, logs, signals. A module of its own, because it imports every library."""

from __future__ import annotations

import asyncio
import signal
import sys

import click
import structlog
from pydantic import ValidationError

from .cluster.lease import LeaseLostError
from .handlers import EXIT_STATUS_LEASE_LOST, EndedByItselfError, Operator
from .logs import configure_logs
from .settings import OperatorSettings

EXIT_STATUS_FAILED = 1
EXIT_STATUS_REFUSED = 2


def run_operator() -> None:
    """Run the operator until SIGTERM or SIGINT.

    Otherwise it ends the process with an exit status: 75 if the Lease is lost, 2 if a setting is invalid, 1 if the
    operator ended by itself.
    """
    assert sys.flags.optimize == 0, "assertions are part of the design: run without -O"
    try:
        settings = OperatorSettings()
    except ValidationError as exc:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in exc.errors())
        click.echo(f"seriatim: {problems}", err=True)
        sys.exit(EXIT_STATUS_REFUSED)
    configure_logs(settings.log_level)
    try:
        asyncio.run(_run(settings))
    except LeaseLostError as exc:
        structlog.get_logger(__name__).error("lease_lost", error=str(exc))
        sys.exit(EXIT_STATUS_LEASE_LOST)
    except EndedByItselfError as exc:
        structlog.get_logger(__name__).error("ended", error=str(exc))
        sys.exit(EXIT_STATUS_FAILED)


async def _run(settings: OperatorSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Operator(settings).run(stop)
