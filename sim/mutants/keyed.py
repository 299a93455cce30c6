# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Bugs in consumer groups in which order is by key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim._core.keyed_consumer import KeyedPartitionConsumer
from seriatim_api.ids import INDEX_MAX
from seriatim_broker.core.consumers import crossing, cursors, granting, handling, handover, serving, waiting_keys
from seriatim_broker.core.control import rebuild
from seriatim_broker.core.state import keyed_rows
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.keyed import KeyedDispatcher
from seriatim_broker.core.state.ledger import Ledger
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.keyed import SETTINGS_DEFAULT
from seriatim_broker.core.values.log import NO_HAND_OVER, CursorState, LedgerChange, LedgerVersion, PutCursor
from seriatim_broker.core.values.messages import ReplicateLedger

from .mutation import Mutation, Patch, with_handler

K = ("K1", "K2", "K3", "K4", "K5", "K6", "J1", "J2", "J5", "I13", "CORE")
"""What a bug about keys may break first."""


def _any_token_counts() -> list[Patch]:
    real = handling._run_at

    def run_at(keyed: KeyedDispatcher, consumer: Any, token: int, offset: int) -> Any:
        """An acknowledgement names a message, whatever its token is."""
        for name in list(keyed.singles):
            keyed.weigh(name)
        found = (run for run in keyed.doing.values() if run.is_given and run.offsets[run.done] == offset)
        return real(keyed, consumer, token, offset) or next(found, None)

    return [(handling, "_run_at", run_at)]


def _failed_goes_behind() -> list[Patch]:
    real = KeyedDispatcher.note_failure

    def note_failure(self: KeyedDispatcher, key: Any, *arguments: Any, **named: Any) -> None:
        """The message goes behind the others of its key."""
        real(self, key, *arguments, **named)
        key.live = key.live[1:] + key.live[:1]

    return [(KeyedDispatcher, "note_failure", note_failure)]


def _entry_a_message() -> list[Patch]:
    real = KeyedDispatcher.take_in

    def take_in(self: KeyedDispatcher, name: bytes, index: int, offset: int) -> None:
        """Each message of a key that is delayed makes one more entry, and counts as one more key that waits."""
        real(self, name, index, offset)
        key = self.keys.get(name)
        if key is not None and key.is_delayed:
            key.is_delayed = False
            self.queue(key)

    return [(KeyedDispatcher, "take_in", take_in)]


def _frames_without_size() -> list[Patch]:
    return [(granting, "_room_bytes", lambda *_: 1 << 40)]


def _rest_is_left() -> list[Patch]:
    real = KeyedDispatcher.cut_frame

    def cut_frame(self: KeyedDispatcher, frame: Any, count: int) -> None:
        """What the frame has no room for stays granted, and is not ready."""
        ready = list(self.ready)
        real(self, frame, count)
        self.ready.clear()
        self.ready.extend(ready)

    return [(KeyedDispatcher, "cut_frame", cut_frame)]


def _live_before_list() -> list[Patch]:
    real = KeyedDispatcher.take_in

    def take_in(self: KeyedDispatcher, name: bytes, index: int, offset: int) -> None:
        """A message of a key with a list is live."""
        key = self.keys.get(name)
        if key is not None and key.aside and not key.is_held:
            key.live.append(index)
            self.live_count += 1
        else:
            real(self, name, index, offset)

    real_first = granting._first_messages

    def first_messages(keyed: KeyedDispatcher, key: Any, count: int, below: int) -> Any:
        if not key.live:
            return real_first(keyed, key, count, below)
        aside, key.aside = key.aside, ()
        found = real_first(keyed, key, count, below)
        key.aside = aside
        return found

    return [(KeyedDispatcher, "take_in", take_in), (granting, "_first_messages", first_messages)]


def _changes_only() -> list[Patch]:
    real = cursors._send_change

    def send_change(broker: Any, of: Any, consumer_group: Any, serial: int, cursor: Any, *rest: Any) -> None:
        """What another server left behind on a member stays there."""
        consumer_group.ledger.told.update(dict.fromkeys(rest[-1]))
        real(broker, of, consumer_group, serial, cursor, *rest)

    def on_replicate(broker: Any, of: Any, sender: Any, message: Any) -> None:
        known = of.ledger_versions.get(message.cursor.consumer_group)
        if known is None or known[0] != message.server_epoch:
            versions = dict(of.ledger_versions)
            versions[message.cursor.consumer_group] = LedgerVersion(message.server_epoch, message.previous)
            of.ledger_versions = versions
        change = message.change
        if change.is_full:
            message = replace(message, change=LedgerChange(change.puts, change.deletes))
        REAL_REPLICATE(broker, of, sender, message)

    return [(cursors, "_send_change", send_change), with_handler(ReplicateLedger, on_replicate)]


REAL_REPLICATE = cursors.on_replicate_ledger


def _live_is_left() -> list[Patch]:
    return [(KeyedDispatcher, "set_some_aside", lambda *_: False)]


def _terms_fall() -> list[Patch]:
    return [(CursorRecord, "after_term", lambda self, *_: self)]


def _into_the_empty() -> list[Patch]:
    return [(handover, "_has_messages", lambda *_: True)]


def _any_hand_over() -> list[Patch]:
    def handed_over(partition: Any, consumer_group: Any, record: Any) -> Any:
        return partition.handovers.get(consumer_group.name)

    return [(serving, "_handed_over", handed_over)]


def _blind_stays() -> list[Patch]:
    real = serving._begin_at_oldest

    def begin(broker: Any, of: Any, consumer_group: Any, record: Any) -> None:
        real(broker, of, consumer_group, replace(record, oldest=0))

    return [(serving, "_begin_at_oldest", begin)]


def _back_without_flag() -> list[Patch]:
    real = crossing.with_term

    def with_term(*arguments: Any) -> CursorRecord:
        return replace(real(*arguments), repeated_to=0)

    return [(crossing, "with_term", with_term)]


def _lists_unreserved() -> list[Patch]:
    real = granting._first_messages

    def first_messages(keyed: KeyedDispatcher, key: Any, count: int, below: int) -> Any:
        return real(keyed, key, count, INDEX_MAX if key.aside else below)

    return [(granting, "_first_messages", first_messages)]


def _lists_untold() -> list[Patch]:
    return [(serving, "_oldest_listed", lambda *_: 0)]


def _first_confirms() -> list[Patch]:
    real = cursors.send_all

    def send_all(broker: Any, *rest: Any) -> int:
        """All messages of a full state have one number."""
        serial, new_serial = broker.new_serial(), BrokerState.new_serial
        BrokerState.new_serial = lambda _self: serial  # type: ignore[assignment, method-assign]
        try:
            return real(broker, *rest)
        finally:
            BrokerState.new_serial = new_serial  # type: ignore[method-assign]

    return [(cursors, "send_all", send_all)]


def _frozen_takes() -> list[Patch]:
    return [(handling, "_waits", lambda *_: False)]


def _given_without_flag() -> list[Patch]:
    real = KeyedDispatcher.end_run

    def end_run(self: KeyedDispatcher, run: Any) -> None:
        """It is not known that the consumer was given the messages."""
        real(self, run)
        run.is_given = False

    return [(KeyedDispatcher, "end_run", end_run)]


def _start_is_of_the_grant() -> list[Patch]:
    real = KeyedDispatcher.acknowledge

    def acknowledge(self: KeyedDispatcher, run: Any) -> None:
        """A grant that was begun stays begun: each of its messages counts as begun."""
        is_started = run.is_started
        real(self, run)
        run.is_started = is_started

    return [(KeyedDispatcher, "acknowledge", acknowledge)]


def _started_when_given() -> list[Patch]:
    real = KeyedPartitionConsumer._granted

    def granted(self: KeyedPartitionConsumer, event: Any, now_us: int, effects: Any) -> None:
        """What came is reported as begun, and not what the application works on."""
        real(self, event, now_us, effects)
        for token in event.tokens:
            self.begin(token, now_us)

    return [(KeyedPartitionConsumer, "_granted", granted)]


def _said_at_once() -> list[Patch]:
    real = waiting_keys.go_on

    def go_on(broker: Any, of: Any, consumer_group: Any) -> None:
        """A person is answered before the change is on any disk."""
        real(broker, of, consumer_group)
        waiting_keys.on_replicated(broker, consumer_group, 1 << 62)

    return [(waiting_keys, "go_on", go_on)]


def _any_key_counts() -> list[Patch]:
    real = waiting_keys._operate_on

    def operate_on(broker: Any, of: Any, consumer_group: Any, keyed: Any, operation: Any, seen: Any) -> bool:
        """A request means the key as it is now."""
        key = keyed.keys.get(seen.name)
        if key is not None:
            seen = seen._replace(turn=key.turn, first_offset=keyed.first_offset(key))
        return real(broker, of, consumer_group, keyed, operation, seen)

    return [(waiting_keys, "_operate_on", operate_on)]


def _any_write_is_durable() -> list[Patch]:
    def on_stored(broker: Any, of: Any, no: int, _serial: int) -> None:
        """A hand-over to this segment is on the disk, so all are."""
        for handing in list(of.handing.values()):
            if handing.handover.segment_no == no:
                handing.waiting.pop(broker.member, None)
                handover._answer_if_kept(broker, of, handing)

    return [(handover, "on_stored", on_stored)]


def _unknown_thaws() -> list[Patch]:
    return [(handover, "may_be_carried_out", lambda *_: False)]


def _under_way_is_forgotten() -> list[Patch]:
    return [(serving, "_is_under_way", lambda *_: False)]


def _older_place_is_served() -> list[Patch]:
    return [(cursors, "was_further", lambda *_: False)]


def _earlier_is_written() -> list[Patch]:
    real = cursors._keep

    def keep(broker: Any, of: Any, cursor: CursorState, change: Any = None) -> None:
        """A control record is written, if this disk has a later one too. The rows beside it are not."""
        real(broker, of, cursor, change)
        if of.cursors.get(cursor.consumer_group) is not cursor:
            broker.out.write(PutCursor(of.id, cursor))

    return [(cursors, "_keep", keep)]


def _told_is_told() -> list[Patch]:
    real = Ledger.note_dropped

    def note_dropped(self: Ledger, *arguments: Any) -> None:
        """The consumers of now were told, so no other consumer needs to be."""
        real(self, *arguments)
        self.untold_token = self.dropped_from = self.dropped_position = 0

    return [(Ledger, "note_dropped", note_dropped)]


def _delay_outlives_its_message() -> list[Patch]:
    real = KeyedDispatcher._first_is_done

    def first_is_done(self: KeyedDispatcher, key: Any) -> None:
        """The record ends with the first message, and the time until which the key waits does not."""
        ready_us = key.ready_us
        real(self, key)
        if not key.token:
            self.wait_until(key, ready_us)

    return [(KeyedDispatcher, "_first_is_done", first_is_done)]


def _first_is_unread() -> list[Patch]:
    real = keyed_rows._read_key

    def read_key(dispatcher: KeyedDispatcher, unread: Any, name: bytes, *rest: Any) -> None:
        """A server does not know on which message the attempts were, before it has read the messages of the key."""
        real(dispatcher, unread, name, *rest)
        dispatcher.keys[name].first = 0

    return [(keyed_rows, "_read_key", read_key)]


def _settings_not_written() -> list[Patch]:
    def without(*fields: Any, **named: Any) -> CursorState:
        return replace(CursorState(*fields, **named), settings=SETTINGS_DEFAULT, term_base=0)

    return [(cursors, "CursorState", without)]


def _begins_at_once() -> list[Patch]:
    real = serving._make_dispatcher

    def make_dispatcher(broker: Any, of: Any, consumer_group: Any, *rest: Any) -> None:
        """A server grants and ends grants before another member knows that it has begun."""
        real(broker, of, consumer_group, *rest)
        consumer_group.keyed.is_begun = True

    return [(serving, "_make_dispatcher", make_dispatcher)]


def _mutation(rule: str, patches: Any, profile: str = "keyed") -> Mutation:
    return Mutation(rule, patches, K, profile)


MUTATIONS: dict[str, Mutation] = {
    "token-and-offset": _mutation(
        "an acknowledgement counts under the token of the grant that gave the message", _any_token_counts
    ),
    "head-stays": _mutation("a failed message stays the first one of its key", _failed_goes_behind),
    "one-entry-a-key": _mutation(
        "a key that is delayed counts once, however many messages are behind it", _entry_a_message, "keyed-delayed"
    ),
    "frames-by-size": _mutation(
        "a frame has no more messages than its bytes allow", _frames_without_size, "keyed-frames"
    ),
    "rest-is-ready": _mutation("what a frame has no room for is ready again", _rest_is_left, "keyed-frames"),
    "list-first": _mutation("what was set aside is older than what is live", _live_before_list),
    "full-first": _mutation("a new server first sends all rows, which replace what was there", _changes_only),
    "live-joins-the-list": _mutation("what is live is handed over in the lists", _live_is_left),
    "terms-grow": _mutation("the tokens of the next server are higher than those of the last one", _terms_fall),
    "not-into-the-empty": _mutation("nothing is handed over to a segment without messages", _into_the_empty),
    "exactly-the-one-named": _mutation(
        "the next server begins from the hand-over that the cursor names", _any_hand_over
    ),
    "blind-goes-back": _mutation(
        "if its rows are lost, a consumer group goes back to the oldest message that was set aside",
        _blind_stays,
        "keyed-lost",
    ),
    "back-is-flagged": _mutation(
        "what comes again after a consumer group went back is flagged", _back_without_flag, "keyed-lost"
    ),
    "aside-is-reserved": _mutation("what is granted from a list is reserved before", _lists_unreserved, "keyed-full"),
    "delay-ends-with-message": _mutation(
        "a key waits no longer than its first message is there", _delay_outlives_its_message, "keyed-waits"
    ),
    "first-is-read": _mutation(
        "a server takes the first message of a key from its record", _first_is_unread, "keyed-waits"
    ),
    "alone-tells-lists": _mutation(
        "a consumer group that passes a stub alone tells what its lists had there", _lists_untold, "keyed-dropped"
    ),
    "own-disk-too": _mutation(
        "a server answers for exactly the hand-over that its own disk has", _any_write_is_durable, "keyed-slow"
    ),
    "unknown-stays-frozen": _mutation(
        "a group is frozen until it is known whether its cursor has moved", _unknown_thaws, "keyed-late"
    ),
    "under-way-stays": _mutation(
        "a write of a cursor that is under way is not forgotten after a rebuild", _under_way_is_forgotten, "keyed-late"
    ),
    "further-waits": _mutation(
        "where order is by key, a group is not served at an older place", _older_place_is_served, "keyed-further"
    ),
    "later-stays": _mutation(
        "a control record of a segment that the consumer group has left is not written",
        _earlier_is_written,
        "keyed-further",
    ),
    "rebuilt-goes-back": _mutation(
        "after a rebuild, a server that lacks the control record goes back to what was set aside",
        lambda: [(rebuild, "UNKNOWN_HAND_OVER", NO_HAND_OVER)],
        "keyed-further",
    ),
    "drop-is-no-ack": Mutation(
        "a drop that consumers were told stays noted until a later message counts",
        _told_is_told,
        ("I1", "I2", "I8", *K),
        "crossings",
    ),
    "last-confirms": Mutation(
        "a joining member has all control records when it confirms the last one",
        _first_confirms,
        ("I9", "I11", *K),
        "keyed-halves",
    ),
    "frozen-waits": _mutation("nothing changes while the state of the keys is handed over", _frozen_takes),
    "given-again": _mutation(
        "what a consumer was given and said nothing about comes again flagged", _given_without_flag
    ),
    "message-started": _mutation("begun is a message, and not its grant", _start_is_of_the_grant, "keyed-rests"),
    "started-when-begun": Mutation(
        "a consumer reports a message as begun when its application begins it",
        _started_when_given,
        K,
        "keyed-rests",
        layer="client",
    ),
    "keys-said-when-durable": _mutation(
        "what is said of keys that wait is durable on every eligible member first", _said_at_once, "keyed-parked"
    ),
    "settings-on-disks": _mutation("mode, policy and term base are on the disks", _settings_not_written, "crossings"),
    "begun-first": _mutation(
        "the next server grants and ends nothing before every eligible member knows that it has begun",
        _begins_at_once,
        "keyed-begins",
    ),
    "seen-key": _mutation("a request means a key as the person saw it", _any_key_counts, "keyed-parked"),
}
"""By name."""
