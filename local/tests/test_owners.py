"""Names that one program at a time has, on real brokers: acquired, kept, taken over, released, and refused."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest
from seriatim import Client, TopicSettings
from seriatim_api import errors
from seriatim_api.status import from_status
from seriatim_api.v1 import owners_pb2, owners_pb2_grpc

from .test_standalone import HOST, standalone

ANNOUNCED: Final = "import seriatim_broker.core.values.messages as m; m.FORMS |= m.FORM_EXCLUSIVE"
"""Before the brokers announce by themselves that they know exclusive producers."""

# A program of its own, because a process has a name once. It prints its epoch, and then why it ended.
PROGRAM: Final = """
import asyncio, sys
from seriatim import Client
from seriatim_api.errors import ProducerFencedError

async def main():
    async with Client.connect(sys.argv[1]) as client:
        async with client.producer("t", owner="loader", session_ms=500, take_over=len(sys.argv) > 2) as producer:
            print(producer.epoch, flush=True)
            try:
                while True:
                    (await producer.send_many([b"m"] * 4, partition=0))
                    await producer.flush()
                    await asyncio.sleep(0.01)
            except ProducerFencedError as error:
                print(error.name, error.epoch, flush=True)

asyncio.run(main())
"""


class Programs:
    """Programs that want the name."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.started: list[asyncio.subprocess.Process] = []

    async def start(self, *more: str) -> asyncio.subprocess.Process:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, self.address, *more, stdout=asyncio.subprocess.PIPE
        )
        self.started.append(program)
        return program

    async def end(self) -> None:
        for program in self.started:
            if program.returncode is None:
                program.kill()
            await program.wait()


async def line(program: asyncio.subprocess.Process) -> str:
    assert program.stdout is not None
    async with asyncio.timeout(60):
        return (await program.stdout.readline()).decode().strip()


async def test_one_program_at_a_time_has_a_name(tmp_path: Path) -> None:
    async with standalone(tmp_path, 0, ANNOUNCED) as port, Client.connect(f"{HOST}:{port}") as client:
        admin = client.admin()
        await admin.create_topic("t", 3, TopicSettings(exclusive_only=True))
        async with client.producer("t", owner="loader", acquire_timeout_s=60) as producer:
            assert producer.epoch == 1
            receipts = [await (await producer.send(b"m", partition=number)) for number in (0, 1, 2, 0)]
            assert [receipt.partition for receipt in receipts] == [0, 1, 2, 0]
            with pytest.raises(errors.PreconditionError, match="the owner is this program"):
                await client.producer("t", owner="loader")
        programs = Programs(f"{HOST}:{port}")
        try:
            first = await programs.start()
            assert await line(first) == "2", "the name was released, so there is no wait for a session"
            with pytest.raises(errors.DeadlineExceededError, match="is the owner, in epoch 2; 0 programs are before"):
                await client.producer("t", owner="loader", acquire_timeout_s=0.2)
            second = await programs.start()
            async with asyncio.timeout(60):
                while not (shown := await admin.describe_owner("t", "loader")).waiting:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.05)
            assert shown.owner is not None
            assert (shown.owner.epoch, shown.owner.session_ms, shown.is_here, len(shown.waiting)) == (2, 500, True, 1)
            first.kill()
            assert await line(second) == "3"
            third = await programs.start("take over")
            assert (await line(third), await line(second)) == ("4", "loader 4")
            with pytest.raises(errors.PreconditionError, match="is in epoch 4 now"):
                await admin.release_owner("t", "loader", 3)
            assert (await admin.release_owner("t", "loader")).is_released
            assert (await line(third)).startswith("loader ")
        finally:
            await programs.end()
        assert [(one.name, one.epoch, one.is_released) async for one in admin.owners("t")] == [("loader", 4, True)]
        with pytest.raises(errors.PreconditionError, match="never had an owner"):
            await admin.release_owner("t", "nobody")
        async with client.producer("t") as ordinary:
            with pytest.raises(errors.SeriatimError, match="exclusive_only"):
                await (await ordinary.send(b"m"))
        await admin.delete_topic("t")
        await admin.create_topic("t", 1)
        async with client.producer("t", owner="loader", acquire_timeout_s=60) as producer:
            assert producer.epoch == 1, "nothing of the deleted topic counts"
        for wrong in BAD:
            with pytest.raises(wrong[1]):
                await acquire(f"{HOST}:{port}", **wrong[0])


GOOD: Final[dict[str, Any]] = {"topic": "t", "name": "loader", "owner": bytes(16), "session_ms": 500}
BAD: Final[tuple[tuple[dict[str, Any], type[errors.SeriatimError]], ...]] = (
    ({"owner": b"short"}, errors.BadRequestError),
    ({"owner_text": "x" * 201}, errors.BadRequestError),
    ({"session_ms": 499}, errors.BadRequestError),
    ({"session_ms": 60_001}, errors.BadRequestError),
    ({"name": ""}, errors.IllegalNameError),
    ({"name": "a/b"}, errors.IllegalNameError),
    ({"topic": "nowhere"}, errors.UnknownTopicError),
    ({"topic": "_stage"}, errors.SeriatimError),
    ({"partition_id": 1}, errors.UnknownTopicError),
)


async def acquire(address: str, **wrong: Any) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        call = owners_pb2_grpc.OwnersStub(channel).Acquire()  # type: ignore[no-untyped-call]
        try:
            await call.write(owners_pb2.AcquireRequest(**{**GOOD, **wrong}))
            await call.read()
            raise from_status(await call.code(), await call.details(), await call.trailing_metadata())
        except grpc.aio.AioRpcError as exc:
            raise from_status(exc.code(), exc.details(), exc.trailing_metadata()) from exc


async def test_a_name_is_refused_while_brokers_do_not_announce_owners(tmp_path: Path) -> None:
    async with standalone(tmp_path, 0) as port, Client.connect(f"{HOST}:{port}") as client:
        await client.admin().create_topic("t", 1)
        with pytest.raises(errors.PreconditionError, match="upgrade all brokers first"):
            await client.producer("t", owner="loader", acquire_timeout_s=60)
        with pytest.raises(errors.BadRequestError, match="session_ms"):
            client.producer("t", owner="loader", session_ms=499)
        with pytest.raises(errors.IllegalNameError):
            client.producer("t", owner="a/b")
        with pytest.raises(errors.BadRequestError, match="take_over"):
            client.producer("t", take_over=True)
