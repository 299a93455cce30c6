"""The other side of a connection that carries frames: it sends what a test wants."""

from __future__ import annotations

import asyncio

from seriatim_api.wire.frame_reader import with_prefix

DEADLINE_S = 30.0


def frame(kind: int, content: bytes = b"") -> bytes:
    return b"".join(with_prefix(kind, (content,)))


class RawFrames:
    """Sends and reads frames, whatever is in them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, kind: int, content: bytes = b"") -> None:
        self.writer.write(frame(kind, content))

    async def read(self) -> tuple[int, bytes]:
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readexactly(5)
            return head[4], await self.reader.readexactly(int.from_bytes(head[:4], "little"))
