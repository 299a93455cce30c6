"""On a terminal, a live line and what is printed meanwhile do not run together."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, logging
from seriatim.cli._execution.connection import client
from seriatim.cli._execution.coroutines import live_line, say
from seriatim.cli._options.settings import Settings

async def main():
    settings = Settings(("127.0.0.1:1",), as_json=False)
    async with client(settings), live_line(settings, lambda: "LIVE" + "-" * 60):
        say("an outcome")
        logging.getLogger("seriatim").warning("a warning")
        say("a note", err=True)

asyncio.run(main())
"""


def printed_on_a_terminal(*, stdout: Path | None = None) -> str:
    """Run the program on a terminal of 40 columns, with stdout in a file if one is given."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "40", "LINES": "24", "NO_COLOR": "1"}
    with open(theirs, "wb", closefd=False) as terminal, open(stdout or os.devnull, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdin=theirs,
            stdout=terminal if stdout is None else file, stderr=terminal,
        )  # fmt: skip
        os.close(theirs)
    found = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the last process with the terminal has ended
            break
        found += data
    os.close(ours)
    assert process.wait(30) == 0, found
    return found.decode()


def lines_of(text: str) -> list[str]:
    """All lines that the terminal showed at any time. An erased line counts as a line."""
    return re.sub(r"\x1b\[\?25[lh]", "", text).replace("\x1b[2K", "\n").replace("\r", "\n").split("\n")


def test_what_is_printed_goes_above_the_live_line() -> None:
    lines = lines_of(printed_on_a_terminal())
    for wanted in ("an outcome", "# a warning", "a note"):
        assert wanted in [line.strip() for line in lines], lines


def test_the_live_line_leaves_room_for_the_echo_of_ctrl_c() -> None:
    shown = [line.strip() for line in lines_of(printed_on_a_terminal()) if "LIVE" in line]
    assert shown
    assert {len(line) for line in shown} == {38}


def test_a_file_gets_its_lines_although_stderr_is_a_terminal(tmp_path: Path) -> None:
    shown = printed_on_a_terminal(stdout=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "an outcome\n"
    assert "an outcome" not in shown
    assert "# a warning" in [line.strip() for line in lines_of(shown)]
