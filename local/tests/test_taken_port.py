"""A port that is taken: one line says so, without lines of libraries."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.ports import free_ports

HOST = "127.0.0.1"
DEADLINE_S = 60.0


def said(command: Sequence[str], **environment: str) -> tuple[int, list[str]]:
    """Run a command. Return its exit status and the lines of stderr that are not log lines."""
    without = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", "from seriatim.cli import main; main()", *command],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False, env={**without, **environment},
    )  # fmt: skip
    return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("{")]


def commands(data: Path, port: int) -> dict[str, list[str]]:
    """By server that listens at `port`, its command. Each port below and above it is free."""
    return {
        "coordinator": ["coordinator", "--data", str(data), "--listen", f"{HOST}:{port}"],
        "broker": ["standalone", "--data", str(data), "--listen", f"{HOST}:{port - 1}"],
    }


@contextmanager
def taken_port() -> Iterator[int]:
    """A port at which this process listens. Those below and above it are free."""
    port = free_ports(3)[1]
    with socket.create_server((HOST, port)):
        yield port


@pytest.mark.parametrize("server", ["coordinator", "broker"])
def test_only_our_line_says_that_a_port_is_taken(tmp_path: Path, server: str) -> None:
    with taken_port() as port:
        status, lines = said(commands(tmp_path, port)[server])
    line = (
        f"seriatim: [130] the {server} cannot listen on {HOST}:{port}: another process uses this port, or it is not an "
        "address of this machine"
    )
    assert (status, [each for each in lines if not each.startswith("seriatim standalone: ")]) == (2, [line])


def test_lines_of_grpc_come_back_if_the_environment_asks_for_them(tmp_path: Path) -> None:
    with taken_port() as port:
        _, lines = said(commands(tmp_path, port)["coordinator"], GRPC_VERBOSITY="ERROR")
    assert any("Failed to add port" in line for line in lines), lines
