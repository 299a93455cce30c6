# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Bugs where two features meet: worlds that draw one of them do not show them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim._core import joining
from seriatim_api.key_names import name_of_key
from seriatim_broker.core.consumers import (
    crossing,
    cursors,
    delivery,
    gone,
    granting,
    handling,
    operations,
    ranges,
    serving,
    subscribing,
    waiting_keys,
)
from seriatim_broker.core.consumers.consumer_group import tell
from seriatim_broker.core.control import retention
from seriatim_broker.core.copies import copying, gaps
from seriatim_broker.core.state import keyed_rows
from seriatim_broker.core.state.keyed import KeyedDispatcher
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.effects import Dropped, Gap
from seriatim_broker.core.values.log import CursorState
from seriatim_broker.core.values.positions import Place, first_kept
from seriatim_broker.core.values.segment import Segment, SegmentState

from .mutation import Mutation, Patch, nothing


def _lost_from_zero() -> list[Patch]:
    real = vars(gaps)["declare_lost"]

    def declare_lost(chain: Chain, no: int) -> Chain:
        """A lost segment without a known length is empty, whatever retention says of its start."""
        segment = chain.segment(no)
        if segment is not None and segment.sealed_len is None:
            assert not segment.start, "a segment begins before its end"
        lost: Chain = real(chain, no)
        return lost

    return [(gaps, "declare_lost", declare_lost)]


def _table_goes_behind_a_loss() -> list[Patch]:
    def first_kept(chain: Chain, no: int, readers: Any) -> int:
        """Only the segment right before an incomplete one keeps its table."""
        kept: Segment | None = chain.from_no(min((no, *(reader.segment_no for reader in readers if reader.is_served))))
        assert kept is not None
        while (before := chain.before(kept.no)) is not None:
            if before.state is not SegmentState.LOST and not kept.incomplete_table:
                break
            kept = before
        return kept.no

    return [(retention, "first_kept", first_kept)]


def _jump_forgets() -> list[Patch]:
    def jump(broker: Any, partition: Any, consumer_group: Any, next_no: int, reason: str) -> None:
        """What the cursor says of dropped messages ends with the lost segment."""
        if crossing._must_wait(broker, partition, consumer_group):
            return
        for consumer in consumer_group.consumers:
            gone.tell_lost(broker, consumer, Place(consumer_group.segment_no, 0), reason)
        crossing.move_on(broker, partition, consumer_group, next_no, new_epoch=True)

    return [(crossing, "jump", jump)]


def _attempts_of_granted() -> list[Patch]:
    real = KeyedDispatcher.drop_below

    def drop_below(self: KeyedDispatcher, start: int, count: int) -> bool:
        """Attempts on a granted message outlive it."""
        doing, self.doing = self.doing, {}
        try:
            return real(self, start, count)
        finally:
            self.doing = doing

    return [(KeyedDispatcher, "drop_below", drop_below)]


def _first_is_unnamed() -> list[Patch]:
    real = keyed_rows._record

    def record(dispatcher: Any, key: Any, phase: Any) -> Any:
        """A record without a list does not say on which message the attempts were."""
        found = real(dispatcher, key, phase)
        return found if key.aside else replace_first(found)

    def replace_first(found: Any) -> Any:
        return found._replace(aside_first=0)

    return [(keyed_rows, "_record", record)]


def _moves_are_undone() -> list[Patch]:
    def is_behind(partition: Any, group: str, no: int, record: Any) -> bool:
        """Only key-ordered groups wait for a rebuild."""
        return record.mode.is_keyed and cursors.was_further(partition, group, no, record.group_epoch)

    return [(serving, "_is_behind_for_good", is_behind)]


def _first_of_all() -> list[Patch]:
    real = vars(ranges)["first_kept"]
    return [(ranges, "first_kept", lambda chain, no=0: real(chain))]


def _place_is_a_drop() -> list[Patch]:
    real = delivery.tell_noted_drop

    def tell_noted_drop(broker: Any, partition: Any, consumer_group: Any, consumer: Any, place: Any) -> None:
        """In a key-ordered group, a noted drop goes as far as the cursor's place."""
        if consumer_group.keyed is not None and place.segment_no == consumer_group.segment_no:
            index = min(max(place.index, consumer_group.cursor.start_index), consumer_group.ledger.acked)
            place = place._replace(index=index)
        real(broker, partition, consumer_group, consumer, place)

    return [(delivery, "tell_noted_drop", tell_noted_drop)]


def _loss_hides_drops() -> list[Patch]:
    return [(subscribing, "end_of_drops", first_kept)]


def _comers_are_welcome() -> list[Patch]:
    def welcome(broker: Any, partition: Any, group: Any, consumer: Any) -> None:
        """What is gone was told to the consumers that were there."""
        handling.join(broker, group, consumer)

    return [(subscribing, "_welcome", welcome)]


def _forward_stays() -> list[Patch]:
    real = KeyedDispatcher._first_is_done

    def first_is_done(self: KeyedDispatcher, key: Any) -> None:
        """The forwarder goes on with the number, whatever the first message is now."""
        forward = self.forwards.get(key.name)
        real(self, key)
        if forward is not None and forward.number and (key.aside or key.live):
            self.forwards[key.name] = forward

    return [(KeyedDispatcher, "_first_is_done", first_is_done)]


def _attempt_counts_on() -> list[Patch]:
    real = KeyedDispatcher.end_run

    def end_run(self: KeyedDispatcher, run: Any) -> bool:
        """A failure counts for the first message of the key, also if retention dropped the one that failed."""
        real(self, run)
        return True

    return [(KeyedDispatcher, "end_run", end_run)]


def _note_in_memory() -> list[Patch]:
    def without(*fields: Any, **named: Any) -> CursorState:
        return replace(CursorState(*fields, **named), untold=0)

    return [(cursors, "CursorState", without)]


def _losses_again() -> list[Patch]:
    def tell_lost(broker: Any, consumer: Any, place: Any, reason: str = "declared lost") -> None:
        """Each cause of a loss is told by itself."""
        tell(broker, consumer, Gap(place.segment_no, place.index, reason))

    return [(owner, "tell_lost", tell_lost) for owner in (crossing, granting, subscribing)]


def _drops_again() -> list[Patch]:
    def tell_dropped(broker: Any, consumer: Any, first: int, end: Any, messages: int) -> None:
        """Each cause of a drop is told by itself."""
        tell(broker, consumer, Dropped(first, end.segment_no, end.index, messages))

    return [(gone, "tell_dropped", tell_dropped), (granting, "tell_dropped", tell_dropped)]


def _each_server_tells() -> list[Patch]:
    real = joining.Joining._takes_join

    def takes_join(self: Any, event: Any, effects: Any) -> bool:
        """What an earlier server has told is forgotten."""
        self._told = ()
        return real(self, event, effects)

    return [(joining.Joining, "_takes_join", takes_join)]


def _empty_means_all() -> list[Patch]:
    real = waiting_keys._list

    def listed(keyed: Any, event: Any, group_epoch: int) -> Any:
        """An empty key is no key."""
        return real(keyed, replace(event, name=None) if event.name == name_of_key(b"") else event, group_epoch)

    return [(waiting_keys, "_list", listed)]


def _mutation(rule: str, patches: Any, *breaks: str) -> Mutation:
    return Mutation(rule, patches, breaks, "crossings")


MUTATIONS: dict[str, Mutation] = {
    "lost-has-start": _mutation(
        "a lost segment of unknown length ends where retention began it", _lost_from_zero, "CORE"
    ),
    "table-behind-loss": _mutation(
        "a stub stays while readers behind a lost segment need its producer table", _table_goes_behind_a_loss,
        "RETAIN", "TABLE", "I9",
    ),
    "jump-tells-drop": _mutation(
        "a cursor that jumps over a lost segment still says what was dropped", _jump_forgets, "I1", "I13"
    ),
    "granted-and-gone": Mutation(
        "attempts on a granted message end when retention drops it", _attempts_of_granted, ("K5", "J2"), "keyed-gone"
    ),
    "first-is-named": Mutation(
        "a record names the message on which attempts were", _first_is_unnamed, ("K5", "J2"), "keyed-gone"
    ),
    "move-stays": _mutation(
        "an exclusive group is not served in an earlier group epoch than the disk knows", _moves_are_undone,
        "VOID", "I11", "I2", "I9",
    ),
    "gone-is-noted": _mutation(
        "what was dropped or declared lost is noted until a later message counts",
        lambda: [(granting, "_note_gone", nothing)], "I1", "I2", "I13",
    ),
    "dropped-behind-loss": _mutation(
        "a range goes over what was dropped behind a lost segment", _first_of_all, "I13"
    ),
    "place-is-no-drop": _mutation(
        "the chain record says how far messages are dropped, and not the cursor's place", _place_is_a_drop, "I1"
    ),
    "loss-hides-no-drop": _mutation(
        "consumers of a key-ordered group are told of a drop behind a lost segment", _loss_hides_drops, "I1", "I13"
    ),
    "gone-is-read": _mutation(
        "a member that requests dropped messages reads the record",
        lambda: [(copying, "read_if_older", nothing)], "I13",
    ),
    "new-mode-is-flagged": _mutation(
        "what consumers were given before a change of mode comes again flagged",
        lambda: [(operations, "_given_below", lambda *_: 0)], "K4", "I9",
    ),
    "new-mode-keeps-note": _mutation(
        "what is gone is told in the new mode too", lambda: [(operations, "_noted", lambda *_: (0, None))], "I1", "I13"
    ),
    "empty-is-a-key": _mutation("the empty key is a key, and does not mean every key", _empty_means_all, "J2"),
    "comer-is-told": _mutation(
        "each consumer that comes is told of the losses and drops that are noted", _comers_are_welcome, "I1", "I13"
    ),
    "forward-ends-with-message": _mutation(
        "the way of a message to the dead-letter topic ends when it is gone", _forward_stays, "J4", "CORE"
    ),
    "gone-lists-are-passed": _mutation(
        "lists pass what is gone, also of keys that wait", lambda: [(granting, "_pass_gone_lists", nothing)],
        "I13", "I1",
    ),
    "gone-has-no-attempts": _mutation(
        "an attempt on a message that was dropped counts nowhere", _attempt_counts_on, "K5", "J2"
    ),
    "loss-told-once": _mutation("a consumer is told of each lost message once", _losses_again, "TOLD"),
    "drops-told-once": _mutation("a consumer is told of each dropped message once", _drops_again, "TOLD"),
    "told-by-one-server": Mutation(
        "what one server has told is not told again when the next one tells it", _each_server_tells, ("TOLD",),
        "crossings", layer="client",
    ),
    "note-is-durable": _mutation("the note of a drop or a loss is on the disks", _note_in_memory, "I1", "I13"),
}  # fmt: skip
"""By name."""
