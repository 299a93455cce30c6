"""A small program in a broker's place: it listens, says it is ready, and keeps a run number, and knows nothing else.

The coordinator is the real embedded one, served from the package's own function.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seriatim_api.ids import MemberId, RunId
from seriatim_local.layout.plan import BrokerPlan, ClusterPlan

_BROKER = """
import asyncio, json, pathlib, signal, sys
data, name, listen, admin, mode = sys.argv[1:]
identity_file = pathlib.Path(data) / "fake.json"
run = (json.loads(identity_file.read_text()) if identity_file.exists() else 0) + 1
identity_file.write_text(json.dumps(run))
if mode == "fails":
    sys.exit("this disk belongs to another member")

async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(f"{name} {run} ".encode() + line)
        await writer.drain()

async def ready(reader, writer):
    await reader.readline()
    page = pathlib.Path(data) / "readyz"
    status = b"503 Not Ready" if page.exists() else b"200 OK"
    writer.write(b"HTTP/1.1 " + status + b"\\r\\n\\r\\n" + (page.read_bytes() if page.exists() else b"ready\\n"))
    await writer.drain()
    writer.close()

async def main():
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    for handler, address in ((echo, listen), (ready, admin)):
        host, port = address.split(":")
        await asyncio.start_server(handler, host, int(port))
    print("listening", flush=True)
    await over.wait()
    print("handed over", flush=True)

asyncio.run(main())
"""

_COORDINATOR = """
import asyncio, pathlib, signal, sys
from seriatim_local.embedded.server import serve

async def main():
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    coordinator = await serve(pathlib.Path(sys.argv[1]), sys.argv[2])
    await over.wait()
    await coordinator.stop()

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class FakePrograms:
    """The fake broker, and the embedded coordinator.

    Attributes:
        failing: A broker whose disk refuses to start.
    """

    failing: str = ""

    def broker(self, plan: ClusterPlan, broker: BrokerPlan, data: Path) -> Sequence[str]:
        mode = "fails" if broker.name == self.failing else "works"
        return [sys.executable, "-c", _BROKER, str(data), broker.name, str(broker.listen), str(broker.admin), mode]

    def coordinator(self, plan: ClusterPlan, data: Path) -> Sequence[str]:
        return [sys.executable, "-c", _COORDINATOR, str(data), str(plan.coordinator)]

    def last_run(self, data: Path, broker: str) -> RunId | None:
        identity_file = data / "fake.json"
        if not identity_file.exists():
            return None
        return RunId(MemberId(broker, incarnation_of(broker)), json.loads(identity_file.read_text()))


def incarnation_of(broker: str) -> str:
    return broker.encode().hex().ljust(32, "0")
