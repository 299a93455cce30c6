"""The version of the protocol between clients and brokers, and between brokers. Each side says its own in its hello."""

from __future__ import annotations

from typing import Final

from seriatim_api.errors import SeriatimError, UnsupportedVersionError

PROTOCOL: Final = 2
"""Raised when a peer could not read, or would read wrongly, what this version sends (docs/contributing/formats.md).

1   before any release
2   hand-over rows, layouts of publications, settings and sizes are always reported; forms of messages start over
"""


def check_protocol(theirs: int, who: str, me: str) -> None:
    """Refuse a peer that speaks another protocol.

    Args:
        theirs: The number that it says.
        who: The peer, for humans, for example `the client`.
        me: This side likewise. An administrator may read the text on either side.

    Raises:
        UnsupportedVersionError: It speaks another protocol.
    """
    if theirs == PROTOCOL:
        return
    older = who if theirs < PROTOCOL else me
    raise UnsupportedVersionError(
        f"{who} speaks protocol {theirs}, and {me} speaks {PROTOCOL}. Remedy: upgrade {older}",
        protocol=theirs,
        spoken=PROTOCOL,
    )


def says_another_protocol(error: SeriatimError) -> bool:
    """Whether an error, perhaps of the peer, says that the two sides speak different protocols: no try will succeed."""
    return isinstance(error, UnsupportedVersionError) and "spoken" in error.details
