"""The version of the protocol between clients and brokers, and between brokers. Each side says its own in its hello."""

from __future__ import annotations

from typing import Final

from seriatim_api.errors import UnsupportedVersionError

PROTOCOL: Final = 2
"""Raised when a peer could not read, or would read wrongly, what this version sends (docs/contributing/formats.md).

1   before any release
2   hand-over rows, layouts of publications, settings and sizes are always told; forms of messages begin anew
"""


def check_protocol(theirs: int, who: str) -> None:
    """Refuse a peer that speaks another protocol.

    Args:
        theirs: The number that it says.
        who: What the peer is: `client` or `broker`.

    Raises:
        UnsupportedVersionError: It speaks another protocol.
    """
    if theirs == PROTOCOL:
        return
    remedy = f"upgrade that {who}" if theirs < PROTOCOL else "upgrade the program that says this"
    raise UnsupportedVersionError(
        f"the {who} speaks protocol {theirs}, and only {PROTOCOL} is spoken here. Remedy: {remedy}",
        protocol=theirs,
        spoken=PROTOCOL,
    )
