"""The commands where no broker answers: they say so soon, keep trying, and end with the error and status 1."""

from __future__ import annotations

import json
import logging
import os
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from seriatim import _client
from seriatim._admin import admin, group_operations
from seriatim._transport import silence
from seriatim.cli import main

NOBODY = "127.0.0.1:1"
COMMANDS = [
    ("produce", "t", "--size", "10", "--count", "3"),
    ("consume", "t", "-g", "g"),
    ("topic", "list"),
    ("topic", "create", "t"),
    ("chain", "watch", "t"),
    ("group", "describe", "t", "g"),
    ("member", "list"),
]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "NOTICE_S", 0)
    monkeypatch.setattr(_client, "TOPIC_DEADLINE_S", 0.3)
    for module in (admin, group_operations):
        monkeypatch.setattr(module, "DEADLINE_S", 0.3)


@pytest.fixture(autouse=True)
def nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Path(os.devnull).open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["--bootstrap", NOBODY, *words])
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("words", COMMANDS)
def test_it_is_said_and_then_is_the_error(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert ended(*words) == 1
    out, err = capfd.readouterr()
    assert out == ""
    note, error, remedy = err.splitlines()
    assert note.startswith(f"# no broker answers at {NOBODY}: ")
    assert note.endswith("; still trying")
    assert error.startswith(f"error 600: no broker answers at {NOBODY}: ")
    assert "--bootstrap" in remedy
    assert not logging.getLogger("seriatim").handlers


@pytest.fixture
def web_server() -> Iterator[str]:
    """A port where another program listens. It answers each connection as a web server does."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("words", [("topic", "list"), ("produce", "t", "--size", "10", "--count", "3")])
def test_a_port_of_another_program_is_told_at_once(
    words: tuple[str, ...], web_server: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "NOTICE_S", 60)
    monkeypatch.setattr(_client, "TOPIC_DEADLINE_S", 60)
    monkeypatch.setattr(admin, "DEADLINE_S", 60)
    begun = time.monotonic()
    with pytest.raises(SystemExit):
        main(["--bootstrap", web_server, *words])
    assert time.monotonic() - begun < 30, "long before the deadline"
    error = capfd.readouterr().err.splitlines()[0]
    wanted = f"no broker answers at {web_server}: another program listens there, and it is no Seriatim broker"
    assert error == f"error 600: {wanted}"


def test_programs_get_it_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert ended("--output", "json", "topic", "list") == 1
    note, error = map(json.loads, capfd.readouterr().err.splitlines())
    assert note["note"] == "warning"
    assert note["text"].startswith(f"no broker answers at {NOBODY}: ")
    assert error["error"]["class"] == "UnavailableError"
