"""Gap reports: consumers are notified of all that retention dropped, or that was declared lost, here and nowhere else.

A consumer remembers what was reported to it since it was told that it joined. So it is sent only what is new.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from seriatim_api.ids import make_offset, split_offset
from seriatim_api.reported_gaps import Told
from seriatim_api.reported_gaps import tell as take

from ...state.broker import BrokerState
from ...state.consumers import KeyedServed, Served
from ...state.dispatcher import Consumer
from ...values.chain import Chain
from ...values.effects import Dropped, Gap
from ...values.kinds import TimerKind
from ...values.positions import Place, end_of_gone, position_of
from ...values.segment import SegmentState
from .consumer_group import tell

GONE_AT_ONCE_MAX: Final = 20_000
"""How many messages of lists that are gone are passed in one step: some milliseconds."""

LOOKED_BACK_MAX = 100
"""Maximum number of segments before the first message that are checked for gaps that the consumer must be notified
of."""


def tell_lost(broker: BrokerState, consumer: Consumer, place: Place) -> None:
    """Tell a subscription that all of a segment from a place on is lost, but for what was reported to it before.

    Rule `loss-told-once` (TOLD): a gap reaches to the end of its segment. Without it:
      1. 20 keys are parked, with a message each in segment 1, which is declared lost.
      2. The consumer is notified of 20 gaps, from each of these messages to the end of segment 1.
    """
    end = make_offset(place.segment_no + 1, 0)
    consumer.reported_gaps, parts = take(consumer.reported_gaps, Told(make_offset(*place), end))
    for part in parts:
        to_index = split_offset(part.end)[1]  # 0 at the end of the segment
        tell(broker, consumer, Gap(place.segment_no, split_offset(part.first)[1], "declared lost", to_index))


def tell_dropped(broker: BrokerState, consumer: Consumer, first: int, end: Place, messages: int) -> None:
    """Tell a subscription that retention dropped the messages from an offset to a place, but for what was reported to
    it.

    For an exclusive consumer this is also the step over these indexes, which it must not miss: it is notified of the
    whole gap, and its client leaves out what was reported to it before.

    Rule `drops-told-once` (TOLD): a drop and a loss, or a drop of a segment and one of a key's list, may have
    messages in common. Without it:
      1. Retention drops 2:0 to 2:17. A consumer of a key-ordered group is notified of 18 messages.
      2. 2:12 is in the list of k, and k is passed over it. The consumer is notified of 2:12 again, and counts it twice.
    """
    consumer.reported_gaps, parts = take(consumer.reported_gaps, Told(first, make_offset(*end), messages))
    if not consumer.mode.is_keyed:
        tell(broker, consumer, Dropped(first, *end, messages))
        return
    for part in parts:
        tell(broker, consumer, Dropped(part.first, *split_offset(part.end), part.messages))


class GoneBudget:
    """How many messages that are gone may still be passed in this step, and of how many gaps consumers may be notified.

    Attributes:
        messages: How many messages may still be passed.
        gaps: Of this many gaps a consumer may still be notified.
        dropped: What was passed because retention dropped it. Consumers are notified at the end of the step.

    Rule `gone-in-steps` (I13): no step passes more. Without it:
      1. A key with a million messages in its list is parked, and retention drops their segments.
      2. An administrator releases the key. The server passes all of them in one step, and answers no heartbeat for ten
         seconds.
    """

    __slots__ = ("_served", "dropped", "gaps", "messages")

    def __init__(self, served: Served) -> None:
        self.messages = GONE_AT_ONCE_MAX
        self.gaps = max(served.broker.config.keys_at_once // max(len(served.group.consumers), 1), 1)
        self.dropped: list[int] = []
        self._served = served

    @property
    def is_left(self) -> bool:
        """Whether more may be passed. If not, that continues in the next step."""
        if self.messages > 0 and self.gaps > 0:
            return True
        self._served.go_on_next_step(TimerKind.KEYS)
        return False

    def take(self, listed: Iterable[int], end: int, *, is_lost: bool) -> list[int]:
        """The first messages of a list that is gone up to `end`, as many as may be passed.

        After a hole, where the lists of other keys may have messages, only those are taken that are near: so all keys
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
          2. The consumers are notified of a gap from 1:29 to 1:34, and of another one from 1:18 to 1:33.

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
                tell_dropped(self._served.broker, consumer, gap.first, Place(*split_offset(gap.end)), gap.messages)


def tell_dropped_unread(served: Served, active: Consumer, to_index: int) -> None:
    """Tell the active consumer that retention dropped messages that it has not read, before it gets later ones.

    Rule `drops-in-silence` (I1, I2): readers are told what was dropped. This does not count as an acknowledgement. So
    if this server or the consumer dies before a later message is acknowledged, the next consumer is notified again.
    Without it:
      1. A consumer group has read up to 1:10. Retention drops the messages up to 1:100.
      2. Its consumer is given 1:100 next. It treats the hole as a violation of the order, and stops.
    """
    dispatcher = served.dispatcher
    no, index = served.segment.no, dispatcher.delivered
    tell_dropped(served.broker, active, make_offset(no, index), Place(no, to_index), to_index - index)
    dispatcher.pass_to(to_index)
    # Perhaps nothing is left in the segment, and a consumer that was active before was waited for.
    served.retry_in(served.broker.config.retry_us)


def tell_noted_drop(served: Served, consumer: Consumer, place: Place) -> None:
    """A consumer begins: notify it of a drop that is noted, up to a place (`drop-is-no-ack`).

    The note may begin with segments that were declared lost. It is notified of these as such.

    Rule `unknown-is-no-number` (I1, I13): if the position is not known, the consumer is sent no number. Without it:
      1. Retention drops 2:2, and the consumer is notified. It drops all of segment 1 too, and 1:37 was in a list.
      2. The next server does not know how many messages segment 1 had. It reports a drop from 1:37 on, of 1 message.
      3. The client was notified of 1 message there, 2:2. So it sends the application nothing of 1:37.
    """
    chain, ledger = served.chain, served.ledger
    offset, position = ledger.dropped_from, ledger.dropped_position
    end = make_offset(*place)
    while offset and end_of_gone(chain, offset)[1]:
        following = chain.from_no(split_offset(offset)[0] + 1)
        assert following is not None, "only a segment after which another one is open can be lost"
        offset, position = make_offset(following.no, 0), following.base or 0
    is_known = position > 0 or offset == make_offset(1, 0)
    count = position_of(chain, end) - position if is_known else 0
    if 0 < offset < end and (count > 0 or not is_known):
        tell_dropped(served.broker, consumer, offset, place, count)


def tell_new_gaps(served: Served, known: Chain | None) -> None:
    """A new chain record says that segments before the cursor are lost: notify those who get messages of each new
    gap."""
    active = served.dispatcher.active
    consumers = served.group.consumers if isinstance(served, KeyedServed) else [active] if active else []
    told = [place.segment_no for place in lost_since(known, served)] if consumers else []
    for place in lost_since(served.chain, served) if consumers else ():
        for consumer in consumers if place.segment_no not in told else ():
            tell_lost(served.broker, consumer, place)


def lost_before(chain: Chain | None, no: int, acked: int) -> list[int]:
    """The lost segments right before the first message of this segment. This server must report these gaps.

    If a message of this segment is acknowledged, they were reported.

    Empty segments between them and this segment do not end the search. If they did (I1):
      1. The server of an empty segment after a lost one has read the cursor, but not the record with the loss.
      2. There is nothing to acknowledge in its segment, so the consumer group crosses at once.
      3. The next server finds an empty segment before its own. So no server notifies the consumer group of the gap.
    """
    lost: list[int] = []
    if chain is None or acked:
        return lost
    for _ in range(LOOKED_BACK_MAX):
        segment = chain.before(no)
        if segment is None or not segment.is_settled or (segment.state is not SegmentState.LOST and segment.sealed_len):
            break
        no = segment.no
        if segment.state is SegmentState.LOST:
            lost.append(no)
    return lost[::-1]


def lost_since(chain: Chain | None, served: Served) -> list[Place]:
    """The lost segments before the first message of this segment, and those of which the ledger notes a loss."""
    lost = {no: Place(no, 0) for no in lost_before(chain, served.segment.no, served.ledger.acked)}
    noted = served.ledger.dropped_from
    if chain is None or not noted:
        return list(lost.values())
    begin = Place(*split_offset(noted))
    segment = chain.from_no(begin.segment_no)
    while segment is not None and segment.no < served.segment.no:
        if segment.state is SegmentState.LOST:
            lost.setdefault(segment.no, begin if segment.no == begin.segment_no else Place(segment.no, 0))
        segment = chain.from_no(segment.no + 1)
    return [lost[no] for no in sorted(lost)]
