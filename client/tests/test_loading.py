"""What is loaded for what: the command's help and administration must not wait for libraries that they do not use."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib import metadata

import pytest
import seriatim

from .fake_broker import running

LIBRARIES = ("grpc", "google.protobuf", "pyarrow", "numpy", "rich", "asyncio")

NOT_FOR_SENDING = (
    "seriatim._admin.admin",
    "seriatim._consuming.consumer",
    "seriatim._values.consumer_group_settings",
    "seriatim._admin.descriptions",
    "seriatim._ranges.records",
    "seriatim._values.tls",
    "seriatim._publishing.writer",
    "seriatim.history",
    "seriatim_api.dead_letters",
    "seriatim_api.delayed",
    "seriatim_api.network.tls",
    "seriatim_api.v1.dead_letters_pb2",
    "seriatim_api.v1.delayed_pb2",
    "seriatim_api.v1.operations_pb2",
    "seriatim_api.v1.publications_pb2",
    "seriatim_api.v1.ranges_pb2",
)

SENDING = """
import asyncio, sys
from seriatim import Client

async def send(address):
    async with Client.connect(address) as client, client.producer("t") as producer:
        await (await producer.send(b"first"))

asyncio.run(send(sys.argv[1]))
print(*(name for name in sys.modules if name.startswith("seriatim")))
"""


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*(name for name in {LIBRARIES} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "libraries"),
    [
        ("import seriatim", set()),
        ("import seriatim.history", set()),
        ("import seriatim.cli", set()),
        ("import seriatim.cli.topic, seriatim.cli.group, seriatim.cli.member", {"asyncio"}),
        ("import seriatim.cli.produce, seriatim.cli.consume", {"asyncio"}),
        ("from seriatim import Admin, Client", {"asyncio", "grpc", "google.protobuf"}),
    ],
)
def test_only_what_is_needed_is_loaded(code: str, libraries: set[str]) -> None:
    assert loaded_by(code) == libraries


@pytest.mark.usefixtures("carriage")
async def test_a_program_that_only_sends_loads_nothing_else() -> None:
    async with running() as cluster:
        cluster.create_topic("t")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SENDING, cluster.brokers[0].address,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        assert cluster.values("t") == [b"first"]
    loaded = out.decode().split()
    assert "seriatim._producing.producer" in loaded
    assert sorted(set(loaded) & set(NOT_FOR_SENDING)) == []


def test_the_version_is_that_of_the_package_and_of_the_command() -> None:
    wanted = metadata.version("seriatim")
    assert seriatim.__version__ == wanted
    done = subprocess.run(
        [sys.executable, "-m", "seriatim", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"seriatim {wanted}\n"
