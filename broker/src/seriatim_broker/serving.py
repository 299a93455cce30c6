"""The work of the server commands (`commands`): start, serve until SIGTERM or SIGINT, stop cleanly.

This module imports every library of the broker. It is apart from `commands`, so that help and client commands need not
import them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NoReturn

import structlog
from seriatim_api.errors import BadRequestError, PreconditionError, SeriatimError

from .composition import Broker, end_process, serve_admin
from .metrics.broker import Exposition
from .process import logs
from .process.memory import keep_freed_memory, settle_objects
from .process.settings import ENVIRONMENT_PREFIX, NAMES, BrokerSettings, load
from .process.status_file import StatusFile

EXIT_STATUS_REFUSED = 2
EXIT_STATUS_FAILED = 1

_log = structlog.get_logger(__name__)


def run_broker(config: Path | None, assignments: tuple[str, ...], flags: dict[str, Any]) -> None:
    """Run one broker until a signal stops it. If it cannot start, the process ends with status 2."""
    try:
        settings = load({**_assigned(assignments), **_given(flags)}, config)
        logs.configure(settings.log_level, broker=settings.broker)
    except (SeriatimError, ValueError) as exc:
        _tell_supervisor(exc)
        refuse(exc)
    run(_broker(settings))


def _tell_supervisor(exc: Exception) -> None:
    """Write into the status file that the settings are wrong.

    The broker has no valid settings then, so it takes the path of the status file and its own name from the
    environment.
    """
    file, group, slot = (os.environ.get(ENVIRONMENT_PREFIX + name, "") for name in ("STATUS_FILE", "GROUP", "SLOT"))
    if file:
        StatusFile(Path(file), f"{group}-{slot}").failed(exc)


async def _broker(settings: BrokerSettings) -> None:
    exposition = Exposition()
    running = Broker(settings, exposition)
    logs.name_partitions(running.partition_name)
    running.open_certificates()
    admin = None
    # The admin port opens before the start: a start may wait for the coordinator, and /readyz says so. If another
    # process has the port, it mostly has the data directory too. Then the start fails with a better error than this.
    with contextlib.suppress(PreconditionError):
        admin = await serve_admin(settings.admin_listen, exposition, [running])
    try:
        await running.start()
        try:
            if admin is None:
                admin = await serve_admin(settings.admin_listen, exposition, [running])
            await serve_until_stopped([running])
        finally:
            await running.stop()
    finally:
        if admin is not None:
            await admin.close()


async def serve_until_stopped(brokers: list[Broker]) -> None:
    """Serve until SIGTERM or SIGINT, then stop the brokers. If one of them fails, the call raises its error."""
    stop = asyncio.create_task(stop_signal(), name="stop signal")
    waits = [asyncio.create_task(member.wait(), name=f"wait {member.settings.broker}") for member in brokers]
    try:
        settle_objects()
        await asyncio.wait([stop, *waits], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            if wait.done():
                wait.result()  # raises what failed
    finally:
        for task in (stop, *waits):
            task.cancel()
        await asyncio.gather(stop, *waits, return_exceptions=True)
        for member in brokers:
            await member.stop()


async def stop_signal() -> None:
    """Wait for SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


async def _ending_at_bugs(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`. A broken assertion ends the process where the event loop alone would log it and continue."""
    asyncio.get_running_loop().set_exception_handler(_end_at_bug)
    await work


def _end_at_bug(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, AssertionError):
        _log.critical("assertion_broken", where=context.get("message"), error=repr(error), exc_info=error)
        end_process(error)
    loop.default_exception_handler(context)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a server to its end. A server that cannot start or fails ends the process with its status."""
    assert sys.flags.optimize == 0, "assertions are part of the design: run without -O"
    keep_freed_memory()
    try:
        asyncio.run(_ending_at_bugs(work))
    except SeriatimError as exc:
        refuse(exc)
    except Exception as exc:
        _log.critical("failed", error=repr(exc), exc_info=exc)
        sys.exit(EXIT_STATUS_FAILED)


def refuse(exc: Exception) -> NoReturn:
    """Print why the server cannot start, and end the process with `EXIT_STATUS_REFUSED`."""
    logs.say(f"seriatim: {exc}")
    sys.exit(EXIT_STATUS_REFUSED)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _assigned(assignments: tuple[str, ...]) -> dict[str, Any]:
    """The settings of `--set`, as text by name.

    Raises:
        BadRequestError: A value is not of the form NAME=VALUE, or there is no setting of that name.
    """
    given: dict[str, Any] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise BadRequestError(f"--set takes NAME=VALUE, not {assignment!r}")
        if name not in NAMES:
            raise BadRequestError(f"there is no setting {name!r}")
        given[name] = value
    return given
