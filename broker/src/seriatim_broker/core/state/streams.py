"""The streams of consumers that are connected to a broker."""

from __future__ import annotations

from seriatim_api.ids import PartitionId

from ..values.states import State


class ConsumerStreams(State):
    """What a broker knows of the streams on which consumers are connected to it."""

    __slots__ = ("credits", "heard", "subscriptions", "tokens")

    def __init__(self) -> None:
        self.credits: dict[int, int] = {}  # stream -> bytes that may still be delivered
        self.heard: dict[int, tuple[int, int]] = {}  # stream -> (last heartbeat, silent after it), microseconds
        self.subscriptions: dict[int, dict[int, PartitionId]] = {}  # stream -> subscription -> partition
        self.tokens = 0  # how many this member run gave to consumers

    def is_silent(self, stream: int, now_us: int) -> bool:
        """Whether the consumer sent no heartbeat on its stream for twice its session time.

        A consumer that never sends heartbeats is never silent.
        """
        heard_us, silent_after_us = self.heard.get(stream, (now_us, 1))
        return now_us >= heard_us + silent_after_us
