"""`seriatim standalone`: a client's streams need no gRPC there either."""

from __future__ import annotations

import asyncio
import re
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from seriatim import Client
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc

from tools.ports import free_ports

HOST = "127.0.0.1"
DEADLINE_S = 60.0
_SERVING = re.compile(r"seriatim standalone: serving on 127\.0\.0\.1:(\d+) and 127\.0\.0\.1:(\d+)")


@asynccontextmanager
async def standalone(data: Path, port: int, before: str = "") -> AsyncIterator[int]:
    """`seriatim standalone`, which serves at `port` and the next two, and metrics at the one above.

    With port 0 it has no metrics. The value is the port at which it serves. The program runs `before` first.
    """
    metrics = ("--admin-listen", f"{HOST}:{port + 3}") if port else ()
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"{before}\nfrom seriatim.cli import main; main()",
        "standalone", "--data", str(data), "--listen", f"{HOST}:{port}", *metrics, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert running.stderr is not None
    try:
        lines: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            while not (found := _SERVING.fullmatch(lines[-1] if lines else "")):
                line = await running.stderr.readline()
                assert line, lines
                lines.append(line.decode().rstrip())
        first, second = int(found[1]), int(found[2])
        assert second == first + 1
        assert first == port or not port
        yield first
    finally:
        running.terminate()
        await running.communicate()


async def stream_port(address: str) -> broker_pb2.GetStreamPortResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        routing = broker_pb2_grpc.RoutingStub(channel)  # type: ignore[no-untyped-call]
        answer: broker_pb2.GetStreamPortResponse = await routing.GetStreamPort(broker_pb2.GetStreamPortRequest())
        return answer


def gauge(port: int, name: str) -> float:
    """The sum of both brokers."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=DEADLINE_S) as page:
        text = page.read().decode()
    return sum(float(value) for value in re.findall(rf"^seriatim_{name}{{.*}} (\S+)$", text, re.MULTILINE))


async def test_streams_of_clients_go_over_tcp(tmp_path: Path) -> None:
    port = free_ports(4)[0]
    async with standalone(tmp_path, port):
        told = [await stream_port(f"{HOST}:{port + slot}") for slot in range(2)]
        assert [each.broker for each in told] == ["g0-0", "g0-1"]
        assert len({each.port for each in told} | {0, port, port + 1, port + 2, port + 3}) == 7
        async with Client.connect(f"{HOST}:{port}") as client:
            await client.admin().create_topic("orders", 1)
            async with client.producer("orders") as producer:
                await (await producer.send(b"one"))
                streams = await asyncio.to_thread(gauge, port + 3, "streams")
                over_tcp = await asyncio.to_thread(gauge, port + 3, "tcp_streams")
    assert (streams, over_tcp) == (1, 1)


async def test_port_0_is_three_free_ports_also_beside_another_one(tmp_path: Path) -> None:
    async with standalone(tmp_path / "one", 0) as one, standalone(tmp_path / "two", 0) as two:
        assert one >= 1024
        assert abs(one - two) >= 3
        for port in (one, two):
            async with Client.connect(f"{HOST}:{port + 1}") as client:
                await client.admin().create_topic(f"orders-{port}", 1)
                async with client.producer(f"orders-{port}") as producer:
                    await (await producer.send(b"one"))
