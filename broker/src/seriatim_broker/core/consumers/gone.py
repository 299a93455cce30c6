"""What is gone: consumers are told of all that retention dropped, or that was declared lost, here and nowhere else.

A consumer remembers what it was told since it was told that it joined. So it is told only what is new.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from seriatim_api.ids import make_offset, split_offset
from seriatim_api.reported_gaps import Told
from seriatim_api.reported_gaps import tell as take

from ..state.broker import BrokerState
from ..state.consumers import ConsumerGroup
from ..state.dispatcher import Consumer
from ..state.partition import Partition
from ..values.effects import Dropped, Gap
from ..values.kinds import TimerKind
from ..values.positions import Place
from .consumer_group import tell

GONE_AT_ONCE_MAX: Final = 20_000
"""So many messages of lists that are gone are passed in one step: some milliseconds."""


def tell_lost(broker: BrokerState, consumer: Consumer, place: Place) -> None:
    """Tell a subscription that all of a segment from a place on is lost, but for what it was told before.

    Rule `loss-told-once` (TOLD): a gap reaches to the end of its segment. Without it:
      1. 20 keys are parked, with a message each in segment 1, which is declared lost.
      2. The consumer is told of 20 gaps, from each of these messages to the end of segment 1.
    """
    end = make_offset(place.segment_no + 1, 0)
    consumer.told, parts = take(consumer.told, Told(make_offset(*place), end))
    for part in parts:
        to_index = split_offset(part.end)[1]  # 0 at the end of the segment
        tell(broker, consumer, Gap(place.segment_no, split_offset(part.first)[1], "declared lost", to_index))


def tell_dropped(broker: BrokerState, consumer: Consumer, first: int, end: Place, messages: int) -> None:
    """Tell a subscription that retention dropped the messages from an offset to a place, but for what it was told.

    For an exclusive consumer this is also the step over these indexes, which it must not miss: it is told of the whole
    gap, and its client leaves out what it was told before.

    Rule `drops-told-once` (TOLD): a drop and a loss, or a drop of a segment and one of a key's list, may have messages
    in common. Without it:
      1. Retention drops 2:0 to 2:17. A consumer of a key-ordered group is told of 18 messages.
      2. 2:12 is in the list of k, and k is passed over it. The consumer is told of 2:12 again, and counts it twice.
    """
    consumer.told, parts = take(consumer.told, Told(first, make_offset(*end), messages))
    if not consumer.mode.is_keyed:
        tell(broker, consumer, Dropped(first, *end, messages))
        return
    for part in parts:
        tell(broker, consumer, Dropped(part.first, *split_offset(part.end), part.messages))


class GoneBudget:
    """How many messages that are gone may still be passed in this step, and of how many gaps consumers may be told.

    Attributes:
        messages: So many messages may still be passed.
        gaps: Of so many gaps a consumer may still be told.
        dropped: What was passed because retention dropped it. Consumers are told at the end of the step.

    Rule `gone-in-steps` (I13): no step passes more. Without it:
      1. A key with a million messages in its list is parked, and retention drops their segments.
      2. A person releases the key. The server passes all of them in one step, and answers no heartbeat for ten seconds.
    """

    __slots__ = ("_broker", "_name", "_partition_id", "dropped", "gaps", "messages")

    def __init__(self, broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
        self.messages = GONE_AT_ONCE_MAX
        self.gaps = max(broker.config.keys_at_once // max(len(consumer_group.consumers), 1), 1)
        self.dropped: list[int] = []
        self._broker = broker
        self._partition_id = partition.id
        self._name = consumer_group.name

    @property
    def is_left(self) -> bool:
        """Whether more may be passed. If not, that goes on in the next step."""
        if self.messages > 0 and self.gaps > 0:
            return True
        self._broker.go_on_next_step(TimerKind.KEYS, self._partition_id, self._name)
        return False

    def take(self, listed: Iterable[int], end: int, *, is_lost: bool) -> list[int]:
        """The first messages of a list that is gone up to `end`, as many as may be passed.

        Behind a hole, where the lists of other keys may have messages, only those are taken that are near: so all keys
        come to their messages there in this step, and most holes are closed (`tell_dropped`). A loss has no holes.
        """
        found: list[int] = []
        near = end
        for offset in islice(listed, self.messages):
            if offset >= end or (offset >= near and offset != found[-1] + 1):
                break
            if not found and not is_lost:
                near = offset + self.gaps
            if not found or (offset != found[-1] + 1 and not is_lost):
                self.gaps -= 1
            found.append(offset)
        self.messages -= len(found)
        if not is_lost:
            self.dropped += found
        return found

    def tell_dropped(self, consumers: Iterable[Consumer], left: int) -> None:
        """Tell consumers what lists have lost to retention in this step.

        Each gap has only what no list has any more. Without it:
          1. 1:29 and 1:34 are in the list of j, and 1:18 to 1:33 in that of k. Retention drops all of them.
          2. The consumers are told of a gap from 1:29 to 1:34, and of another one from 1:18 to 1:33.

        Args:
            consumers: The consumers of the group.
            left: The oldest offset in a list now; 0: all lists are empty.
        """
        told: list[Told] = []
        for offset in sorted(self.dropped):
            first, end, messages = told[-1] if told else Told(offset, offset)
            is_near = end == offset or not left or offset < left
            if is_near and split_offset(first)[0] == split_offset(offset)[0]:
                told[-1:] = [Told(first, offset + 1, messages + 1)]
            else:
                told.append(Told(offset, offset + 1, 1))
        for consumer in consumers:
            for gap in told:
                tell_dropped(self._broker, consumer, gap.first, Place(*split_offset(gap.end)), gap.messages)
