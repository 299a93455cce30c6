"""The streams of consumers that are connected to a broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import PartitionId

from ..values.states import State


@dataclass(slots=True, eq=False)
class ConsumerStreams(State):
    """What a broker knows of the streams on which consumers are connected to it."""

    credits: dict[int, int] = field(default_factory=dict)  # stream -> bytes that may still be delivered
    # stream -> (last heartbeat, silent after it), microseconds
    heard: dict[int, tuple[int, int]] = field(default_factory=dict)
    # stream -> subscription -> partition
    subscriptions: dict[int, dict[int, PartitionId]] = field(default_factory=dict)
    tokens: int = 0  # how many this member run gave to consumers of groups in which order is by key
    activations: int = 0  # how often this member run made a consumer of another group the active one

    def is_silent(self, stream: int, now_us: int) -> bool:
        """Whether the consumer sent no heartbeat on its stream for twice its session time.

        Its first join counts as a heartbeat with the longest session.
        """
        heard_us, silent_after_us = self.heard.get(stream, (now_us, 1))
        return now_us >= heard_us + silent_after_us
