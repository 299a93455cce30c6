"""ONCE, DONE: what an administrator does to a consumer group is carried out once, and the administrator is notified
only if it was.

I11: to rewind or skip a consumer group, or to change its mode, takes the next group epoch. A pause, or a change of
other settings, changes no place.
VOID, PAUSE: a broker delivers nothing in an epoch that a rewind or a skip has ended, and nothing in a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from seriatim_api.ids import PartitionId, make_offset
from seriatim_broker.core.values.effects import Batches, DeliveryEvent, Joined
from seriatim_broker.core.values.events import ConsumerGroupOperation, CursorRecord

from .excuses import Excuse
from .seen import Seen
from .views import ConsumerGroupView


class Operations:
    """Remembers which operations were carried out, and which consumer groups are paused."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._carried_out: set[bytes] = set()  # ids of operations
        self._carried_out_before: set[bytes] = set()  # before an older copy of the coordinator came back
        self._forgotten: set[tuple[str, PartitionId]] = set()  # groups one of whose moves the coordinator lost for good
        self._paused: set[tuple[str, PartitionId]] = set()  # groups, as their cursors say
        self._subscribed: dict[tuple[int, int], tuple[str, PartitionId]] = {}  # of (stream, subscription)
        self._granted: dict[tuple[int, int], int] = {}  # (stream, subscription) -> group epoch of its grant

    def written(self, who: str, partition: PartitionId, group: str, old: CursorRecord, new: CursorRecord) -> None:
        """ONCE, I11: an operation is carried out once; a move raises the group epoch, and a pause changes no place."""
        seen, what = self._seen, f"{who} writes {new} over {old}"
        if not new.requests or old.requests[-len(new.requests) + 1 :] != new.requests[:-1]:
            seen.fail("ONCE", f"{what}, and forgets what was done")
        id_ = new.requests[-1]
        if id_ in self._carried_out and not self._is_forgotten(who, partition, group, old, id_):
            seen.fail("ONCE", f"{what}, and that was done before")
        self._carried_out.add(id_)
        place, before = (new.segment_no, new.start_index), (old.segment_no, old.start_index)
        if new.paused != old.paused:
            if (place, new.group_epoch) != (before, old.group_epoch):
                seen.fail("I11", f"{what}: a pause or its end moves nothing")
            seen.states.add("group paused" if new.paused else "group resumed")
            change = self._paused.add if new.paused else self._paused.discard
            change((group, partition))
            return
        kept = replace(old, retry=new.retry, at_most_once=new.at_most_once, is_spread=new.is_spread)
        if new == replace(kept, requests=new.requests):
            seen.states.add("settings changed")
            return
        if new.group_epoch != old.group_epoch + 1:
            seen.fail("I11", f"{what}: to be moved takes the next epoch")
        if new.mode is not old.mode:  # what was given and done before still counts
            seen.states.add("mode changed")
            if new.segment_no != old.segment_no or new.start_index < old.start_index:
                seen.fail("I11", f"{what}: another mode continues where the group is")
            return
        segment = seen.history[partition][-1].segment(new.segment_no)
        if segment is None or (segment.sealed_len is not None and new.start_index > segment.sealed_len):
            seen.fail("I8", f"{what}: there is no such place")
        seen.states.add("group rewound" if new.begun_by is ConsumerGroupOperation.REWIND else "group skipped")
        seen.past_views.setdefault((group, partition), []).append(seen.view(group, partition))
        seen.groups[group, partition] = ConsumerGroupView(new.group_epoch, make_offset(*place))

    def _is_forgotten(self, who: str, partition: PartitionId, group: str, old: CursorRecord, id_: bytes) -> bool:
        """Whether an older copy of the coordinator lacks an operation, and this server cannot know of it."""
        segment = self._seen.history[partition][-1].segment(old.segment_no)
        if segment is None or id_ not in self._carried_out_before or id_ in old.requests:
            return False
        may_be_older = self._seen.may_believe_older(who, group, partition, old.group_epoch, segment.server_epoch)
        if not may_be_older and (group, partition) not in self._forgotten:
            return False
        self._seen.excuse(Excuse.OLDER_CURSOR)
        return True

    def went_back(
        self,
        paused: Iterable[tuple[PartitionId, str]],
        cursor_of: Callable[[PartitionId, str], CursorRecord | None],
    ) -> None:
        """An older copy of the coordinator is back. Only its cursors say which consumer groups are paused."""
        seen = self._seen
        seen.forgotten_cursors = {
            (group, partition)
            for group, partition in seen.cursors
            if group not in seen.cursorless and cursor_of(partition, group) is None
        }
        self._paused = {(group, partition) for partition, group in paused}
        self._carried_out_before |= self._carried_out
        self._seen.note_disks()

    def rebuilt(self, cursor_of: Callable[[PartitionId, str], CursorRecord | None]) -> None:
        """The coordinator is rebuilt. A move in the lost time is forgotten, if no server had begun its group epoch."""
        seen = self._seen
        seen.waits_for_rebuild = False
        seen.forgotten_cursors.clear()
        for group, partition in list(seen.cursors):
            is_known = group in seen.cursorless or cursor_of(partition, group) is not None
            if not is_known and not seen.place_on_disks(partition, group)[0]:
                # the group had acknowledged nothing there, so it starts over
                del seen.cursors[group, partition]
                seen.untold_from.pop((group, partition), None)
                seen.states.add("cursor forgotten")
        for (group, partition), view in list(seen.groups.items()):
            record = cursor_of(partition, group)
            epoch = record.group_epoch if record is not None else 1
            if view.group_epoch <= max(epoch, seen.place_on_disks(partition, group)[0]) or (record and record.deleted):
                continue
            past = seen.past_views.get((group, partition), [])
            back = next((known for known in reversed(past) if max(known.group_epoch, 1) == epoch), None)
            if back is not None:
                past.remove(back)
                past.append(view)
                seen.groups[group, partition] = back
                self._forgotten.add((group, partition))
                seen.states.add("move forgotten")
                seen.excuse(Excuse.OLDER_CURSOR)

    def done(self, group: str, operation: ConsumerGroupOperation, id_: bytes, *, was_done: bool) -> None:
        """DONE: if an administrator is told that an operation is done, it was carried out, or there was nothing to
        do."""
        if id_ not in self._carried_out and not (was_done and not operation.moves):
            what = f"an administrator is told that {group} is done with {operation.name}"
            self._seen.fail("DONE", f"{what}, and nothing was written")

    def subscribed(self, stream: int, subscription: int, group: str, partition: PartitionId) -> None:
        """A consumer of a group subscribes on a stream."""
        self._subscribed[stream, subscription] = (group, partition)

    def grant_of(self, stream: int, subscription: int) -> tuple[str, PartitionId, int] | None:
        """The consumer group, the partition and the group epoch of a subscription, if it was joined."""
        key = (stream, subscription)
        if key not in self._subscribed or key not in self._granted:
            return None
        return (*self._subscribed[key], self._granted[key])

    def told(self, who: str, stream: int, subscription: int, event: DeliveryEvent) -> None:
        """VOID, PAUSE, for what a broker puts on a stream."""
        key = (stream, subscription)
        if isinstance(event, Joined):
            self._granted[key] = event.group_epoch
        if not isinstance(event, Batches) or key not in self._subscribed:
            return
        group, partition = self._subscribed[key]
        begun = self._seen.view(group, partition).group_epoch
        epoch = self._granted[key]
        may_be_older = self._seen.may_believe_older(who, group, partition, epoch, event.server_epoch)
        if epoch < begun and may_be_older:
            self._seen.excuse(Excuse.OLDER_CURSOR)
        elif epoch < begun:
            what = f"{who} delivers to {group} in epoch {self._granted[key]}"
            self._seen.fail("VOID", f"{what}, and was moved in epoch {begun}")
        if (group, partition) in self._paused:
            self._seen.fail("PAUSE", f"{who} delivers to {group}, which is paused")
