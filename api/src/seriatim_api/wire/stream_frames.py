"""The kinds of frames on a connection that carries one stream of a client over TCP.

The client sends `HELLO`. The broker answers `OPENED`, and from then on both send `MESSAGE`, with the bytes that one
message of the gRPC stream has. The client ends with `FINISHED`. The broker ends with `END`, also in place of `OPENED`.
"""

from __future__ import annotations

from typing import Final

HELLO: Final = 1
"""A `StreamHello`. It comes first, and once."""

OPENED: Final = 2
"""The broker takes the stream. It has no content."""

MESSAGE: Final = 3
"""A message of the stream: `AppendFrame`, `ConsumeRequest`, `AppendReplies` or `Delivery`."""

FINISHED: Final = 4
"""The client sends nothing more, and waits for the `END`. It has no content."""

END: Final = 5
"""The broker sends nothing more: an `Error`, or no content if the client has finished and nothing went wrong."""
