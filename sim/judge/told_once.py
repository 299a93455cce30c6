"""TOLD: no offset is reported as gone twice, by a broker to one subscription, or by a client to its application.

A broker starts over when it says that a consumer has joined, because from then on it is another attachment.

To an exclusive consumer it may name the same offsets as lost, and as dropped. The news of a drop is also the step over
these indexes, without which the consumer would find a hole. The client takes out what it has reported.

A client reports an offset again only if the consumer group reads it again: after the place at which the consumer group
begins in a new group epoch. If an administrator moved it there, or if the application was not notified of each group
epoch, it may be sent all again, because the administrator may have asked for messages that were gone already.
"""

from __future__ import annotations

from seriatim_api.ids import PartitionId, format_offset, make_offset
from seriatim_broker.core.values.effects import DeliveryEvent, Dropped, Gap, Joined

from .seen import Seen

_Ranges = list[tuple[int, int]]
_CAUSES = (Gap, Dropped)


class ToldOnce:
    """Remembers what was told to each subscription, and to each application."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._exclusive: set[tuple[int, int]] = set()  # subscriptions of exclusive consumers
        self._sent: dict[tuple[int, int], dict[type, _Ranges]] = {}  # by subscription
        self._told: dict[tuple[str, PartitionId], _Ranges] = {}  # by the consumer's name
        self._epochs: dict[tuple[str, PartitionId], int] = {}  # the newest group epoch of which it was notified

    def sent(self, who: str, stream: int, subscription: int, event: DeliveryEvent) -> None:
        """A broker puts something on a consumer's stream."""
        key = (stream, subscription)
        if isinstance(event, Joined):
            self._sent[key] = {}
            if event.mode.is_keyed:
                self._exclusive.discard(key)
            else:
                self._exclusive.add(key)
        if not isinstance(event, _CAUSES):
            return
        if isinstance(event, Gap):
            first = make_offset(event.segment_no, event.from_index)
            end = (
                make_offset(event.segment_no, event.to_index)
                if event.to_index
                else make_offset(event.segment_no + 1, 0)
            )
        else:
            first, end = event.from_offset, make_offset(event.segment_no, event.to_index)
        kind = type(event) if key in self._exclusive else object
        known = self._sent.setdefault(key, {}).setdefault(kind, [])
        self._check(f"{who} reports subscription {subscription} of stream {stream}", known, first, end)

    def begins(self, consumer: str, partition: PartitionId) -> None:
        """A consumer begins. It was notified of nothing."""
        self._told[consumer, partition] = []
        self._epochs[consumer, partition] = 0

    def moved(self, consumer: str, partition: PartitionId, what: str, group_epoch: int, offset: int) -> None:
        """An application is told that its consumer group begins at an offset in a new group epoch."""
        key = (consumer, partition)
        known = self._told.get(key, [])
        is_kept = what == "moved" and group_epoch == self._epochs.get(key, 0) + 1
        self._told[key] = [(first, min(end, offset)) for first, end in known if first < offset] if is_kept else []
        self._epochs[key] = group_epoch

    def joined(self, consumer: str, partition: PartitionId, group_epoch: int) -> None:
        """A consumer has joined in a group epoch."""
        key = (consumer, partition)
        self._epochs[key] = max(self._epochs.get(key, 0), group_epoch)

    def told(self, consumer: str, partition: PartitionId, first: int, end: int) -> None:
        """An application is told that the messages between two offsets are gone."""
        known = self._told.setdefault((consumer, partition), [])
        self._check(f"the application of {consumer} is notified", known, first, end)

    def _check(self, what: str, known: _Ranges, first: int, end: int) -> None:
        told = [(max(first, begin), min(end, below)) for begin, below in known if begin < end and first < below]
        if told:
            again = f"{format_offset(told[0][0])} to {format_offset(told[0][1])}"
            self._seen.fail(
                "TOLD",
                f"{what} that {format_offset(first)} to {format_offset(end)} is gone, and was notified of {again}",
            )
        known.append((first, end))
