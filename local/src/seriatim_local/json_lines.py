"""Requests and answers as JSON lines on a stream. Commands use it to the runner, and the runner to its proxy.

Each request gets one answer, in order. An error is sent as its number, text and details (`seriatim_api.errors`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from seriatim_api.errors import BadRequestError, DeadlineExceededError, SeriatimError, UnavailableError, make_error

LINE_SIZE_BYTES_MAX: Final = 1 << 20
"""Limit for one request or answer. The caller must make the stream's reader with this limit."""

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

    Two tasks must not use one stream at the same time. If the call is cancelled, or fails with an error that is not the
    other side's answer, the caller must close the stream: the next answer could belong to this request.

    Raises:
        SeriatimError: The other side answered with this error.
        UnavailableError: The other side has gone.
        DeadlineExceededError: No answer came within `deadline_s` seconds. The request may still be carried out.
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
    return result_of(line)


def result_of(line: bytes) -> Any:
    """The result in an answer.

    Raises:
        SeriatimError: The other side answered with this error.
    """
    answer = json.loads(line)
    if "error" in answer:
        found = answer["error"]
        raise make_error(found["number"], found["message"], details=found["details"])
    return answer["result"]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
    """Answer requests, one after another, until the other side closes the stream.

    A `SeriatimError` of `handler` is sent as the answer. Any other error ends the stream and is raised.
    """
    try:
        while line := await reader.readline():
            writer.write(json.dumps(await _answer(line, handler)).encode() + b"\n")
            await writer.drain()
    except (ConnectionError, ValueError):  # the other side has gone, or sent a line over the limit: no answer
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
