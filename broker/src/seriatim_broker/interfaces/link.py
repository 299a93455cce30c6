"""What the runtime asks of the network between brokers.

A `Connection` is one pair of streams (control and replication) to a process that has proved, by its hello, to belong to
the same cluster. Which of several connections to a broker is used, and when one is made anew, is decided by
`runtime.links`; how frames look is the implementation's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from seriatim_api.ids import MemberId

from ..core.values.messages import FORMS, Message


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who speaks at the other end: a run of a member, in a cluster.

    `forms`: which forms of messages it reads beyond those of 0.2.0, a sum of `core.messages.FORM_*`.
    """

    cluster_id: str
    member: MemberId
    run: int
    forms: int = FORMS


class PeerRefusedError(Exception):
    """Nobody listens at the address, or whoever does ends the connection before its hello: probably no process."""


class PeerSilentError(Exception):
    """No hello in time, or one that does not fit: say nothing of the process."""


class Connection(Protocol):
    """Both streams to one process. Messages of a stream arrive in the order in which they were sent."""

    peer: PeerIdentity
    dialed: bool

    def send(self, message: Message) -> None:
        """Queue a message; what is queued in one turn of the loop leaves together.

        Over the limit of queued bytes the connection is closed instead: whoever resumes does so from the disk.
        """

    def close(self, reason: str) -> None:
        """Break both streams now. Nothing more is received; what was queued is lost."""

    async def confirm(self) -> None:
        """At the dialer: tell the other end that the connection is used from now on.

        Raises:
            PeerSilentError: The connection has ended in between.
        """

    async def abandon(self, reason: str) -> None:
        """Close a connection that `run` was not called for, and give back what it holds."""

    async def run(self, receive: Callable[[Message], None]) -> str:
        """Carry messages until a stream ends; returns why. Called once. If cancelled, the connection is closed."""


class Dialer(Protocol):
    """Makes connections."""

    async def dial(self, address: str, deadline_s: float) -> Connection:
        """Connect, and exchange hellos; the other end uses the connection once it is confirmed.

        Raises:
            PeerRefusedError: Nobody is there.
            PeerSilentError: Somebody may be.
        """
