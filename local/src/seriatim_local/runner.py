"""The process that runs a local cluster for `seriatim cluster up`: a `LocalCluster`, a control socket, and signals.

A detached runner has a session of its own and outlives the terminal. It reports the result of the start to the command
that started it, over an inherited descriptor, as one JSON line: `{"bootstrap": [...]}` or `{"error": {...}}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from seriatim_api.errors import PreconditionError, SeriatimError, UnavailableError, make_error

from seriatim_local.cluster import START_DEADLINE_S, LocalCluster
from seriatim_local.control import ControlServer
from seriatim_local.layout.programs import CoordinatorKind

LOG_NAME: Final = "runner"
_ANSWER_DEADLINE_S: Final = 2 * START_DEADLINE_S + 30

Report = Callable[[dict[str, object]], None]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """The options of `cluster up`. The fields are the arguments of `LocalCluster`."""

    directory: str
    groups: int
    members: int
    proxy: bool
    coordinator: CoordinatorKind
    name: str
    base_port: int | None
    broker_options: tuple[str, ...] = ()
    tls: bool = False


async def run(config: RunnerConfig, *, report: Report | None = None) -> None:
    """Run a cluster until the command `down`, SIGINT or SIGTERM ends it.

    Args:
        config: The cluster.
        report: Called with `{"bootstrap": [...]}` when all brokers are ready; None: no report.

    Raises:
        SeriatimError: The cluster did not start. No process is left.
    """
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    cluster = LocalCluster(
        config.directory,
        groups=config.groups,
        members=config.members,
        proxy=config.proxy,
        coordinator=config.coordinator,
        name=config.name,
        base_port=config.base_port,
        broker_options=config.broker_options,
        tls=config.tls,
    )
    try:
        if await _unless(over, cluster.start()):
            async with ControlServer(cluster, down=over.set).serve():
                await _run_started(cluster, over, report)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _run_started(cluster: LocalCluster, over: asyncio.Event, report: Report | None) -> None:
    try:
        if await _unless(over, cluster.wait_ready()):
            if report is not None:
                report({"bootstrap": list(cluster.bootstrap)})
            await _first(over, cluster.failed)
            if cluster.failed.is_set():
                _log.error("proxy_ended", effect="all links are broken, so the cluster goes down; its data stays")
    finally:
        await asyncio.shield(cluster.stop())


async def _unless(over: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work, and return True. If `over` is set first, cancel the work and return False."""
    working = asyncio.create_task(work, name="starting")
    ending = asyncio.create_task(over.wait(), name="over")
    try:
        await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()
        if not working.done():
            working.cancel()
        await asyncio.gather(ending, working, return_exceptions=True)
    if working.cancelled():
        return False
    working.result()
    return True


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait(), name="event") for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def detach(config: RunnerConfig) -> list[str]:
    """Start a runner in a session of its own, and wait until its brokers are ready.

    A Ctrl-C during the wait asks the runner to end, and it ends all processes.

    Returns:
        The addresses for clients to connect to.

    Raises:
        SeriatimError: The cluster did not start; the message says why.
    """
    log_path = Path(config.directory) / "logs" / f"{LOG_NAME}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    ours, theirs = os.pipe()
    argv = [sys.executable, "-m", "seriatim_local.runner", json.dumps(asdict(config)), str(theirs)]
    try:
        with log_path.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - an argument vector of our own making, no shell
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(theirs,)
            )
    except OSError as error:
        raise PreconditionError(f"the runner cannot be started: {error}") from error
    finally:
        os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as file:
            line = file.readline()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=_ANSWER_DEADLINE_S)
        raise
    if not line:
        status = process.wait(timeout=_ANSWER_DEADLINE_S)
        raise UnavailableError(f"the runner ended with status {status}; {log_path} says why")
    answer = json.loads(line)
    if "error" in answer:
        process.wait(timeout=_ANSWER_DEADLINE_S)
        raise make_error(answer["error"]["number"], answer["error"]["message"])
    process.returncode = 0  # the runner lives on, and init will reap it, so Popen must not warn
    return [str(address) for address in answer["bootstrap"]]


def main() -> None:
    """The detached process: `python -m seriatim_local.runner CONFIG DESCRIPTOR`."""
    logging.basicConfig(level=logging.INFO)
    fields, descriptor = json.loads(sys.argv[1]), int(sys.argv[2])
    fields["broker_options"] = tuple(fields["broker_options"])
    told = False

    def report(answer: dict[str, object]) -> None:
        nonlocal told
        if not told:
            told = True
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(answer) + "\n")

    try:
        asyncio.run(run(RunnerConfig(**fields), report=report))
    except SeriatimError as error:
        _log.error("start_failed", error=str(error))
        report({"error": {"number": error.number, "message": error.message}})
        sys.exit(1)


if __name__ == "__main__":
    main()
