"""What `make bench-peers` needs of a peer: a cluster on this machine, and a client that measures it.

The client of each peer is a program in the language of its own makers, because a Python client would measure Python. It
prints a JSON object, on a line, for each answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from e2e.bench.peers import servers
from e2e.bench.peers.servers import ServerError

ANSWER_DEADLINE_S = 240.0


class PeerCluster(Protocol):
    """A running cluster of a peer."""

    async def create(self, topic: str, copies: int) -> str:
        """Make a topic (or stream) whose messages have this many copies, and return the name of its leader.

        If there are more than two copies, a message is acknowledged when at least two have it.

        Raises:
            ServerError: It could not be made.
        """

    def client(self, *arguments: str) -> list[str]:
        """The command line of the client: `single`, `bulk`, `drain` or `steady`, a topic, and more."""

    async def kill(self, server: str) -> None:
        """Kill a server (SIGKILL)."""


class Peer(Protocol):
    """A broker of another owner."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def version(self) -> str:
        """The version that is measured."""

    @property
    def settings(self) -> str:
        """What was set, as human-readable text."""

    @property
    def bulk(self) -> Sequence[str]:
        """The arguments of the client's `bulk`, after the topic and the seconds."""

    @property
    def servers(self) -> int:
        """How many servers a cluster needs to keep two copies."""

    def cluster(self, directory: Path, servers: int, *, flush: bool) -> AbstractAsyncContextManager[PeerCluster]:
        """Run a cluster in a new directory. With `flush`, each copy is on disk before a message is acknowledged."""


class Probe:
    """A client that runs, and whose answers are read one by one."""

    def __init__(self, process: asyncio.subprocess.Process, command: Sequence[str]) -> None:
        self._process = process
        self._command = command

    @classmethod
    async def start(cls, command: Sequence[str]) -> Probe:
        """Start the client. If this process dies, the kernel ends it."""
        process = await asyncio.create_subprocess_exec(
            *servers.bound(*command), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, limit=64 * 2**20, start_new_session=True,
        )  # fmt: skip
        return cls(process, command)

    async def answer(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            ServerError: The client ended without one, or gave none within `ANSWER_DEADLINE_S`; the text has its last
                words.
        """
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        name = " ".join(self._command[-6:])
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                while line := await self._process.stdout.readline():
                    if line.startswith(b"{"):
                        answer: dict[str, Any] = json.loads(line)
                        return answer
                said = (await self._process.stderr.read()).decode(errors="replace")
        except TimeoutError as error:
            raise ServerError(f"{name}: no answer within {ANSWER_DEADLINE_S:g} s") from error
        raise ServerError(f"{name}: no answer: {said.strip()[-800:]}")

    async def end(self) -> None:
        """End the client, if it runs."""
        await servers.end(self._process)


async def ask(command: Sequence[str]) -> dict[str, Any]:
    """Run a client that gives one answer.

    Raises:
        ServerError: It gave none, or not in time.
    """
    probe = await Probe.start(command)
    try:
        return await probe.answer()
    finally:
        await probe.end()
