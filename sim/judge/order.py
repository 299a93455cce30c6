"""I2: all consumer groups get the messages in one order, the commit order, and so does each replay.

The order is computed from the chain and from all batches that were ever written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from seriatim_api.batch import FLAG_CONTROL, FLAG_DELAYED, FLAG_FIRED
from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import SegmentState

from .excuses import Excuse
from .lost_tables import lost_below
from .seen import Seen
from .views import ConsumerGroupView, messages_of


class Order:
    """Computes the one order, and compares the deliveries of each consumer group with it."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._replay_lengths: dict[PartitionId, tuple[tuple[int, int], int]] = {}

    def replay(self, chain: Chain, open_length: int, *, with_lost_repeats: bool = False) -> list[tuple[int, int]]:
        """Every message once, in the one order: (offset, message), computed from the chain and the writes.

        Args:
            with_lost_repeats: With messages whose first place is lost. Consumers are told to skip the other place, if
                its server has a table from before the loss, and else they are given it there.
        """
        lost = () if with_lost_repeats else self._seen.lost_repeats.get(chain.partition, ())
        return [place for place, is_delayed in self._first_places(chain, open_length, lost) if not is_delayed]

    def delayed(self, chain: Chain, open_length: int) -> list[tuple[int, int]]:
        """Each (offset, message) where a message is first, and where readers pass it, because it is delayed."""
        return [place for place, is_delayed in self._first_places(chain, open_length, ()) if is_delayed]

    def _first_places(
        self, chain: Chain, open_length: int, done: Collection[int]
    ) -> Iterator[tuple[tuple[int, int], bool]]:
        """The first place of each message, and whether it is delayed there. What is fired is another batch: its own
        producer and epoch say whether it is a repeat, or was fenced in a segment before."""
        seen: set[object] = set(done)
        fenced: dict[bytes, int] = {}
        for segment in (*self._seen.left.get(chain.partition, ()), *chain.segments):
            length = open_length if segment.state is SegmentState.OPEN else segment.sealed_len
            if segment.state is SegmentState.LOST:
                continue
            assert length is not None, f"segment {segment.no} is not settled"
            epochs = dict(fenced)
            for batch in self._seen.batches(chain.partition, segment.no, length):
                header = batch.header
                if header.flags & (FLAG_FIRED | FLAG_CONTROL):
                    epochs[header.producer] = max(header.producer_epoch, epochs.get(header.producer, 0))
                if header.flags & FLAG_FIRED and header.producer_epoch < fenced.get(header.producer, 0):
                    continue
                fired = (header.producer, header.producer_epoch) if header.flags & FLAG_FIRED else ()
                for place, message in enumerate(messages_of(batch)):
                    name = (*fired, message) if fired else message
                    if name not in seen:
                        seen.add(name)
                        offset = make_offset(segment.no, header.base_index + place)
                        yield (offset, message), bool(header.flags & FLAG_DELAYED)
            fenced = epochs

    def _replay_length(self, chain: Chain, open_length: int) -> int:
        """How many messages `replay` would give; remembered, because callers ask often while nothing changes."""
        key = (chain.epoch, open_length)
        known = self._replay_lengths.get(chain.partition)
        if known is None or known[0] != key:
            known = self._replay_lengths[chain.partition] = (key, len(self.replay(chain, open_length)))
        return known[1]

    def wanted(self, group: str, chain: Chain, open_length: int) -> int:
        """How many messages the consumer group must get, from the place at which it began or was last moved to."""
        view = self._seen.view(group, chain.partition)
        repeats = self._seen.lost_repeats.get(chain.partition, ())
        if not view.start and not view.dropped and not repeats:
            return self._replay_length(chain, open_length)
        return len(self._due(view, chain, self.replay(chain, open_length, with_lost_repeats=True), repeats))

    def _due(
        self, view: ConsumerGroupView, chain: Chain, order: list[tuple[int, int]], repeats: Collection[int]
    ) -> list[tuple[int, int]]:
        """The part of the replay that a consumer group must get: all after its beginning, unless dropped unread.

        Of the repeats of what is lost, it is what the group got. Of what retention dropped before the tables were lost
        that report a repeat, too.
        """
        end = make_offset(lost_below(self._seen, chain) + 1, 0)
        given = {message: offset for offset, message in view.firsts if offset >= end}
        gone = {message for offset, message in order if offset < end and view.need_not_have(offset)}
        anew = gone.intersection(given)
        if anew:
            self._seen.excuse(Excuse.TABLES_LOST)
            order = sorted((given[message] if message in anew else offset, message) for offset, message in order)
        due = [pair for pair in order if pair[0] >= view.start and (pair[1] not in repeats or pair[1] in view.seen)]
        return (
            [pair for pair in due if pair[1] in view.seen or not view.need_not_have(pair[0])] if view.dropped else due
        )

    def final(self, chain: Chain, open_length: int, groups: list[str]) -> None:
        """Each consumer group was given what is due, in the one order."""
        partition = chain.partition
        order = self.replay(chain, open_length, with_lost_repeats=True)
        repeats = self._seen.lost_repeats.get(partition, ())
        for group in groups:
            last = self._seen.view(group, partition)
            for view in (*self._seen.past_views.get((group, partition), ()), last):
                wanted = self._due(view, chain, order, repeats)
                firsts = view.firsts
                if view is not last:  # it was moved on from there
                    wanted = wanted[: len(firsts)]
                if firsts != wanted:
                    at = next((i for i, it in enumerate(wanted) if i >= len(firsts) or firsts[i] != it), len(wanted))
                    pairs = f"{firsts[at : at + 3]}, {wanted[at : at + 3]}"
                    self._seen.fail(
                        "I2", f"{group} differs from the replay at {at} in epoch {view.group_epoch}: {pairs}"
                    )

    def check_producers(self, order: list[tuple[int, int]]) -> None:
        """Ids of one producer's messages grow in the order of sending."""
        last: dict[bytes, int] = {}
        for _, message in order:
            producer = self._seen.fates[message].producer
            if last.get(producer, -1) > message:
                self._seen.fail("I2", f"{message} stands after {last[producer]} of the same producer")
            last[producer] = message

    def final_of_gone(self) -> None:
        """Of a deleted topic, consumer groups got the messages in the order of sending, and no failed one (I10)."""
        for (group, partition), view in self._seen.groups.items():
            if partition not in self._seen.gone:
                continue
            self.check_producers(view.firsts)
            for _, message in view.firsts:
                if self._seen.fates[message].outcome == "failed":
                    self._seen.fail("I10", f"{message} failed with its topic, and {group} was given it")
