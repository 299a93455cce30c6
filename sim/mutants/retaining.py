# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of retention: what may be dropped, in which order, and which readers must be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim_broker.core.consumers import crossing, delivery, serving
from seriatim_broker.core.consumers.consumer_group import consumer_group_of
from seriatim_broker.core.control import retention
from seriatim_broker.core.copies import copying
from seriatim_broker.core.dispatch import learning
from seriatim_broker.core.state.ledger import Ledger
from seriatim_broker.core.state.segment_log import SegmentLog
from seriatim_broker.core.values.events import CursorRecord, PassConsumerGroup, Trim
from seriatim_broker.core.values.log import SafeCursor
from seriatim_broker.core.values.segment import AT_ZERO

from .mutation import Mutation, Patch, nothing, with_event


def _disk_before_record() -> list[Patch]:
    real = retention.trim

    def trim(broker: Any, of: Any, event: Any) -> None:
        """What was decided is dropped here at once, and the record is written after it."""
        log = of.open_log()
        if event.start is not None and log is not None and log.no == event.no and event.start.first > log.start:
            log.trim(broker, event.start)
        real(broker, of, event)

    return [with_event(Trim, trim)]


def _cursors_not_compared() -> list[Patch]:
    real = retention.trim

    def trim(broker: Any, of: Any, event: Any) -> None:
        """A cursor that was written since it was read makes no difference."""
        real(broker, of, replace(event, cursors_revision=0))

    return [with_event(Trim, trim)]


def _stub_leaves() -> list[Patch]:
    real = retention.first_kept
    return [(retention, "first_kept", lambda chain, no, readers: real(chain, no, ()))]


def _tables_leave() -> list[Patch]:
    def first_kept(_chain: Any, no: int, readers: Any) -> Any:
        """Only cursors keep a stub."""
        return min((no, *(reader.segment_no for reader in readers)))

    return [(retention, "first_kept", first_kept)]


def _drops_in_silence() -> list[Patch]:
    def tell(_broker: Any, _of: Any, consumer_group: Any, to_index: int) -> None:
        """The group goes on behind what was dropped, and says nothing."""
        consumer_group.dispatcher.delivered = to_index

    return [(delivery, "tell_dropped", tell)]


def _untold_is_forgotten() -> list[Patch]:
    return [(crossing, "_untold", lambda _of, _consumer_group: (0, 0))]


def _untold_is_not_taken_up() -> list[Patch]:
    return [(Ledger, "take_up_dropped", nothing)]


def _anybody_passes() -> list[Patch]:
    def pass_consumer_group(broker: Any, of: Any, event: Any) -> None:
        """Any member that finds the consumer group in a stub writes its cursor."""
        chain = of.chain
        segment = chain.segment(event.segment_no) if chain is not None else None
        following = chain.after(event.segment_no) if chain is not None else None
        if segment is None or following is None or not segment.is_stub:
            return
        consumer_group = consumer_group_of(broker, of, event.consumer_group)
        known = of.cursor_in(segment.no, event.consumer_group)
        epoch = known.group_epoch if known is not None else 1
        record = CursorRecord(following.no, epoch, 0, chain.topic, dropped_from=segment.no << 40, dropped_position=0)
        revision = broker.now.mono_us  # of no cursor: what was read is not known
        crossing.write_cursor(broker, of, consumer_group, record, consumer_group.cursor_revision or revision)

    return [(serving, "pass_consumer_group", pass_consumer_group), with_event(PassConsumerGroup, pass_consumer_group)]


def _copy_begins_at_zero() -> list[Patch]:
    real = copying._begin_log

    def begin(broker: Any, of: Any, segment: Any) -> Any:
        """A new copy is made of all that there was."""
        return real(broker, of, replace(segment, begin=AT_ZERO))

    return [(copying, "_begin_log", begin), (learning, "_trim", _trims_what_is_whole(learning._trim))]


def _trims_what_is_whole(real: Any) -> Any:
    def trim(broker: Any, of: Any, segment: Any) -> None:
        log = of.logs.get(segment.no)
        if log is not None and log.tail >= segment.start:
            real(broker, of, segment)

    return trim


def _begun_is_durable() -> list[Patch]:
    real = SegmentLog._begin_at
    begin_log = copying._begin_log

    def begin_at(self: SegmentLog, broker: Any, start: Any) -> None:
        real(self, broker, start)
        self.durable = self.tail

    def begin(broker: Any, of: Any, segment: Any) -> Any:
        log = begin_log(broker, of, segment)
        log.durable = log.tail
        return log

    return [(SegmentLog, "_begin_at", begin_at), (copying, "_begin_log", begin)]


def _memory_counts() -> list[Patch]:
    def safe(partition: Any) -> tuple[tuple[str, SafeCursor], ...]:
        """What this member has in memory counts, also while its write is under way."""
        known = partition.cursors.values()
        return tuple((c.consumer_group, SafeCursor(c.group_epoch, c.segment_no, c.acked, c.oldest)) for c in known)

    return [(retention, "_safe", safe)]


MUTATIONS: dict[str, Mutation] = {
    "disk-before-record": Mutation(
        "the record says what is dropped before a disk drops it", _disk_before_record, ("I1", "I2", "I5", "CORE"),
        "retention",
    ),
    "cursors-not-compared": Mutation(
        "the transaction compares that no cursor changed", _cursors_not_compared, ("RETAIN", "I1", "I3"), "retention"
    ),
    "stub-leaves": Mutation(
        "a stub stays in the record while a cursor is in it", _stub_leaves, ("RETAIN",), "retention"
    ),
    "tables-leave": Mutation(
        "a stub stays in the record while readers need its producer table", _tables_leave, ("RETAIN", "I9"), "retention"
    ),
    "drops-in-silence": Mutation("readers are told what was dropped", _drops_in_silence, ("I1", "I2"), "retention"),
    "untold-is-forgotten": Mutation(
        "a cursor that passes a stub says what its readers were not told", _untold_is_forgotten, ("I8", "I1"),
        "retention",
    ),
    "untold-not-taken-up": Mutation(
        "a new server tells consumers what the cursor says was dropped", _untold_is_not_taken_up,
        ("I1", "I2", "I8", "I13"), "crossings",
    ),
    "anybody-passes": Mutation(
        "only its server moves a consumer group past a stub", _anybody_passes,
        ("I3", "I8", "I11", "I2", "I1", "I13"), "retention",
    ),
    "copy-begins-at-zero": Mutation(
        "a copy begins at the start of the segment", _copy_begins_at_zero, ("I13", "CORE"), "retention"
    ),
    "durable-floor": Mutation(
        "retention takes for read what is durable on every eligible member", _memory_counts, ("RETAIN",), "unread-kept",
        world="brokers", batch_count=150,
    ),
    "begun-is-durable": Mutation(
        "a copy counts only when its beginning is on the disk", _begun_is_durable, ("COPY", "I14", "I12"),
        "stubs-copied",
    ),
}  # fmt: skip
