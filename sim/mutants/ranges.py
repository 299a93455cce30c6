# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of the core about reading ranges: what is read, from which member, and where the end is."""

from __future__ import annotations

from typing import Any

from seriatim_broker.core.consumers import ranges
from seriatim_broker.core.state.consumers import RecordRead
from seriatim_broker.core.values.effects import PartitionSurveyed, RangeSegmentEnd
from seriatim_broker.core.values.positions import Place
from seriatim_broker.core.values.producers import ProducerTable
from seriatim_broker.core.values.segment import SegmentState

from .mutation import Mutation, Patch


def _above_commit() -> list[Patch]:
    real = ranges._readable_below

    def readable_below(of: Any, segment: Any) -> int | None:
        """All of an open segment that is here may be read."""
        log = of.logs.get(segment.no)
        return log.tail if log is not None and log.record.sealed_len is None else real(of, segment)

    return [(ranges, "_readable_below", readable_below)]


def _any_member_tells_the_end() -> list[Patch]:
    def tell(broker: Any, of: Any, event: Any) -> None:
        """The commit that any member knows is the end."""
        segment = of.chain.segment(event.segment_no or of.chain.open_segment.no)
        readable = ranges._readable_below(of, segment) if segment is not None else None
        broker.out.emit(PartitionSurveyed(event.request, of.chain, readable or 0, True, None))

    return [(ranges, "_tell", tell)]


def _nothing_is_the_end() -> list[Patch]:
    real = ranges._answer

    def answer(broker: Any, of: Any, wait: Any, **told: Any) -> None:
        """What is not here, or cannot be read now, is taken for the end of the range."""
        if told.get("brokers") and told.get("error") is None:
            told = {"is_done": True}
        real(broker, of, wait, **told)

    return [(ranges, "_answer", answer)]


def _repeats_are_given() -> list[Patch]:
    real = ranges._events
    return [(ranges, "_events", lambda no, batches, _, *, is_raw: real(no, batches, ProducerTable(), is_raw=is_raw))]


def _parts_are_whole() -> list[Patch]:
    real_advance, real_readable = ranges._advance, ranges._readable_below

    def readable_below(of: Any, segment: Any) -> int | None:
        """A copy under way is read as far as it is."""
        log = of.logs.get(segment.no)
        is_part = log is not None and log.record.sealed_len is not None and not log.is_whole
        return log.tail if is_part else real_readable(of, segment)

    def advance(broker: Any, of: Any, wait: Any) -> None:
        """Its tail is the segment's end."""
        segment, log = of.chain.segment(wait.place.segment_no), of.logs.get(wait.place.segment_no)
        is_sealed = segment is not None and segment.state is SegmentState.SEALED
        if (
            is_sealed
            and log is not None
            and log.tail
            and wait.place.index == log.tail
            and wait.place < wait.event.until
        ):
            end = RangeSegmentEnd(segment.no, log.tail, log.tail_checksum)
            wait = wait._replace(place=Place(segment.no + 1, 0), passed=(*wait.passed, end))
        real_advance(broker, of, wait)

    return [(ranges, "_readable_below", readable_below), (ranges, "_advance", advance)]


def _refused_by_what_is_known() -> list[Patch]:
    real = ranges._refuse

    def refuse(broker: Any, of: Any, wait: Any, chain: Any) -> None:
        """The record that is known here says where the partition ends."""
        real(broker, of, wait._replace(record=RecordRead.DONE), chain)

    return [(ranges, "_refuse", refuse)]


def _refused_by_the_readers_epoch() -> list[Patch]:
    real = ranges._refuse

    def refuse(broker: Any, of: Any, wait: Any, chain: Any) -> None:
        """A record that is as new as the one that the reader has seen need not be read again."""
        known = 0 < wait.event.epoch <= chain.epoch
        real(broker, of, wait._replace(record=RecordRead.DONE) if known else wait, chain)

    return [(ranges, "_refuse", refuse)]


MUTATIONS: dict[str, Mutation] = {
    "range-above-commit": Mutation(
        "a range read ends below the commit", _above_commit, ("RANGE", "I2", "I5", "I6", "I9", "I10", "I12"), "ranges"
    ),
    "range-end-by-any": Mutation(
        "only the master of the open segment says where the partition ends",
        _any_member_tells_the_end,
        ("RANGE",),
        "ranges",
    ),
    "range-nothing-is-end": Mutation(
        "a range does not end where a member lacks messages", _nothing_is_the_end, ("RANGE",), "ranges"
    ),
    "range-repeats": Mutation(
        "a range read skips a batch that is earlier in the order already", _repeats_are_given, ("I9",), "ranges"
    ),
    "refusal-reads-first": Mutation(
        "a range is refused only by a record that was read since the reader asked",
        _refused_by_what_is_known,
        ("RANGE",),
        "ranges-left-behind",
    ),
    "refusal-reads-anew": Mutation(
        "a range is not refused by a record only because it is as new as the one that the reader has seen",
        _refused_by_the_readers_epoch,
        ("RANGE",),
        "ranges-left-behind",
    ),
    "range-parts": Mutation("ranges are read from whole copies", _parts_are_whole, ("RANGE", "I2", "I3"), "ranges"),
}
"""By name."""
