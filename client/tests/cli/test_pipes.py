"""Commands whose output goes to a program that ends before them, as `head` does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAM = """
import sys
from memory import MemoryCluster, message_at
from seriatim.cli import main
from seriatim.cli._execution import connection
cluster = MemoryCluster()
cluster.make("t")
cluster.logs["t", 0] += [message_at("t", 0, index, b"x" * 1000) for index in range(500)]
connection.client = cluster.client
main(sys.argv[1:])
"""


@contextmanager
def started(*words: str, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which does not outlive the test."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], cwd=Path(__file__).parent, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=stderr, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "words",
    [
        ("produce", "t", "--size", "10", "--rate", "2000", "--verbose"),
        ("--output", "json", "produce", "t", "--size", "10", "--rate", "2000", "--verbose"),
        ("consume", "t", "--group", "g"),
        ("consume", "t", "--follow"),
    ],
)
def test_commands_end_when_their_reader_has_ended(words: tuple[str, ...]) -> None:
    with started(*words) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr is not None
        told = process.stderr.read()
    assert "rror" not in told, told
    assert "Traceback" not in told


@pytest.mark.parametrize("words", [("topic", "list"), ("--help",), ("--output", "json", "topic", "describe", "t")])
def test_output_without_a_reader_is_no_error(words: tuple[str, ...]) -> None:
    with started(*words, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 141
