"""Parts of all benchmark commands: a directory, a log, a table, figures as JSON, and an end at Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import structlog
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from seriatim_api.errors import SeriatimError

from e2e.bench.measures.figures import Figure, table, to_json, write_json
from e2e.bench.measures.machine import FLUSH_BYTES, machine_facts, python_told

Progress = Callable[[str], None]
Measure = Callable[[Path, Progress], Awaitable[list[Figure]]]

YOUNG_OBJECTS: Final = 50_000
"""Allocations between two garbage collections of the youngest objects. Python's default is 700."""


class NotMeasuredError(Exception):
    """Something that the benchmark needs is missing. The text says what it is, and what to do."""


EXPECTED: Final = (SeriatimError, NotMeasuredError)
"""Failures whose text is for humans."""

TOLD_MAX: Final = 300


def told(error: BaseException) -> str:
    """What a failure says, in one line; of a group of failures, the first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())[-TOLD_MAX:]
    return text if isinstance(error, EXPECTED) and text else f"{type(error).__name__}: {text}".rstrip(": ")


def exact_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are exact to some ten microseconds.

    The usual one waits with `epoll`, and Python rounds each of its waits up to a whole millisecond. So 64 tasks that
    sleep 5 ms and then use 50 µs of the processor, again and again, take 5.8 ms each time, and 5.2 ms with this loop.
    `select` takes no file above 1,023. The loop watches a socket for each stream of a client; gRPC watches its own.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def settle_objects() -> None:
    """Take all present objects out of future garbage collections, and have collections run less often, as brokers do.

    Without it, collections take a fifteenth of the processor time of a program with 64 consumers, and each full one
    stops its event loop for tens of milliseconds. The page about working by key says the same to users.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def run(
    name: str,
    measure: Measure,
    title: str,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    after: Callable[[Console, list[Figure], Path], None] | None = None,
    shown: Callable[[list[Figure], str], Table] = table,
) -> int:
    """Measure, and print the table. Return the exit status: 0, 1 if a figure was not verified, 130 after Ctrl-C.

    Figures go to `NAME.json` and logs to `bench.log`, both in `bench-out/` (OUT= another directory).

    Args:
        name: The benchmark's name.
        measure: Measures in a directory, and says what it does.
        title: The table's title.
        loop_factory: Makes the event loop; None: the usual one.
        after: Shows more below the table, and may write files into the directory that it gets.
        shown: Makes the table, from the figures and its title.
    """
    console = Console()
    out = Path(os.environ.get("OUT") or "bench-out")
    out.mkdir(parents=True, exist_ok=True)
    machine = machine_facts(out)
    begin = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the clusters as Ctrl-C does
    with (out / "bench.log").open("w") as log:
        _log_to(log)
        try:
            with console.status("starting brokers") as status, asyncio.Runner(loop_factory=loop_factory) as runner:
                figures = runner.run(_measured(measure, out, lambda doing: status.update(doing)))
        except KeyboardInterrupt:
            console.print("interrupted; everything that was started has ended")
            return 130
        except (*EXPECTED, BaseExceptionGroup, TimeoutError, OSError) as error:
            console.print(f"[bold red]FAILED[/] {escape(told(error))}", highlight=False)
            return 1
        finally:
            structlog.reset_defaults()  # the file is closed then
    took_s = time.monotonic() - begin
    console.print(shown(figures, f"{title}, {machine['cores']} cores ({took_s:.0f} s)"))
    if after is not None:
        after(console, figures, out)
    path = out / f"{name}.json"
    write_json(path, to_json(figures, machine, took_s, benchmark=name))
    console.print(python_told(machine), highlight=False)
    console.print(
        f"a write of {FLUSH_BYTES} B and its sync take {machine['sync_ms_p50']} ms here; load average before:"
        f" {machine['load_average_1m']}; figures: {path}",
        highlight=False,
    )
    return 1 if any(figure.problem for figure in figures) else 0


async def _measured(measure: Measure, out: Path, progress: Progress) -> list[Figure]:
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=out))
    try:
        return await measure(directory, progress)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _log_to(file: Any) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(file),
        cache_logger_on_first_use=False,
    )
