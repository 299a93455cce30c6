"""The ports of the commands: what they need from a cluster. `_connect` implements them with the client's public names.

Tests run the commands with a cluster in memory behind these ports. The process tests run them with a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from seriatim.cli._sources import Message

if TYPE_CHECKING:
    pass

OutcomeName = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class SendResult:
    """The outcome of a message.

    Attributes:
        outcome: `ok`, `failed` or `unknown`.
        partition: The partition's number in the topic.
        offset: The message's offset, as in `seriatim_api.ids`; None unless `ok`.
        error: A text for people; empty if `ok`.
    """

    outcome: OutcomeName
    partition: int
    offset: int | None
    error: str = ""


class ProducerPort(Protocol):
    """A producer of one topic."""

    name: str

    def partition_of(self, message: Message) -> int:
        """The partition of a message for which the user named none. Call it once for each message, before its send."""
        ...

    async def send(
        self, message: Message, partition: int, message_id: str | None, done: Callable[[SendResult], None]
    ) -> None:
        """Hand a message over, in order. The call returns when there was room for it.

        Args:
            message: Key and value.
            partition: The partition's number in the topic.
            message_id: An id for histories, which is sent in a header; None: no id.
            done: Called once with the outcome, in the event loop.
        """
        ...

    async def flush(self) -> None:
        """Wait until every message has its outcome, at most for the producer's delivery time-out."""
        ...
