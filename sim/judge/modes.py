"""Consumer groups of other modes: S1 to S3 of a shared one, O1 and O2 of an at-most-once one.

S1  a grant has one message
S2  what was confirmed is not granted again in the same group epoch
S3  tokens of a message grow; a message on which its consumer failed comes again
O1  no message is granted or given twice, in whatever group epoch, and none is flagged
O2  messages of a key are granted in their order; a consumer of an exclusive group gets all messages in their order
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import PartitionId, format_offset, split_offset
from seriatim_broker.core.values.keyed import KeyGrant
from seriatim_broker.testing.simulated_bodies import key_of

from .excuses import Excuse
from .keyed import Keyed
from .lost_tables import comes_anew
from .seen import Seen

SHARED = "shared"
"""The name of the shared group."""

ONCE = "once"
"""The name of the at-most-once group, in which order is by key."""


ONCE_EXCLUSIVE = "once-exclusive"
"""The name of the at-most-once group with one active consumer."""


@dataclass(slots=True)
class SharedView:
    """What the shared group saw on a partition."""

    tokens: dict[int, int] = field(default_factory=dict)  # message -> the newest token
    confirmed: set[int] = field(default_factory=set)
    confirmed_older: set[int] = field(default_factory=set)  # of them, those while an older copy was not rebuilt yet
    done: set[int] = field(default_factory=set)
    owed: set[int] = field(default_factory=set)  # failed under the newest token, and not granted since
    places: dict[int, int] = field(default_factory=dict)  # message -> the newest offset at which it was granted


@dataclass(slots=True)
class OnceView:
    """What the at-most-once group saw on a partition."""

    granted: dict[int, int] = field(default_factory=dict)  # message -> its token
    places: dict[int, int] = field(default_factory=dict)  # message -> the offset at which it was granted
    newest: dict[bytes, int] = field(default_factory=dict)  # key -> the newest offset


class Modes(Keyed):
    """Judges these two groups by their own rules, and the others by those of `Keyed`."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(seen)
        self._shared: dict[tuple[PartitionId, int], SharedView] = {}
        self._once: dict[PartitionId, OnceView] = {}
        self._given: dict[PartitionId, dict[int, int]] = {}  # to the exclusive one: message -> its offset
        self._newest_given: dict[tuple[PartitionId, str], int] = {}  # the newest offset by consumer

    def _shared_on(self, partition: PartitionId, group_epoch: int) -> SharedView:
        return self._shared.setdefault((partition, group_epoch), SharedView())

    def _once_on(self, partition: PartitionId) -> OnceView:
        return self._once.setdefault(partition, OnceView())

    def granted(
        self,
        who: str,
        group: str,
        partition: PartitionId,
        group_epoch: int,
        server_epoch: int,
        run: KeyGrant,
        messages: list[int],
    ) -> None:
        """A server puts a grant on a consumer's stream."""
        what = f"{who} grants {[format_offset(offset) for offset in run.offsets]} of {group} as {run.token:#x}"
        if group == SHARED:
            may_be_older = self._seen.may_believe_older(who, group, partition, group_epoch, server_epoch)
            view = self._shared_on(partition, group_epoch)
            for offset, message in zip(run.offsets, messages, strict=True):
                if self._comes_anew(partition, message, view.places.get(message, offset), offset):
                    view.confirmed.discard(message)
                view.places[message] = offset
            self._shared_granted(what, view, run, messages, may_be_older)
        elif group == ONCE:
            self._once_granted(what, partition, run, messages)
        else:
            super().granted(who, group, partition, group_epoch, server_epoch, run, messages)

    def _shared_granted(
        self, what: str, view: SharedView, run: KeyGrant, messages: list[int], may_be_older: bool
    ) -> None:
        if len(messages) != 1:
            self._seen.fail("S1", f"{what}, {len(messages)} messages")
        (message,) = messages
        is_flagged = run.maybe_repeated or run.attempt > 1
        may_come_again = (may_be_older and message in view.done) or message in view.confirmed_older
        if is_flagged and may_come_again:
            self._seen.excuse(Excuse.OLDER_CURSOR)
        elif message in view.confirmed:
            self._seen.fail("S2", f"{what}, and {message} was confirmed")
        if run.token <= view.tokens.get(message, 0) and may_be_older:
            self._seen.excuse(Excuse.OLDER_CURSOR)
        elif run.token <= view.tokens.get(message, 0):
            self._seen.fail("S3", f"{what}, and {message} had token {view.tokens[message]:#x}")
        if message in view.tokens:
            self._seen.states.add("granted again")
        view.tokens[message] = run.token
        view.owed.discard(message)

    def _once_granted(self, what: str, partition: PartitionId, run: KeyGrant, messages: list[int]) -> None:
        view = self._once_on(partition)
        for offset, message in zip(run.offsets, messages, strict=True):
            if message in view.granted and not self._may_repeat(partition, message, view.places[message], offset):
                self._seen.fail("O1", f"{what}, and {message} was granted as {view.granted[message]:#x}")
            if run.maybe_repeated or run.attempt > 1:
                self._seen.fail("O1", f"{what}, and says that it was granted before")
            view.granted[message], view.places[message] = run.token, offset
            key = key_of(message)
            key = b"without a key %d" % offset if key is None else key
            if offset < view.newest.get(key, 0):
                self._seen.fail("O2", f"{what}, and {format_offset(view.newest[key])} of the same key came before")
            view.newest[key] = offset
            self._seen.states.add("granted once")

    def _may_repeat(self, partition: PartitionId, message: int, known: int, offset: int) -> bool:
        """Whether no broker can know that an at-most-once group had the message, at another place."""
        return self._was_lost(partition, known) or self._comes_anew(partition, message, known, offset)

    def _comes_anew(self, partition: PartitionId, message: int, known: int, offset: int) -> bool:
        return known != offset and comes_anew(self._seen, partition, message, offset)

    def _was_lost(self, partition: PartitionId, offset: int) -> bool:
        """Whether the place of a message was declared lost. With it goes what shows that a resend is a repeat."""
        if (partition, split_offset(offset)[0]) not in self._seen.losses.declared:
            return False
        self._seen.excuse(Excuse.RESEND_OF_LOST)
        return True

    def given(self, who: str, partition: PartitionId, offset: int, message: int, *, flagged: bool) -> None:
        """The consumer of the exclusive at-most-once group is given a message."""
        given = self._given.setdefault(partition, {})
        what = f"{who} is given {message} at {format_offset(offset)}"
        if message in given and not self._may_repeat(partition, message, given[message], offset):
            self._seen.fail("O1", f"{what}, and was given it at {format_offset(given[message])}")
        if flagged:
            self._seen.fail("O1", f"{what}, flagged")
        # Two consumers may overlap: what is on its way to one counts as acknowledged, so the next one begins after it.
        newest = self._newest_given.get((partition, who), 0)
        if offset < newest:
            self._seen.fail("O2", f"{what}, and was given {format_offset(newest)} before")
        self._newest_given[partition, who] = offset
        given[message] = offset
        self._seen.states.add("given once")

    def acknowledged(
        self, group: str, partition: PartitionId, group_epoch: int, offset: int, message: int, token: int
    ) -> None:
        """The application is done with a message, under this token."""
        if group == SHARED:
            self._shared_on(partition, group_epoch).done.add(message)
        elif group != ONCE:
            super().acknowledged(group, partition, group_epoch, offset, message, token)

    def unfinished(
        self, group: str, partition: PartitionId, group_epoch: int, offset: int, message: int, term: int | None
    ) -> str:
        """Why the consumer group is not done with a message; these two groups are judged at the end."""
        if group in (SHARED, ONCE):
            return ""
        return super().unfinished(group, partition, group_epoch, offset, message, term)

    def is_due(self, group: str, partition: PartitionId, offset: int, message: int) -> bool:
        """Whether the consumer group must still get a message, unless it is gone."""
        return group not in (SHARED, ONCE) and super().is_due(group, partition, offset, message)

    def failed(self, group: str, partition: PartitionId, group_epoch: int, message: int, token: int) -> None:
        """The application failed on a message."""
        if group == SHARED:
            view = self._shared_on(partition, group_epoch)
            if view.tokens.get(message) == token:
                view.owed.add(message)
                self._seen.states.add("a message failed")
        elif group == ONCE:
            self._seen.states.add("a message was lost")
        else:
            super().failed(group, partition, group_epoch, message, token)

    def confirmed(self, group: str, partition: PartitionId, group_epoch: int, messages: list[int]) -> None:
        """A server confirms the acknowledgements of these messages."""
        if group == SHARED:
            view = self._shared_on(partition, group_epoch)
            view.confirmed.update(messages)
            if self._seen.waits_for_rebuild:
                view.confirmed_older.update(messages)
        elif group != ONCE:
            super().confirmed(group, partition, group_epoch, messages)

    def passed(self, group: str, partition: PartitionId, offset: int, message: int) -> None:
        """A server is done with a message, because its dead letter is stored."""
        super().passed(group, partition, offset, message)
        if group == SHARED:
            for (of, _), view in self._shared.items():
                if of == partition:
                    view.done.add(message)
                    view.owed.discard(message)

    def lacks(self, group: str, partition: PartitionId, order: list[tuple[int, int]]) -> list[int]:
        """The messages that the consumer group has not finished. An at-most-once group must come to the last one."""
        if group == SHARED:
            views = {epoch: view for (of, epoch), view in self._shared.items() if of == partition}
            done = {message for view in views.values() for message in view.done}
            owed = views[max(views)].owed if views else set()
            told = self._seen.view(group, partition)
            return [
                message
                for offset, message in order
                if message not in done or message in owed
                if not told.need_not_have(offset) and not self.parked.may_be_skipped(group, partition, offset)
            ]
        if group == ONCE:
            return []
        return super().lacks(group, partition, order)
