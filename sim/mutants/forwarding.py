# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Bugs in dead letters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim_broker.core.consumers import consumer_group, crossing, forwarding, granting
from seriatim_broker.core.dispatch import handlers
from seriatim_broker.core.state import keyed, keyed_rows
from seriatim_broker.core.state.keyed import FORWARDS_MAX, Key, KeyedDispatcher
from seriatim_broker.core.values.events import ForwardsDone
from seriatim_broker.core.values.keyed import KeyPhase
from seriatim_broker.core.values.ledger_rows import write_forwarder
from seriatim_broker.core.values.positions import end_of_gone
from seriatim_broker.core.values.segment import SegmentState

from .mutation import Mutation, Patch

J4 = ("J4", "K1", "K2", "I1", "I9", "I12", "I13", "CORE")
"""What a bug about dead letters may break first."""


def _granted_too() -> list[Patch]:
    real = forwarding._send

    def send(broker: Any, partition: Any, consumer_group: Any, keyed: KeyedDispatcher) -> None:
        """When a dead letter is on its way, its key goes on with the same message."""
        real(broker, partition, consumer_group, keyed)
        for name, _number in keyed.sent:
            key = keyed.keys.get(name)
            if key is not None:
                keyed.queue(key)

    held = property(lambda key: key.phase is KeyPhase.PARKED)
    return [(forwarding, "_send", send), (Key, "is_held", held)]


def _sent_at_once() -> list[Patch]:
    def ready(_consumer_group: Any, keyed: KeyedDispatcher) -> list[Any]:
        """A dead letter is sent as soon as it has a number."""
        numbered = [one for one in keyed.forwards.values() if one.number and one.row is not None]
        return sorted(numbered, key=lambda one: one.number)

    return [(forwarding, "_ready", ready)]


def _left_out() -> list[Patch]:
    def ready(consumer_group: Any, keyed: KeyedDispatcher) -> list[Any]:
        """What is not read yet is left out."""
        numbered = [
            one
            for one in keyed.forwards.values()
            if one.number
            and one.row is not None
            and keyed.is_common
            and one.written not in consumer_group.ledger.replications
        ]
        return sorted(numbered, key=lambda one: one.number)[-1:]

    return [(forwarding, "_ready", ready)]


def _passed_unanswered() -> list[Patch]:
    real = forwarding.on_done

    def on_done(broker: Any, partition: Any, event: ForwardsDone) -> None:
        """What was sent is passed, whatever the answer is."""
        real(broker, partition, replace(event, stored_count=FORWARDS_MAX))

    return [(forwarding, "on_done", on_done)]


def _numbers_without_term() -> list[Patch]:
    real = keyed_rows.rows_to_hand_over

    def rows_to_hand_over(dispatcher: KeyedDispatcher, known: Any, now: Any) -> Any:
        """The next number is handed over."""
        rows, oldest = real(dispatcher, known, now)
        return [*rows, write_forwarder(dispatcher.next_number)], oldest

    def first_number(_term: int) -> int:
        """All terms of a group epoch count together."""
        return 1

    return [(keyed_rows, "rows_to_hand_over", rows_to_hand_over), (keyed, "first_number", first_number)]


def _forgotten_dirty() -> list[Patch]:
    real = consumer_group.forget_if_unused

    def forget_if_unused(partition: Any, known: Any) -> None:
        """A change that is not on any disk yet keeps no consumer group here."""
        was_dirty, known.ledger.dirty = known.ledger.dirty, False
        real(partition, known)
        known.ledger.dirty = was_dirty

    return [(handlers, "forget_if_unused", forget_if_unused)]


def _mutation(rule: str, patches: Any) -> Mutation:
    return Mutation(rule, patches, J4, "dead-letters")


def _losses_untold() -> list[Patch]:
    real = granting._note_gone

    def note_gone(broker: Any, of: Any, consumer_group: Any, offset: int) -> None:
        """What was declared lost is told to the consumers that are here, and to no others."""
        if not end_of_gone(of.chain, offset)[1]:
            real(broker, of, consumer_group, offset)

    return [(granting, "_note_gone", note_gone)]


def _oldest_only() -> list[Patch]:
    """Only the oldest message in any list is looked at."""
    return [(KeyedDispatcher, "lists_in", lambda *_: [])]


def _jumps_unnoted() -> list[Patch]:
    real = crossing._untold

    def untold(of: Any, consumer_group: Any) -> tuple[int, int]:
        """A cursor that leaves a lost segment does not say what was lost there."""
        segment = of.chain.segment(consumer_group.segment_no)
        if segment is not None and segment.state is SegmentState.LOST:
            return consumer_group.ledger.dropped_from, consumer_group.ledger.dropped_position
        return real(of, consumer_group)

    return [(crossing, "_untold", untold)]


MUTATIONS: dict[str, Mutation] = {
    "forwarding-ends-once": _mutation("a message that has a forwarder's number ends in no other way", _granted_too),
    "numbered-is-durable": _mutation(
        "a dead letter is sent only when its number is durable on every eligible member", _sent_at_once
    ),
    "in-order-of-numbers": _mutation("dead letters are sent in the order of their numbers, without gaps", _left_out),
    "passed-is-stored": _mutation("a message is passed only when its dead letter is stored", _passed_unanswered),
    "numbers-have-a-term": Mutation(
        "each term of a forwarder counts on its own", _numbers_without_term, J4, "letters-restored"
    ),
    "lost-is-noted": Mutation(
        "what is declared lost is noted for consumers that come later", _losses_untold, J4, "letters-lost"
    ),
    "lost-behind-others": Mutation(
        "lists in a lost segment are passed, also behind older ones", _oldest_only, J4, "letters-lost"
    ),
    "jump-is-noted": Mutation(
        "a cursor that leaves a lost segment says what was lost", _jumps_unnoted, J4, "letters-lost"
    ),
    "dirty-stays": _mutation("a server writes what it changed before it forgets a consumer group", _forgotten_dirty),
}
"""By name."""
