"""Declared gaps: who may, what is written, and what groups see of it."""

from __future__ import annotations

import pytest
from seriatim_api.errors import BadRequestError, PreconditionError, SeriatimError, UnavailableError, UnknownTopicError
from seriatim_api.ids import make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, declare_lost, trim
from seriatim_broker.core.values.segment import SegmentState, Start

from .support import (
    CONFLICT,
    GROUP,
    M00,
    M10,
    M11,
    M20,
    M21,
    STREAM,
    TOPIC,
    Bench,
    P,
    first_chain,
    sealed_chain,
    segment_of,
    unsettled_chain,
)

UNSETTLED = unsettled_chain(first_chain())
SEALED = sealed_chain(first_chain(), 3, 77)


def declared(chain: Chain | None, no: int = 1, member: object = M20) -> Bench:
    """A broker is asked, and has read the record."""
    bench = Bench(member)  # type: ignore[arg-type]
    bench.do(ev.DeclareGap(5, P, no))
    assert not bench.all(fx.WriteChain), "what is known here may be old"
    bench.read_chain(chain)
    return bench


def answer(bench: Bench) -> SeriatimError | None:
    (resolved,) = [effect for effect in bench.all(fx.Resolved) if effect.request == 5]
    return resolved.error


BEGUN = unsettled_chain(trim(first_chain(), 1, Start(2, 7, 100), 1))
"""Retention dropped two messages before the segment became unsettled."""


@pytest.mark.parametrize(
    ("chain", "length"), [(UNSETTLED, 0), (SEALED, 3), (BEGUN, 2)], ids=["unsettled", "sealed", "unsettled and dropped"]
)
def test_the_segment_is_lost_and_what_is_behind_has_positions(chain: Chain, length: int) -> None:
    bench = declared(chain)
    (write,) = bench.all(fx.WriteChain)
    lost = segment_of(write.chain, 1)
    assert (lost.state, lost.sealed_len) == (SegmentState.LOST, length)
    assert segment_of(write.chain, 2).base == length
    assert not bench.all(fx.Resolved)
    bench.written()
    assert answer(bench) is None
    assert [note.name for note in bench.all(fx.Note)] == ["gap_declared"]


def test_a_member_that_runs_may_have_the_segment() -> None:
    bench = Bench(M20)
    bench.link(M00)
    bench.do(ev.DeclareGap(5, P, 1))
    bench.read_chain(SEALED)
    assert isinstance(answer(bench), PreconditionError)
    assert not bench.all(fx.WriteChain)


def test_a_member_does_not_declare_its_own_disk_lost() -> None:
    assert isinstance(answer(declared(SEALED, member=M00)), PreconditionError)


def test_only_segments_that_are_over_are_lost() -> None:
    assert isinstance(answer(declared(SEALED, no=2)), PreconditionError)
    assert isinstance(answer(declared(SEALED, no=9)), BadRequestError)
    assert isinstance(answer(declared(None)), UnknownTopicError)


def test_to_declare_it_twice_is_no_error() -> None:
    assert answer(declared(declare_lost(UNSETTLED, 1))) is None


def test_who_lost_the_transaction_is_told_to_ask_again() -> None:
    bench = declared(UNSETTLED)
    bench.written(CONFLICT)
    assert isinstance(answer(bench), UnavailableError)
    assert P not in bench.core.partitions or not bench.part.gaps


def test_a_group_in_a_lost_segment_goes_on_behind_it_in_a_new_epoch() -> None:
    bench = Bench(M20)
    bench.read_chain(None)
    bench.do(ev.ResolveConsumer(6, P, GROUP, None, ev.StartPosition.EARLIEST, bench.now_us + 10**6))
    bench.read_chain(declare_lost(UNSETTLED, 1))
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(1, 4, 0, TOPIC), 9, False))
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.segment_no, write.record.group_epoch) == (2, 5)


def test_a_drop_before_a_lost_segment_is_told_behind_it() -> None:
    """Rule `jump-tells-drop`."""
    bench = Bench(M20)
    bench.read_chain(None)
    bench.do(ev.ResolveConsumer(6, P, GROUP, None, ev.StartPosition.EARLIEST, bench.now_us + 10**6))
    bench.read_chain(declare_lost(UNSETTLED, 1))
    dropped = make_offset(1, 0)
    bench.do(
        ev.CursorRead(P, GROUP, ev.CursorRecord(1, 4, 3, TOPIC, dropped_from=dropped, dropped_position=0), 9, False)
    )
    (write,) = bench.all(fx.WriteCursor)
    assert (write.record.segment_no, write.record.dropped_from) == (2, dropped)


def test_a_consumer_of_the_segment_behind_is_told_of_the_gap() -> None:
    bench = Bench(M10)
    bench.link(M20)
    bench.link(M11)
    bench.prepare(2, (M10, M11), M20, incomplete=True)
    bench.open(UNSETTLED)
    bench.hear(M20, msg.ChainUpdate(declare_lost(UNSETTLED, 1), 200))
    bench.do(ev.ConsumerJoin(STREAM, 1, P, GROUP, "reader", ev.StartPosition.EARLIEST, False))
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(2, 5, 0, TOPIC), 9))
    events = [effect.event for effect in bench.all(fx.Deliver)]
    assert isinstance(events[0], fx.Joined)
    assert events[1] == fx.Gap(1, 0, "declared lost")


def test_a_consumer_is_told_of_a_gap_that_lies_behind_empty_segments() -> None:
    """Their servers may have crossed them before they knew the record."""
    chain = sealed_chain(declare_lost(unsettled_chain(first_chain(), members=(M20, M21)), 1), 0, 0, members=(M10, M11))
    bench = Bench(M10)
    bench.link(M20)
    bench.link(M11)
    bench.prepare(3, (M10, M11), M20, incomplete=True)
    bench.open(chain)
    bench.do(ev.ConsumerJoin(STREAM, 1, P, GROUP, "reader", ev.StartPosition.EARLIEST, False))
    bench.do(ev.CursorRead(P, GROUP, ev.CursorRecord(3, 5, 0, TOPIC), 9))
    assert bench.delivered(fx.Gap) == [fx.Gap(1, 0, "declared lost")]
