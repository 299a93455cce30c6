"""A port that is taken: one line says so, without lines of libraries."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from seriatim_local.plan import Address
from seriatim_local.ports import PortRange, first_taken

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


@pytest.mark.parametrize("server", ["coordinator", "broker"])
def test_only_our_line_says_that_a_port_is_taken(tmp_path: Path, server: str) -> None:
    with PortRange.reserve() as ports, socket.socket() as taken:
        assert first_taken([Address(HOST, ports.base + number) for number in range(3)]) is None
        taken.bind((HOST, ports.base + 1))
        taken.listen()
        status, lines = said(commands(tmp_path, ports.base + 1)[server])
    line = (
        f"seriatim: [130] the {server} cannot listen on {HOST}:{ports.base + 1}: another process uses this port, or it "
        "is not an address of this machine"
    )
    assert (status, [each for each in lines if not each.startswith("seriatim standalone: ")]) == (2, [line])


def test_lines_of_grpc_come_back_if_the_environment_asks_for_them(tmp_path: Path) -> None:
    with PortRange.reserve() as ports, socket.socket() as taken:
        taken.bind((HOST, ports.base))
        taken.listen()
        _, lines = said(commands(tmp_path, ports.base)["coordinator"], GRPC_VERBOSITY="ERROR")
    assert any("Failed to add port" in line for line in lines), lines
