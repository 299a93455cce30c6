"""The reasons of failed connections, for humans, from what gRPC says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from seriatim._transport.certificates import Certificates

_PREAMBLE: Final = re.compile(
    r"^failed to connect to all addresses; last error: [A-Z]+: ipv[46]:[^ ]*: (?:Failed to connect to remote host: )?"
)
_SYSTEM_CALL: Final = re.compile(r"^(?:recvmsg|sendmsg|getsockopt\(SO_ERROR\)): ?(.*?)(?: \(\d+\))?\Z")

_UNRESOLVED: Final = re.compile(r"^(?:errors resolving|DNS resolution failed for) .*: ?([^:\]]+)\]*\Z")

_CLOSED: Final = "Socket closed"
"""gRPC's only detail if a client with plain text connects to a broker with TLS."""

FOREIGN: Final = "another program listens there, and it is no Seriatim broker"
"""The reason if what listens at an address speaks another protocol."""

_FOREIGN_MARKS: Final = ("Failed parsing HTTP/2", "http1.x server")
"""What gRPC says then."""

_MUTE: Final = "timed out before receiving SETTINGS frame"
"""What gRPC says if the connection is accepted, and then nothing comes."""

MAY_ASK_FOR_TLS: Final = "does the broker ask for TLS?"
"""The end of the reason if a client with plain text was cut off in the middle of the handshake."""


def explain(details: str | None, certificates: Certificates | None) -> tuple[str, bool]:
    """Why a call failed, and whether TLS is the cause.

    It leaves gRPC's preamble out, which names the address two more times, and the names and numbers of system calls.
    """
    text = details or "no reason given"
    reason = _SYSTEM_CALL.sub(r"\1", _PREAMBLE.sub("", text))
    reason = _UNRESOLVED.sub(r"the name has no address: \1", reason)
    if any(mark in reason for mark in _FOREIGN_MARKS):
        return FOREIGN, False
    if _MUTE in reason:
        reason = "it takes connections and says nothing: it is frozen, or it is no Seriatim broker"
    if certificates is None:
        is_cut = reason != text and _CLOSED in reason
        return (f"{reason}; {MAY_ASK_FOR_TLS}" if is_cut else reason), False
    cause = certificates.explain(text)
    return cause or reason, cause is not None
