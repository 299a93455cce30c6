"""The preloaded libraries do what the faults expect of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.faults.systems.shims import Flushed, Shims, find_compiler, parse_flushed

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler: the shims cannot be built")

WRITER = """
import os, sys
os.chdir(sys.argv[1])
def write(name, text, sync):
    with open(name, "ab", buffering=0) as file:
        file.write(text)
        if sync:
            os.fdatasync(file.fileno())
write("whole", b"0123456789", True)
write("partly", b"01234", True)
write("partly", b"56789", False)
write("never", b"0123456789", False)
write("new", b"0123456789", True)
os.rename("new", "renamed")
"""

FAILING_WRITER = """
import os, sys
file = open(sys.argv[1] + "/file", "wb", buffering=0)
file.write(b"1")
try:
    os.fsync(file.fileno())
except OSError as error:
    print(error.errno)
"""


def run(shims: Shims, program: str, *arguments: str) -> str:
    environment = {**os.environ, **shims.environment("b")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def shims(tmp_path: Path) -> Shims:
    (tmp_path / "data" / "b").mkdir(parents=True)
    return Shims(tmp_path / "shims", tmp_path / "data")


def test_a_power_cut_leaves_what_was_flushed(shims: Shims, tmp_path: Path) -> None:
    data = tmp_path / "data" / "b"
    run(shims, WRITER, str(data))
    assert shims.lose_unsynced("b") == 15
    left = {path.name: path.read_bytes() for path in data.iterdir()}
    assert left == {"whole": b"0123456789", "partly": b"01234", "never": b"", "renamed": b"0123456789"}
    assert shims.lose_unsynced("b") == 0


def test_files_elsewhere_are_not_noted(shims: Shims, tmp_path: Path) -> None:
    elsewhere = tmp_path / "data" / "bb"
    elsewhere.mkdir()
    run(shims, WRITER, str(elsewhere))
    assert shims.flushed("b") == []


def test_a_flush_that_failed_is_not_noted(shims: Shims, tmp_path: Path) -> None:
    shims.set_disk("b", "fail_sync=1")
    assert run(shims, FAILING_WRITER, str(tmp_path / "data" / "b")).strip() == "5"
    assert shims.flushed("b") == []


def test_a_log_whose_last_line_is_torn() -> None:
    assert parse_flushed("7 100 5\n8 20 6\n7 1") == [Flushed(7, 100, 5), Flushed(8, 20, 6)]
    assert parse_flushed("") == []


def test_the_wall_clock_jumps_and_the_monotonic_one_does_not(shims: Shims) -> None:
    program = """
import sys, time
print(time.time() - float(sys.argv[1]), time.monotonic() - float(sys.argv[2]))
"""
    shims.shift_clock("b", -3600.5)
    wall, monotonic = map(float, run(shims, program, str(time.time()), str(time.monotonic())).split())
    assert wall == pytest.approx(-3600.5, abs=20)
    assert monotonic == pytest.approx(0, abs=20)
    shims.shift_clock("b", 0)
    wall, _ = map(float, run(shims, program, str(time.time()), str(time.monotonic())).split())
    assert wall == pytest.approx(0, abs=20)


CALLS = """
import asyncio, sys, time
import grpc

async def main():
    server = grpc.aio.server()
    seen = []

    async def answer(request, context):
        seen.append(context.time_remaining())
        if request == b"slow":
            await asyncio.sleep(30)
        return request

    handlers = {"Call": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/s/Call")
        began = time.monotonic()
        await call(b"a", timeout=20)
        took = time.monotonic() - began
        began = time.monotonic()
        try:
            await call(b"slow", timeout=0.5)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
        print(seen[0], took, time.monotonic() - began)
    await server.stop(None)

asyncio.run(main())
"""


@pytest.mark.parametrize("shift_s", [0.0, 3600.0, -3600.0, 9 * 86_400.0])
def test_calls_of_a_process_whose_clock_jumped_keep_their_deadlines(shims: Shims, shift_s: float) -> None:
    shims.shift_clock("b", shift_s)
    remaining, took, failed_after = map(float, run(shims, CALLS).split())
    assert 0 < remaining < 30, "as the server sees it: gRPC rounds it up, and by the time of its loop, not of the call"
    assert took < 10, "it was answered"
    assert 0.4 < failed_after < 15, "a deadline still ends a call"


THREADS = """
import threading, time
ended = threading.Event()
busy = threading.Thread(target=lambda: [None for _ in iter(ended.is_set, True)])
busy.start()
began = time.monotonic()
for _ in range(20):
    time.sleep(0.001)
print(threading.Event().wait(0.2), time.monotonic() - began)
ended.set()
busy.join()
"""


@pytest.mark.parametrize("shift_s", [3600.0, -3600.0])
def test_threads_wait_as_long_as_before_a_jump(shims: Shims, shift_s: float) -> None:
    shims.shift_clock("b", shift_s)
    result, took = run(shims, THREADS).split()
    assert result == "False"
    assert 0.2 <= float(took) < 15
