"""The dispatcher of a consumer group in which order counts within a key: what happens to a key and its messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from seriatim_api.ids import INDEX_MAX, make_offset
from seriatim_api.key_names import offset_of_name

from ...values.keyed import KeyCounts, KeyPhase
from ...values.ledger_rows import CarriedGrant
from ...values.states import State
from ..dispatcher import Consumer
from ..numbered_sending import NumberedSending
from ..window import Window
from .forwarder import LIMITS, Forward
from .grants import Grant, Grants
from .handoff import Handoff
from .key import Key
from .line import KeysInLine
from .lists import Lists


@dataclass(slots=True, eq=False)
class KeyedDispatcher(State):
    """Which keys have messages, and which consumer works on which.

    Each part keeps what is true of itself. Here is what changes several of them at once: a message comes, is granted,
    is acknowledged, fails, is set aside, or is gone.

    Attributes:
        segment_no: The cursor segment.
        window: Which of its indexes are passed.
        read_index: All below was read.
        reading: The serial of the read of keys that is under way; 0: none.
        live_count: How many messages are live: read, not passed, and in no list.
        unreadable: Offsets of messages whose bodies no reader can take apart, as far as this server knows.
        line: The keys.
        grants: The grants.
        lists: The lists of messages that were set aside.
        forwarder: What goes to the dead-letter topic.
        handoff: What was handed over to this server, and what it hands over.
    """

    segment_no: int
    window: Window
    read_index: int = field(init=False)
    reading: int = 0
    live_count: int = 0
    unreadable: dict[int, None] = field(default_factory=dict)
    line: KeysInLine = field(default_factory=KeysInLine)
    grants: Grants = field(init=False)
    lists: Lists = field(init=False)
    forwarder: NumberedSending[Forward] = field(default_factory=lambda: NumberedSending(LIMITS))
    handoff: Handoff = field(default_factory=Handoff)

    def __post_init__(self) -> None:
        self.read_index = self.window.floor
        self.grants = Grants(self.segment_no, self.line)
        self.lists = Lists(self.line)

    def take_in(self, name: bytes, index: int, offset: int) -> None:
        """A message was read: it waits behind those of its key."""
        key = self.grants.weigh(name)
        if key is None:
            self.line.singles[name] = index
            self.line.ready.append(name)
            self.live_count += 1
            return
        if key.aside or key.phase is KeyPhase.PARKED:  # only the list keeps the order of the key
            self.lists.append(key, (offset,))
            self.window.pass_over((index,))
            return
        key.live.append(index)
        key.first = 0
        self.live_count += 1
        if not key.token and not key.is_queued:
            self.line.queue(key)

    def begin_grant(self, grant: Grant) -> None:
        """A run is granted."""
        self.line.count(grant.key.phase, -1)
        grant.key.token = grant.token
        grant.consumer.in_flight += grant.left
        self.grants.by_token[grant.token] = grant
        self.grants.set_deadline(grant, grant.deadline_us)

    def acknowledge(self, grant: Grant) -> None:
        """The first message of the run that is not acknowledged is done with. The caller ends a run that is done."""
        key = grant.key
        if grant.is_passed:
            pass
        elif grant.is_aside:
            self.lists.pop(key)
        else:
            self.window.pass_over((grant.offsets[grant.done] & INDEX_MAX,))
            self.live_count -= 1
        grant.done += 1
        grant.is_started = False  # the next message is not begun
        grant.consumer.in_flight -= 1
        if key.phase is not None and not grant.is_passed:
            self._first_is_done(key)

    def pass_grant(self, grant: Grant) -> None:
        """The messages of a run are done with before they are given."""
        key = grant.key
        if grant.is_aside:
            self.lists.pop(key, len(grant.offsets))
        else:
            self.window.pass_over(offset & INDEX_MAX for offset in grant.offsets)
            del key.live[: len(grant.offsets)]
            self.live_count -= len(grant.offsets)
        if key.phase is not None:
            self._first_is_done(key)
        grant.is_passed = grant.is_aside = True  # they are not live any more

    def end_grant(self, grant: Grant) -> bool:
        """The run is over: what it holds that is not acknowledged comes again, before the key's other messages.

        Rule `gone-has-no-attempts` (J2): an attempt on a message that retention dropped meanwhile counts nowhere.
        Without it:
          1. k:5 is granted, and retention drops it. The consumer fails on it.
          2. The attempt counts for the first message of k, which is k:6 now, or the next one that comes.
          3. k:6 is given as the second attempt, and is parked after one attempt less.

        Returns:
            Whether its first message that was not acknowledged is still there.
        """
        key = grant.key
        del self.grants.by_token[grant.token]
        grant.consumer.in_flight -= grant.left
        key.token = 0
        self.line.count(key.phase, 1)
        if grant.done and not grant.is_aside:
            del key.live[: bisect_right(key.live, grant.offsets[grant.done - 1] & INDEX_MAX)]
        if key.live and key.live[0] < self.window.floor:  # retention dropped them while they were granted
            gone = bisect_right(key.live, self.window.floor - 1)
            self.live_count -= gone
            del key.live[:gone]
            self._first_is_done(key)
            return False
        return True

    def counts(self, acked: int) -> KeyCounts:
        """How many keys wait, by their state, and how many messages from the index `acked` on are passed.

        `acked` is the place of the consumer group that is reported beside it, which may be after the floor. Without
        it:
          1. The group is at 1:1 on all disks. The dead letter of 1:1 gets a number, and the floor rises to 1:50.
          2. The 49 messages between the two are counted as not acknowledged.
        """
        counts = self.line.phase_counts
        return KeyCounts(
            counts[KeyPhase.PARKED],
            counts[KeyPhase.RETRY],
            counts[KeyPhase.FORWARDING],
            self.lists.message_count,
            self.window.passed_from(acked),
        )

    def carry(self, grants: Sequence[CarriedGrant], now_us: int) -> None:
        """Continue with grants that the server of the segment before made. Their consumers are absent until they
        join."""
        for carried in grants:
            key = self.line.keys.get(carried.name)
            if key is None and carried.is_passed:
                key = self.line.keys[carried.name] = Key(carried.name)
            if key is None or (len(key.aside) < carried.message_count and not carried.is_passed):
                continue
            count = carried.message_count
            consumer = self.handoff.absent.get(carried.consumer)
            if consumer is None:
                consumer = self.handoff.absent[carried.consumer] = Consumer.absent(carried.consumer)
            # Those of an at-most-once group are not in the list any more, and which they are does not count.
            offsets = (0,) * count if carried.is_passed else tuple(islice(key.aside, count))
            deadline_us = now_us + 1_000 * carried.left_ms
            grant = Grant(carried.token, key, consumer, offsets, is_aside=True, deadline_us=deadline_us)
            grant.is_given, grant.is_started, grant.is_passed = True, carried.is_started, carried.is_passed
            key.is_queued = False
            self.line.wait_until(key, 0)  # it was granted, so its delay is over, whatever the clock of this server says
            self.begin_grant(grant)

    def attach(self, consumer: Consumer, until_us: int) -> None:
        """A consumer has joined: the grants that were handed over for its name are its own.

        A consumer that lost its memory does not know them. So each ends at `until_us` if the consumer says nothing.
        """
        absent = self.handoff.absent.pop(consumer.name, None)
        for grant in self.grants.of([absent]) if absent is not None else ():
            grant.consumer = consumer
            consumer.in_flight += grant.left
            self.grants.set_deadline(grant, min(grant.deadline_us, until_us))

    def note_failure(self, key: Key, error: str, ready_us: int, ready_at_ms: int, delay_ms: int = 0) -> None:
        """An attempt on the first message of the key has failed; the next one begins at that time."""
        self.line.to_phase(key, KeyPhase.RETRY)
        key.attempts += 1
        key.error = error
        key.ready_at_ms, key.delay_ms = ready_at_ms, delay_ms
        self.line.wait_until(key, ready_us)
        self.line.changed[key.name] = None

    def set_aside(self, key: Key) -> None:
        """The live messages of the key go into its list, and their indexes are passed.

        A grant of the key continues: its messages that are not acknowledged are the first ones of the list.
        """
        grant = self.grants.by_token.get(key.token)
        if grant is not None and not grant.is_aside:
            if grant.done:
                del key.live[: bisect_right(key.live, grant.offsets[grant.done - 1] & INDEX_MAX)]
            grant.offsets, grant.done, grant.is_aside = grant.offsets[grant.done :], 0, True
        if key.live:
            first = make_offset(self.segment_no, 0)
            self.lists.append(key, [first | index for index in key.live])
            self.window.pass_over(key.live)
            self.live_count -= len(key.live)
            key.live = []
        if key.phase is None:
            self.line.to_phase(key, KeyPhase.RETRY)
        self.line.changed[key.name] = None

    def drop_below(self, start: int, count: int) -> bool:
        """Retention dropped the messages below an index: they are passed, except those that are granted.

        Args:
            start: The first index that is there.
            count: Maximum number of keys that are looked at in this step.

        Returns:
            Whether that is done. If not, some keys still have messages that are gone, and the floor has not moved.
        """
        names = [name for name, index in self.line.singles.items() if 0 <= index < start]
        for name in names:
            del self.line.singles[name]  # it stays among the ready ones, where it is passed over
        self.live_count -= len(names)
        end = make_offset(self.segment_no, start)
        below = (key for key in self.line.keys.values() if self._begins_below(key, end))
        for key in list(islice(below, count)):
            gone = bisect_right(key.live, start - 1)
            self.live_count -= gone
            del key.live[:gone]
            self._first_is_done(key)
            self.line.requeue(key)
        if any(self._begins_below(key, end) for key in self.line.keys.values()):
            return False
        # Rule `granted-and-gone` (J2): its attempts end with the drop, too. Without it:
        #   1. k:5 is granted as the second attempt. Retention drops it, and the record of k still has one attempt.
        #   2. This server dies. The next one begins after k:5, and counts the attempt for k:6.
        for key in [grant.key for grant in self.grants.by_token.values()]:
            if key.phase is not None and not key.aside and 0 < self.first_offset(key) < end:
                self._first_is_done(key)
        self.window.pass_below(start)
        return True

    def _begins_below(self, key: Key, end: int) -> bool:
        """Whether the first message of a key that is not granted is in no list, and below an offset."""
        return not key.token and not key.aside and 0 < self.first_offset(key) < end

    def park(self, key: Key, error: str) -> None:
        """The key waits for an administrator."""
        self.line.to_phase(key, KeyPhase.PARKED)
        key.error = error
        key.ready_at_ms = 0
        self.line.wait_until(key, 0)
        self.set_aside(key)

    def forward(self, key: Key, error: str, failed_at_ms: int) -> None:
        """The first message of the key goes to the dead-letter topic. Until then nothing of the key is given out."""
        assert not key.token
        self.line.to_phase(key, KeyPhase.FORWARDING)
        key.error = error
        key.ready_at_ms = failed_at_ms
        self.line.wait_until(key, 0)
        key.sequence = 0
        self.line.changed[key.name] = None
        self.forwarder.waiting[key.name] = Forward(key.name)

    def give_number(self, forward: Forward, term: int) -> None:
        """The first message of the key gets the next number of the term, and is the first one of the key's list.

        So the record says which message has the number. Without it:
          1. k:5 has number 7, and is live. The server dies.
          2. Retention drops k:5. The next server reads k:9 as the first message of k.
          3. It sends k:9 under number 7. The master has that number, so k:9 is passed without a dead letter.

        """
        key = self.line.keys[forward.name]
        if key.live:
            self.set_aside(key)
        key.sequence = self.forwarder.give_number(forward, term)
        self.line.changed[key.name] = None

    def release(self, key: Key) -> None:
        """An administrator lets the key continue, with all its attempts. Its first message was given before
        (`given-again`).

        Rule `seen-key` (J2): the record stays until the first message is done with, also without attempts and a list,
        because the turn outlives this server, too. Without it:
          1. A consumer fails on k:5, and an administrator releases k. Then the consumer group has no consumers, so this
             server forgets it. No row says that k was released: its turn is 0 again.
          2. Consumers fail on k:5 until k is parked. The administrator, who had no answer, repeats the request.
          3. k continues, though no administrator has seen that it is parked.
        """
        key.note_given(self.first_offset(key))
        self.forwarder.waiting.pop(key.name, None)
        self.line.to_phase(key, KeyPhase.RETRY)
        key.turn += 1
        self._forget_attempts(key)
        self.line.requeue(key)

    def first_offset(self, key: Key) -> int:
        """The offset of the first message of the key; 0: it has none that is known here."""
        if key.aside:
            return key.aside[0]
        return make_offset(self.segment_no, key.live[0]) if key.live else key.first or offset_of_name(key.name)

    def pass_first(self, key: Key) -> int | None:
        """The first message of the key, which is not granted, is done with without a consumer. Returns its offset."""
        assert not key.token
        if key.aside:
            offset = key.aside[0]
            self.pass_listed(key, 1)
            return offset
        if key.live:
            index = key.live.pop(0)
            offset = make_offset(self.segment_no, index)
            self.window.pass_over((index,))
            self.live_count -= 1
        elif offset := self.first_offset(key):  # it is not read yet
            self.window.pass_over((offset & INDEX_MAX,))
        else:
            return None
        self._first_is_done(key)
        return offset

    def pass_listed(self, key: Key, count: int) -> None:
        """The first messages of the list of a key, which is not granted, are done with without a consumer."""
        assert not key.token
        self.lists.pop(key, count)
        self._first_is_done(key)

    def _first_is_done(self, key: Key) -> None:
        """The first message of a key is acknowledged, passed over or gone: nothing of it counts for the next one.

        Rule `delay-ends-with-message` (J1, J2): its attempts, its delay and its way to the dead-letter topic end with
        it, in one step. Without it:
          1. A consumer fails on k:5, which should come again in 7 days. Retention drops k:5 some hours later.
          2. k:6 waits for the rest of the 7 days, although no consumer has failed on it. Retention drops k:6 too.
          3. k has no record, because no attempt counts any more. So no list shows the key, and no administrator
             releases it.
        """
        if key.is_held:
            # Rule `forward-ends-with-message` (J4): otherwise the next message becomes a dead letter under its number.
            self.forwarder.waiting.pop(key.name, None)
            self.line.to_phase(key, KeyPhase.RETRY)
        key.error, key.first = "", 0
        self._forget_attempts(key)
        if key.phase is KeyPhase.RETRY and not key.aside:
            self.line.to_phase(key, None)

    def _forget_attempts(self, key: Key) -> None:
        """No attempt on the first message counts, so it waits for no time either."""
        key.attempts = key.ready_at_ms = key.delay_ms = key.sequence = 0
        self.line.wait_until(key, 0)
        self.line.changed[key.name] = None
