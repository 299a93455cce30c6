"""Consumer groups in which order is by key: K1 to K4.

K1  a message is granted for the first time only if all earlier ones of its key that were granted are acknowledged
K2  what was confirmed is not granted again in the same group epoch
K3  tokens of a key grow; a message on which its consumer failed comes again
K4  what was granted comes again only with the flag, unless its attempt says so, or its consumer failed on a message
    before it
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import PartitionId, format_offset
from seriatim_broker.core.values.keyed import KeyGrant
from seriatim_broker.testing.simulated_bodies import key_of

from .parked import Parked
from .seen import Seen


@dataclass(slots=True)
class KeyView:
    """What was granted of one key in one group epoch: offsets in the order in which they were granted first."""

    firsts: list[int] = field(default_factory=list)
    open: dict[int, None] = field(default_factory=dict)  # granted, and not acknowledged by the application
    token: int = 0


@dataclass(slots=True)
class KeyedView:
    """What a consumer group saw in one group epoch."""

    keys: dict[bytes, KeyView] = field(default_factory=dict)
    granted: dict[int, tuple[int, int]] = field(default_factory=dict)  # message -> (server epoch, token) of the newest
    acked: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    owed: set[int] = field(default_factory=set)  # failed under the newest token, and not granted since
    failed: set[int] = field(default_factory=set)  # tokens under which the application failed on a message


class Keyed:
    """Compares each grant with all before it."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._views: dict[tuple[str, PartitionId, int], KeyedView] = {}
        self._done: dict[tuple[str, PartitionId], set[int]] = {}
        self.parked = Parked(seen)

    def view(self, group: str, partition: PartitionId, group_epoch: int) -> KeyedView:
        """What the consumer group saw in that group epoch."""
        return self._views.setdefault((group, partition, group_epoch), KeyedView())

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
        view = self.view(group, partition, group_epoch)
        what = f"{who} grants {[format_offset(offset) for offset in run.offsets]} of {group} as {run.token:#x}"
        keys = {key_of(message) for message in messages}
        if len(keys) != 1:
            self._seen.fail("K1", f"{what}, messages of {len(keys)} keys")
        name = keys.pop() or b"without a key %d" % run.offsets[0]
        key = view.keys.setdefault(name, KeyView())
        if run.token <= key.token:
            self._seen.fail("K3", f"{what}, and the key had token {key.token:#x}")
        key.token = run.token
        if list(run.offsets) != sorted(run.offsets):
            self._seen.fail("K1", f"{what}, not in their order")
        self.parked.granted(what, group, partition, group_epoch, run)
        before = [
            offset
            for offset in key.open
            if offset < run.offsets[0] and not self.parked.may_be_skipped(group, partition, offset)
        ]
        if before:
            self._seen.fail("K1", f"{what}, and {format_offset(before[0])} of the same key is not acknowledged")
        for place, (offset, message) in enumerate(zip(run.offsets, messages, strict=True)):
            if message in view.confirmed:
                self._seen.fail("K2", f"{what}, and {message} at {format_offset(offset)} was confirmed")
            known = view.granted.get(message)
            if known is None:
                if key.firsts and offset < key.firsts[-1]:
                    self._seen.fail("K1", f"{what}, and {format_offset(key.firsts[-1])} was granted before")
                key.firsts.append(offset)
            else:
                self._seen.states.add("granted again")
                is_flagged = run.maybe_repeated or (place == 0 and run.attempt > 1)
                if known[0] != server_epoch and not is_flagged:
                    self._seen.fail("K4", f"{what}, and {message} was granted in server epoch {known[0]}")
                elif known[1] not in view.failed and not is_flagged:
                    self._seen.fail("K4", f"{what}, and {message} was granted as {known[1]:#x}")
            view.granted[message] = (server_epoch, run.token)
            view.owed.discard(message)
            key.open[offset] = None

    def acknowledged(self, group: str, partition: PartitionId, group_epoch: int, offset: int, message: int) -> None:
        """The application is done with a message."""
        view = self.view(group, partition, group_epoch)
        view.acked.add(message)
        key = view.keys.get(key_of(message) or b"without a key %d" % offset)
        if key is not None:
            key.open.pop(offset, None)
        self._done.setdefault((group, partition), set()).add(message)

    def passed(self, group: str, partition: PartitionId, offset: int, message: int) -> None:
        """A server is done with a message, because its dead letter is stored."""
        for (of, on, _), view in self._views.items():
            if (of, on) == (group, partition):
                view.owed.discard(message)
                for key in view.keys.values():
                    key.open.pop(offset, None)
        self._done.setdefault((group, partition), set()).add(message)

    def failed(self, group: str, partition: PartitionId, group_epoch: int, message: int, token: int) -> None:
        """The application failed on a message."""
        view = self.view(group, partition, group_epoch)
        view.failed.add(token)
        if view.granted.get(message, (0, 0))[1] == token:
            view.owed.add(message)
            self._seen.states.add("a message failed")

    def confirmed(self, group: str, partition: PartitionId, group_epoch: int, messages: list[int]) -> None:
        """A server confirms the acknowledgements of these messages."""
        self.view(group, partition, group_epoch).confirmed.update(messages)

    def lacks(self, group: str, partition: PartitionId, order: list[tuple[int, int]]) -> list[int]:
        """The messages that the consumer group has not finished."""
        done = self._done.get((group, partition), set())
        epochs = [epoch for of, on, epoch in self._views if (of, on) == (group, partition)]
        owed = self.view(group, partition, max(epochs, default=0)).owed
        return [
            message
            for offset, message in order
            if (message not in done or message in owed) and not self.parked.may_be_skipped(group, partition, offset)
        ]
