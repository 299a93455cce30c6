"""Shows a run of a demo while it goes on, and carries it out so that it ends in order if it is interrupted.

`View` draws on a terminal, and prints lines of progress if stdout is no terminal. Each demo has its own scene, and says
how it is drawn. `carry_out` runs the demo, and turns an interruption or a failure into an exit status.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TextIO, TypeVar

import structlog
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from seriatim_api.errors import SeriatimError

from e2e.demo.flights import FlightsError
from e2e.demo.live import fault_line
from e2e.demo.report import DemoFault
from e2e.workers import WorkerError

FRAME_S: Final = 0.2
"""The time between two frames of the live view."""

LINE_S: Final = 5.0
"""The time between two lines of progress if stdout is not a terminal."""

WIDTH_MIN: Final = 40
"""A narrower terminal is drawn on as if it were so wide."""

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class Shown(Protocol):
    """What every scene has."""

    @property
    def total(self) -> int:
        """The number of events that the demo sends; 0 until that is known."""

    @property
    def at_s(self) -> float:
        """Seconds since the demo began to send; 0 before that."""

    @property
    def doing(self) -> str:
        """What the demo does right now, as a text for people."""


SceneT = TypeVar("SceneT", bound=Shown)
ResultT = TypeVar("ResultT")


class View(Generic[SceneT]):
    """Shows the run while it goes on: as a live picture on a terminal, otherwise as lines.

    Args:
        console: Where it is shown.
        draw: Makes a picture of a scene, for a terminal of so many columns and lines.
        line: Makes one line of a scene.
    """

    def __init__(
        self,
        console: Console,
        draw: Callable[[SceneT, int, int], RenderableType],
        line: Callable[[SceneT], str],
    ) -> None:
        self._console = console
        self._draw = draw
        self._line = line
        # A screen of its own: a picture that is higher than the terminal would leave lines above the report.
        self._live = Live(console=console, auto_refresh=False, screen=True) if console.is_terminal else None
        self._shown_at = 0.0
        self._doing = ""
        self._last: SceneT | None = None

    def __enter__(self) -> View[SceneT]:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the picture. Where there is none, print how it was at the end."""
        if self._live is not None:
            self._live.stop()
        elif kind is None and self._last is not None:
            self.say(self._line(self._last))

    def scene(self, scene: SceneT) -> None:
        """Show the new state of the run, on a terminal at most once every `FRAME_S`."""
        now = time.monotonic()
        self._last = scene
        if self._live is not None:
            if now - self._shown_at >= FRAME_S:
                width, height = self._console.size
                self._live.update(self._draw(scene, max(WIDTH_MIN, width), height), refresh=True)
                self._shown_at = now
        elif now - self._shown_at >= LINE_S or (not scene.total and scene.doing != self._doing):
            self.say(self._line(scene))
            self._shown_at, self._doing = now, scene.doing

    def fault(self, fault: DemoFault) -> None:
        """Print a line for a fault that is over. The live view needs no such line, because it shows all faults."""
        self.say(fault_line(fault, fault.at_s if self._last is None else self._last.at_s))

    def say(self, line: str) -> None:
        """Print a line, unless the live view is on."""
        if self._live is None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def carry_out(
    console: Console, view: View[Any], run: Callable[[], Coroutine[Any, Any, ResultT]], *, out: Path, seed: int
) -> ResultT | int:
    """Carry out a demo with its view, and return its result, or the exit status if it has none.

    Args:
        console: Where a failure is reported.
        view: The view of the run.
        run: Begins the run.
        out: The directory of the results; it is made. The runner's log goes there.
        seed: The seed, for the report of a failure.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / "demo.log").open("w") as log:
        _log_to(log)
        try:
            with view:
                return asyncio.run(_run(run))
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("interrupted; everything that was started has ended")
            return EXIT_INTERRUPTED
        except (SeriatimError, WorkerError, FlightsError, OSError) as error:
            console.print(f"[bold red]FAILED[/] {escape(str(error))}  (SEED={seed})", highlight=False)
            return EXIT_FAILED


async def _run(run: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Run the demo as a task that SIGTERM ends as Ctrl-C does. If several things fail, raise the first failure."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await run()
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _log_to(file: TextIO) -> None:
    """Write the log of the cluster's runner to a file, because the live view draws on the terminal."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(file),
        cache_logger_on_first_use=False,
    )
