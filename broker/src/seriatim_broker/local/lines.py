"""Requests and answers as JSON lines on a stream: how the runner is told what to do, and how it tells its proxy.

One request, then one answer, in order. An error travels as its number and text (`seriatim_api.errors`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from seriatim_api.errors import BadRequestError, DeadlineExceededError, SeriatimError, UnavailableError, make_error

LINE_SIZE_BYTES_MAX: Final = 1 << 20
"""One request or answer; the stream's reader must have been made with this limit."""

Arguments = dict[str, Any]
Handler = Callable[[str, Arguments], Awaitable[Any]]


async def call(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    command: str,
    arguments: Arguments,
    *,
    deadline_s: float,
) -> Any:
    """Send one request and wait for its answer.

    Not for use by two tasks on one stream at once. After an error that is not the other side's answer, and after
    cancellation, the stream is out of step and must be closed.

    Raises:
        SeriatimError: What the other side answered.
        UnavailableError: The other side has gone.
        DeadlineExceededError: No answer within `deadline_s` seconds.
    """
    try:
        async with asyncio.timeout(deadline_s):
            writer.write(json.dumps({"command": command, "arguments": arguments}).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
    except TimeoutError:
        raise DeadlineExceededError(f"no answer to {command!r} within {deadline_s} s") from None
    except (OSError, ValueError) as error:
        raise UnavailableError(f"the other side went away during {command!r}: {error}") from error
    if not line.endswith(b"\n"):
        raise UnavailableError(f"the other side went away during {command!r}")
    answer = json.loads(line)
    if "error" in answer:
        found = answer["error"]
        raise make_error(found["number"], found["message"], details=found["details"])
    return answer["result"]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
    """Answer requests, one after another, until the other side has closed.

    An expected failure of `handler` is answered; any other ends the stream and is raised.
    """
    try:
        while line := await reader.readline():
            writer.write(json.dumps(await _answer(line, handler)).encode() + b"\n")
            await writer.drain()
    except (ConnectionError, ValueError):  # gone in the middle, or a line over the limit: nobody to answer
        return
    finally:
        writer.close()


async def _answer(line: bytes, handler: Handler) -> dict[str, Any]:
    try:
        try:
            request = json.loads(line)
            command, arguments = request["command"], request["arguments"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequestError(f"not a request: {error}") from error
        return {"result": await handler(command, arguments)}
    except SeriatimError as error:
        return {"error": {"number": error.number, "message": error.message, "details": error.details}}
