"""Runs a command's coroutine. The first interrupt ends it in good order, the second one at once."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from seriatim_api.terminal.safe_text import echo

from seriatim.cli._options.settings import Settings

REFRESH_S: Final = 0.25
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end, in a new event loop."""
    return asyncio.run(work)


@asynccontextmanager
async def interruptible() -> AsyncIterator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets. A second one interrupts the process as usual."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def first(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, first, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def first_of(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of `work`. If `stop` is set first, `work` is cancelled and the result is None."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
        await asyncio.wait((working, stopping))
    with suppress(asyncio.CancelledError):
        return working.result()
    return None


def say(text: str, *, err: bool = False) -> None:
    """Print a line on stdout or stderr. If the terminal shows a live line, the text goes above it.

    While a live view is on, `sys.stdout` and `sys.stderr` are rich's, which do that. `click.echo` without a file looks
    for the descriptor below them, and would write into the live line.
    """
    echo(text, file=sys.stderr if err else sys.stdout)


@asynccontextmanager
async def live_line(settings: Settings, text: Callable[[], str]) -> AsyncIterator[None]:
    """Show a line on stderr and refresh it every `REFRESH_S`, if stderr is a terminal and the output is text.

    What else is printed meanwhile has to go through `say`.
    """
    if settings.as_json or not sys.stderr.isatty():
        yield
        return
    from rich.live import Live
    from rich.text import Text

    console = settings.notes

    def line() -> Text:
        # The terminal echoes Ctrl-C as two characters after the line. In a full line they would begin a new one.
        drawn = Text(text(), no_wrap=True)
        drawn.truncate(console.width - len("^C"), overflow="ellipsis")
        return drawn

    with Live(
        line(),
        console=console,
        transient=True,
        auto_refresh=False,
        redirect_stdout=sys.stdout.isatty(),  # a file or a pipe gets its lines as ever
    ) as live:

        async def refresh() -> None:
            while True:
                await asyncio.sleep(REFRESH_S)
                live.update(line(), refresh=True)

        refreshing = asyncio.create_task(refresh(), name="live-line")
        try:
            yield
        finally:
            refreshing.cancel()
            await asyncio.wait((refreshing,))
