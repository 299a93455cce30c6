"""Questions of commands, on a real terminal: each answer, Ctrl-C, and no terminal at all."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import fcntl, os, sys, termios
if sys.stdin is not None and sys.stdin.isatty():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
import click
from seriatim.cli import _root
from seriatim.cli._execution.confirmation import confirm, confirm_first
from seriatim.cli._execution.coroutines import run

@click.command()
def inside():
    async def work():
        await confirm("Rewind it?", otherwise="nothing was changed")
        click.echo("done")
    run(work())

@click.command()
def before():
    confirm_first("Delete it?", otherwise="it is not deleted")
    click.echo("done")

class Plugin:
    def __init__(self, command):
        self.load = lambda: command

_root._plugins = lambda: {"inside": Plugin(inside), "before": Plugin(before)}
_root.main(sys.argv[1:])
"""
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A command that asks on a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        """Read until the text is there, or the command has ended."""
        while text not in self.shown:
            try:
                self.shown += os.read(self._ours, 4096).decode()
            except OSError:
                break
        assert text in self.shown

    def answer(self, typed: bytes) -> None:
        os.write(self._ours, typed)

    def end(self) -> tuple[int, str]:
        """The exit status and the last line, without another key pressed."""
        while True:
            try:
                self.shown += os.read(self._ours, 4096).decode()
            except OSError:
                break
        os.close(self._ours)
        lines = [line for line in self.shown.splitlines() if line.strip()]
        return self._process.wait(30), lines[-1]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", ["inside", "before"])
@pytest.mark.parametrize(
    ("typed", "status", "end"),
    [
        (b"y\n", 0, "done"),
        (b"n\n", 1, ": the answer was no"),
        (b"\n", 1, ": the answer was no"),
        (CTRL_D, 1, ": the answer was no"),
        (CTRL_C, 130, "interrupted"),
    ],
)
def test_a_question_ends_at_each_answer(command: str, typed: bytes, status: int, end: str) -> None:
    terminal = Terminal(command)
    terminal.wait_for("[y/N]: ")
    terminal.answer(typed)
    found, line = terminal.end()
    assert (found, line.endswith(end)) == (status, True), terminal.shown
    if status == 1:
        assert ("nothing was changed" if command == "inside" else "it is not deleted") in line


@pytest.mark.timeout(60)
def test_a_question_is_asked_again_after_another_answer() -> None:
    terminal = Terminal("inside")
    terminal.wait_for("[y/N]: ")
    terminal.answer(b"maybe\n")
    terminal.wait_for("maybe\r\nRewind it? [y/N]: ")
    terminal.answer(b"YES\n")
    assert terminal.end() == (0, "done")


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_question_without_a_terminal_names_the_option(is_closed: bool) -> None:
    closing = "import os; os.close(0); " if is_closed else ""
    runner = f"{closing}import os, sys; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], 'before'])"
    done = subprocess.run(
        [sys.executable, "-c", runner, PROGRAM], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "it is not deleted: stdin is no terminal to ask you on, so add --yes" in done.stderr


def test_commands_ask_in_one_way_only() -> None:
    root = Path(__file__).parents[3]
    sources = [*(root / "client/src").rglob("*.py"), *(root / "operator/src").rglob("*.py"),
               *(root / "local/src").rglob("*.py")]  # fmt: skip
    assert len(sources) > 100
    assert [path for path in sources if "click.confirm" in path.read_text() or "click.prompt" in path.read_text()] == []
