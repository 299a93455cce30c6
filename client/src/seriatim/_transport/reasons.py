"""The reasons of failed connections, for people, from what gRPC says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from seriatim._transport.certificates import Certificates

_PREAMBLE: Final = re.compile(
    r"^failed to connect to all addresses; last error: [A-Z]+: ipv[46]:[^ ]*: (?:Failed to connect to remote host: )?"
)
_SYSTEM_CALL: Final = re.compile(r"^(?:recvmsg|sendmsg|getsockopt\(SO_ERROR\)): ?(.*?)(?: \(\d+\))?\Z")

_CLOSED: Final = "Socket closed"
"""gRPC's only detail if a client with plain text connects to a broker with TLS."""

MAY_ASK_FOR_TLS: Final = "does the broker ask for TLS?"
"""The end of the reason if a client with plain text was cut off in the middle of the handshake."""


def explain(details: str | None, certificates: Certificates | None) -> tuple[str, bool]:
    """Why a call failed, and whether TLS is the cause.

    It leaves gRPC's preamble out, which names the address two more times, and the names and numbers of system calls.
    """
    text = details or "no reason given"
    reason = _SYSTEM_CALL.sub(r"\1", _PREAMBLE.sub("", text))
    if certificates is None:
        is_cut = reason != text and _CLOSED in reason
        return (f"{reason}; {MAY_ASK_FOR_TLS}" if is_cut else reason), False
    cause = certificates.explain(text)
    return cause or reason, cause is not None
