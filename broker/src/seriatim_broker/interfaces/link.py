"""The network between brokers, as the runtime needs it.

A `Connection` is both lanes (control and replication) to a process. That process has shown by its hello that it belongs
to the same cluster. `runtime.driver.links` decides which of several connections to a broker is used, and when to
make a new one. The implementation decides the format of frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from seriatim_api.ids import MemberId

from ..core.values.messages import FORMS, Message


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The process at one end of a connection: a member run, in a cluster.

    `forms`: the forms of messages that it reads, as in `core.values.messages.FORMS`.
    """

    cluster_id: str
    member: MemberId
    member_run: int
    forms: int = FORMS


class PeerRefusedError(Exception):
    """No process listens at the address, or one ends the connection before its hello. The broker is probably down."""


class PeerSilentError(Exception):
    """No hello came in time, or one that does not fit. This says nothing about the broker's process."""


class Connection(Protocol):
    """Both lanes to one process. Messages of a lane arrive in the order in which they were sent."""

    peer: PeerIdentity
    dialed: bool

    def send(self, message: Message) -> None:
        """Send a message. Those that are sent in one turn of the event loop leave together, or the first of them alone.

        If this exceeds the limit of queued bytes, the connection is closed instead. The next connection then sends
        from the disk what is missing.
        """

    def close(self, reason: str) -> None:
        """Break both lanes now. Nothing more is received, and queued messages are lost."""

    async def confirm(self) -> None:
        """Tell the other end that the connection is used from now on. Only the end that dialed calls this.

        Raises:
            PeerSilentError: The connection has ended in the meantime.
        """

    async def abandon(self, reason: str) -> None:
        """Close a connection for which `run` was not called, and give back what it took."""

    async def run(self, receive: Callable[[Message], None]) -> str:
        """Give each received message to `receive` until a lane ends. Call it once.

        If it is cancelled, the connection is closed.

        Returns:
            Why the connection ended.
        """


class Dialer(Protocol):
    """Makes connections."""

    async def dial(self, address: str, deadline_s: float) -> Connection:
        """Connect, and exchange hellos. The other end uses the connection when `confirm` has been called.

        Args:
            address: `host:port`.
            deadline_s: Seconds for all of it.

        Raises:
            PeerRefusedError: No process serves at this address.
            PeerSilentError: A process may be there, but gave no fitting hello in time.
        """
