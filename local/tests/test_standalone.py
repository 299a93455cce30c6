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


@asynccontextmanager
async def standalone(data: Path, port: int) -> AsyncIterator[None]:
    """`seriatim standalone`, which serves at `port` and the next two, and metrics at the one above."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from seriatim.cli import main; main()",
        "standalone", "--data", str(data), "--listen", f"{HOST}:{port}", "--admin-listen", f"{HOST}:{port + 3}",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert running.stderr is not None
    try:
        lines: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            while f"seriatim standalone: serving on {HOST}:{port} and {HOST}:{port + 1}" not in lines:
                line = await running.stderr.readline()
                assert line, lines
                lines.append(line.decode().rstrip())
        yield
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
