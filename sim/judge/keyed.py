"""Consumer groups in which order is by key: K1 to K6.

K1  a message is granted for the first time only if all earlier ones of its key that were granted are acknowledged
K2  what was confirmed is not granted again in the same group epoch
K3  tokens of a key grow, in all group epochs; a message on which its consumer failed comes again
K4  what was granted comes again only with the flag, unless its attempt says so, or its consumer failed on a message
    before it, or has said that its application got none of the grant
K5  an attempt on a message counts only if an application has begun to work on it
K6  what is granted at once has at most the bytes of one delivery, or is one message
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import PartitionId, format_offset, split_offset
from seriatim_api.key_names import name_of_key, name_of_offset
from seriatim_broker.core.values.keyed import KeyGrant
from seriatim_broker.core.values.tokens import term_of
from seriatim_broker.testing.simulated_bodies import key_of

from .excuses import Excuse
from .lost_tables import comes_anew
from .parked import Parked
from .seen import Seen


@dataclass(slots=True)
class KeyView:
    """What was granted of one key in one group epoch: offsets in the order in which they were granted first."""

    firsts: list[int] = field(default_factory=list)
    open: dict[int, None] = field(default_factory=dict)  # granted, and not acknowledged by the application
    counted: tuple[int, int] = (0, 0)  # (offset, failed attempts) that all eligible members know; offset 0: any


@dataclass(slots=True)
class KeyedView:
    """What a consumer group saw in one group epoch."""

    keys: dict[bytes, KeyView] = field(default_factory=dict)
    granted: dict[int, tuple[int, int]] = field(default_factory=dict)  # message -> (server epoch, token) of the newest
    places: set[int] = field(default_factory=set)  # offsets that were granted
    tokens: dict[int, list[int]] = field(default_factory=dict)  # message -> all its tokens
    acked: dict[int, set[int]] = field(default_factory=dict)  # message -> tokens under which it was acknowledged
    confirmed: set[int] = field(default_factory=set)
    confirmed_older: set[int] = field(default_factory=set)  # of them, those while an older copy was not rebuilt yet
    owed: set[int] = field(default_factory=set)  # failed under the newest token, and not granted since
    failed: set[int] = field(default_factory=set)  # tokens under which the application failed on a message
    unseen: set[tuple[int, int]] = field(default_factory=set)  # (token, message) that was given back unseen
    again: set[int] = field(default_factory=set)  # acknowledged, and granted again by a server with an older cursor

    def is_done(self, message: int) -> bool:
        """Whether the application has acknowledged the message since it was granted last, or that is confirmed."""
        tokens = self.tokens.get(message)
        return message in self.confirmed or (tokens is not None and tokens[-1] in self.acked.get(message, ()))


class Keyed:
    """Compares each grant with all before it."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._views: dict[tuple[str, PartitionId, int], KeyedView] = {}
        self._done: dict[tuple[str, PartitionId], dict[int, int]] = {}  # message -> group epoch in which it was done
        self._tokens: dict[tuple[str, PartitionId, bytes], int] = {}  # the newest of each key
        self._begun: dict[tuple[str, PartitionId, int], set[int]] = {}  # offset -> tokens under which it was begun
        self._forwarded: set[tuple[str, PartitionId, int]] = set()  # offsets of what is in the dead-letter topic
        self.parked = Parked(seen)

    def view(self, group: str, partition: PartitionId, group_epoch: int) -> KeyedView:
        """What the consumer group saw in that group epoch."""
        return self._views.setdefault((group, partition, group_epoch), KeyedView())

    def framed(self, who: str, size_bytes: int, message_count: int, size_bytes_max: int) -> None:
        """A server puts a frame of grants on a consumer's stream."""
        if message_count > 1 and size_bytes > size_bytes_max:
            what = f"{who} grants {message_count} messages of {size_bytes} bytes at once"
            self._seen.fail("K6", f"{what}, and one delivery has {size_bytes_max}")

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
        names = {_name_of(message, offset) for message, offset in zip(messages, run.offsets, strict=True)}
        if len(names) != 1:
            self._seen.fail("K1", f"{what}, messages of {len(names)} keys")
        name = names.pop()
        key = view.keys.setdefault(name, KeyView())
        may_be_older = self._seen.may_believe_older(who, group, partition, group_epoch, server_epoch)
        self._check_token(what, (group, partition, name), run.token, may_be_older)
        if list(run.offsets) != sorted(run.offsets):
            self._seen.fail("K1", f"{what}, not in their order")
        self.parked.granted(what, group, partition, group_epoch, run, may_be_older=may_be_older)
        if not self.parked.was_asked_for(group, partition, name):
            self._check_attempts(what, key, run, may_be_older)
        self._check_begun(what, group, partition, run)
        before = [
            offset
            for offset in key.open
            if offset < run.offsets[0]
            and not self.parked.may_be_skipped(group, partition, offset)
            and not self._is_gone(partition, offset)
        ]
        if before:
            self._seen.fail("K1", f"{what}, and {format_offset(before[0])} of the same key is not acknowledged")
        for place, (offset, message) in enumerate(zip(run.offsets, messages, strict=True)):
            is_flagged = run.maybe_repeated or (place == 0 and run.attempt > 1)
            view.again.discard(message)
            is_elsewhere = message in view.granted and offset not in view.places
            if is_elsewhere and comes_anew(self._seen, partition, message, offset):
                del view.granted[message]
                view.confirmed.discard(message)
            is_done = view.is_done(message) or (group, partition, offset) in self._forwarded
            may_come_again = (may_be_older and is_done) or message in view.confirmed_older
            if is_flagged and may_come_again:
                self._seen.excuse(Excuse.OLDER_CURSOR)
                view.again.add(message)
            elif message in view.confirmed:
                self._seen.fail("K2", f"{what}, and {message} at {format_offset(offset)} was confirmed")
            known = view.granted.get(message)
            if known is None:
                if key.firsts and offset < key.firsts[-1]:
                    self._seen.fail("K1", f"{what}, and {format_offset(key.firsts[-1])} was granted before")
                key.firsts.append(offset)
            else:
                self._seen.states.add("granted again")
            if known is None:
                is_repeated = self._was_granted(group, partition, group_epoch, offset)
            else:
                is_unseen = (known[1], message) in view.unseen
                is_repeated = known[0] != server_epoch or not (known[1] in view.failed or is_unseen)
            if is_repeated and not is_flagged:
                under = f"as {known[1]:#x}" if known is not None else "in an earlier epoch"
                self._seen.fail("K4", f"{what}, and {message} was granted {under}")
            view.granted[message] = (server_epoch, run.token)
            view.places.add(offset)
            view.owed.discard(message)
            if message not in view.again:
                view.tokens.setdefault(message, []).append(run.token)
                key.open[offset] = None

    def _check_token(self, what: str, key: tuple[str, PartitionId, bytes], token: int, may_be_older: bool) -> None:
        newest = self._tokens.get(key, 0)
        if token <= newest and may_be_older:
            self._seen.excuse(Excuse.OLDER_CURSOR)
        elif token <= newest:
            self._seen.fail("K3", f"{what}, and the key had token {newest:#x}")
        self._tokens[key] = max(token, newest)

    def _check_begun(self, what: str, group: str, partition: PartitionId, run: KeyGrant) -> None:
        begun = self._begun.get((group, partition, run.offsets[0]), ())
        if run.attempt - 1 > len(begun):
            self._seen.fail("K5", f"{what} as attempt {run.attempt}, and an application began it {len(begun)} times")

    def _was_granted(self, group: str, partition: PartitionId, group_epoch: int, offset: int) -> bool:
        """Whether a message was granted in an earlier group epoch, since an administrator moved the consumer group
        last."""
        begun = self._seen.view(group, partition).group_epoch
        epochs = [epoch for of, on, epoch in self._views if (of, on) == (group, partition)]
        epochs = [epoch for epoch in epochs if begun <= epoch < group_epoch]
        return any(offset in self.view(group, partition, epoch).places for epoch in epochs)

    def _check_attempts(self, what: str, key: KeyView, run: KeyGrant, may_be_older: bool) -> None:
        """J2: the failed attempts on a message that all eligible members know stay counted."""
        offset, count = key.counted
        if not count or offset != run.offsets[0] or run.attempt > count:
            return
        if may_be_older:
            self._seen.excuse(Excuse.OLDER_CURSOR)
        else:
            self._seen.fail("J2", f"{what} as attempt {run.attempt}, and {count} attempts on it had failed")

    def counted(
        self, group: str, partition: PartitionId, group_epoch: int, name: bytes, offset: int, attempts: int
    ) -> None:
        """All eligible members know that this many attempts on the first message of a key have failed."""
        self._seen.states.add("attempts counted")
        key = self.view(group, partition, group_epoch).keys.setdefault(name, KeyView())
        if offset != key.counted[0] or attempts > key.counted[1]:
            key.counted = (offset, attempts)

    def acknowledged(
        self, group: str, partition: PartitionId, group_epoch: int, offset: int, message: int, token: int
    ) -> None:
        """The application is done with a message, under this token."""
        view = self.view(group, partition, group_epoch)
        view.acked.setdefault(message, set()).add(token)
        if message in view.again and view.granted[message][1] == token:
            view.tokens.setdefault(message, []).append(token)  # for its server, only this one is of its term (J1)
        key = view.keys.get(_name_of(message, offset))
        if key is not None:
            key.open.pop(offset, None)
        done = self._done.setdefault((group, partition), {})
        done[message] = max(done.get(message, 0), group_epoch)

    def passed(self, group: str, partition: PartitionId, offset: int, message: int) -> None:
        """A server is done with a message, because its dead letter is stored."""
        for (of, on, _), view in self._views.items():
            if (of, on) == (group, partition):
                view.owed.discard(message)
                for key in view.keys.values():
                    key.open.pop(offset, None)
        self._forwarded.add((group, partition, offset))
        epochs = [epoch for of, on, epoch in self._views if (of, on) == (group, partition)]
        self._done.setdefault((group, partition), {})[message] = max(epochs, default=0)

    def failed(self, group: str, partition: PartitionId, group_epoch: int, message: int, token: int) -> None:
        """The application failed on a message."""
        view = self.view(group, partition, group_epoch)
        view.failed.add(token)
        if view.granted.get(message, (0, 0))[1] == token and message not in view.again:
            view.owed.add(message)
            self._seen.states.add("a message failed")

    def begun(self, group: str, partition: PartitionId, offset: int, token: int) -> None:
        """An application begins to work on a message."""
        self._begun.setdefault((group, partition, offset), set()).add(token)

    def unseen(self, group: str, partition: PartitionId, group_epoch: int, message: int, token: int) -> None:
        """A consumer gives a message back that its application did not get."""
        self.view(group, partition, group_epoch).unseen.add((token, message))
        self._seen.states.add("given back unseen")

    def confirmed(self, group: str, partition: PartitionId, group_epoch: int, messages: list[int]) -> None:
        """A server confirms the acknowledgements of these messages."""
        view = self.view(group, partition, group_epoch)
        view.confirmed.update(messages)
        if self._seen.waits_for_rebuild:
            view.confirmed_older.update(messages)

    # ---- what others ask ----------------------------------------------------------------------------

    def _is_gone(self, partition: PartitionId, offset: int) -> bool:
        """Whether retention dropped the message at an offset, or an administrator declared it lost."""
        no, index = split_offset(offset)
        return self._seen.is_dropped(partition, no, index) or (partition, no) in self._seen.losses.declared

    def _is_done(self, group: str, partition: PartitionId, message: int) -> bool:
        """Whether the message was done since an administrator moved the consumer group last."""
        begun = self._seen.view(group, partition).group_epoch
        return self._done.get((group, partition), {}).get(message, -1) >= begun

    def is_due(self, group: str, partition: PartitionId, offset: int, message: int) -> bool:
        """Whether the consumer group must still get a message, unless it is gone."""
        is_moved = self._seen.view(group, partition).need_not_have(offset)
        is_moved = is_moved or self.parked.may_be_skipped(group, partition, offset)
        return not is_moved and not self._is_done(group, partition, message)

    def tokens(self, group: str, partition: PartitionId, group_epoch: int, message: int) -> list[int]:
        """All tokens under which a message was granted, the newest last. The list grows with later grants."""
        return self.view(group, partition, group_epoch).tokens.get(message, [])

    def unfinished(
        self, group: str, partition: PartitionId, group_epoch: int, offset: int, message: int, term: int | None
    ) -> str:
        """Why the consumer group is not done with a message, as far as a server of that term may know; empty: it is.

        Args:
            term: The term of the server that says so; None: any.
        """
        if self._seen.view(group, partition).need_not_have(offset) or self._is_gone(partition, offset):
            return ""
        if self.parked.may_be_skipped(group, partition, offset) or (group, partition, offset) in self._forwarded:
            return ""
        view = self.view(group, partition, group_epoch)
        tokens = [at for at in view.tokens.get(message, ()) if term is None or term_of(at) <= term]
        if not tokens:  # a repeat of an earlier message, or it was done in an earlier group epoch
            return "" if self._is_done(group, partition, message) else "it was never granted"
        if tokens[-1] in view.acked.get(message, ()):
            return ""
        under = [f"{token:#x}" for token in sorted(view.acked.get(message, ()))]
        return f"it was granted as {tokens[-1]:#x}, and acknowledged as {under}"

    def lacks(self, group: str, partition: PartitionId, order: list[tuple[int, int]]) -> list[int]:
        """The messages that the consumer group must have finished, and has not."""
        epochs = [epoch for of, on, epoch in self._views if (of, on) == (group, partition)]
        owed = self.view(group, partition, max(epochs, default=0)).owed
        begun = self._seen.view(group, partition)
        return [
            message
            for offset, message in order
            if not self._is_done(group, partition, message) or message in owed
            if not begun.need_not_have(offset) and not self.parked.may_be_skipped(group, partition, offset)
        ]


def _name_of(message: int, offset: int) -> bytes:
    key = key_of(message)
    return name_of_offset(offset) if key is None else name_of_key(key)
