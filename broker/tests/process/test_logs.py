"""The log of a broker: stderr that takes nothing stops no work, and no line of it raises."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
import structlog
from seriatim_api.log_repeats import WithoutRepeats
from seriatim_broker.process.logs import LINES_MAX, REPEATED_S, LogFile, _Guarded, configure


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def read_all(end: int) -> bytes:
    """What is in the pipe."""
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_NONBLOCK)
    found = b""
    while True:
        try:
            found += os.read(end, 1 << 20)
        except BlockingIOError:
            return found


@pytest.mark.timeout(20)
def test_a_pipe_without_a_reader_takes_what_it_can_and_stops_nothing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    file = LogFile(writing)
    count = 5_000
    for number in range(count):
        file.write(f"{number} {'x' * 200}\n")  # 1 MB, and a pipe takes 64 KiB
    assert file.dropped
    lines = []
    while not lines or not lines[-1].startswith(b"end"):
        found = read_all(reading)
        assert found
        lines += found.splitlines()
        file.flush()
        if not found.endswith(b"end\n"):
            file.write("end\n")
    numbers = [int(line.split()[0]) for line in lines if line[:1].isdigit()]
    assert numbers == sorted(numbers)
    assert len(numbers) < count
    [note] = [line for line in lines if b"log_lines_dropped" in line]
    assert numbers[-1] == count - 1, "the newest lines stay"
    assert int(note.split()[-1].rstrip(b"}")) + len(numbers) >= count - 2


@pytest.mark.timeout(20)
def test_lines_longer_than_a_pipe_is_ready_for_do_not_wait(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    file = LogFile(writing)
    file.write("y" * 200_000 + "\n")
    found = read_all(reading)
    while not found.endswith(b"\n"):
        file.flush()
        found += read_all(reading)
    assert found == b"y" * 200_000 + b"\n"


def test_a_reader_that_has_gone_stops_nothing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    file = LogFile(writing)
    for _ in range(LINES_MAX + 10):
        file.write("line\n")
    assert file.dropped == 9, "one is being written, and the newest wait"


def test_a_full_disk_stops_nothing() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        LogFile(descriptor).write("line\n")
    finally:
        os.close(descriptor)


def test_a_field_that_cannot_be_rendered_costs_its_line_only_the_fields() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    render = _Guarded(structlog.processors.JSONRenderer(default=str))
    line = render(None, "warning", {"event": "e", "field": Odd()})
    assert line == '{"event": "e", "unrendered": "RuntimeError", "level": "warning"}'


class Foreign:
    """An object of others without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_a_line_is_written_once_a_second_if_no_field_differs() -> None:
    now_s = [100.0]
    drop = WithoutRepeats(REPEATED_S, structlog.DropEvent, lambda: now_s[0])
    line = {"event": "coordinator_read_failed", "keys": 1, "error": "no answer"}
    assert drop(None, "warning", dict(line)) == line
    assert drop(None, "warning", {**line, "keys": 2})["keys"] == 2
    for _ in range(4):
        now_s[0] += REPEATED_S / 5
        with pytest.raises(structlog.DropEvent):
            drop(None, "warning", dict(line))
    now_s[0] += REPEATED_S / 5
    assert drop(None, "warning", dict(line)) == {**line, "repeated": 4}
    assert drop(None, "warning", {"event": "odd", "object": Foreign()})["event"] == "odd"


def test_a_process_writes_no_line_twice_a_second(capfd: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    try:
        configure("info")
        log = structlog.get_logger("test")
        for _ in range(3):
            log.warning("coordinator_read_failed", keys=1)
        log.warning("coordinator_read_failed", keys=2)
        for cause in ("disk", "disk", "network"):
            try:
                raise OSError(cause)
            except OSError:
                log.exception("coordinator_read_failed")
    finally:
        structlog.configure(**before)
    lines = [line for line in capfd.readouterr().err.splitlines() if "coordinator_read_failed" in line]
    assert len(lines) == 4, "two with fields, and one for each exception"
