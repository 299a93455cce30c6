"""Settling an UNSETTLED segment: who may, what must be on a second disk before, and what is written."""

from __future__ import annotations

from seriatim_api.ids import MemberId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import remove_eligible
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import PutSegment, PutTailCopy, RecoveredPartition, TailCopy, Truncate
from seriatim_broker.core.values.segment import SegmentState

from .support import (
    CONFLICT,
    GROUPS,
    M00,
    M01,
    M10,
    M11,
    M20,
    SECOND,
    Bench,
    P,
    batches_of,
    checksum_of,
    first_chain,
    opened_slave,
    prepared,
    recovered,
    replicate,
    segment_of,
    unsettled_chain,
)

BATCHES = batches_of(1, [1, 1, 1])
CHAIN = unsettled_chain(first_chain())


def returned(member: object = M01, commit: int = 1, *, flush: bool = True, suspect: bool = False) -> Bench:
    """A member of the unsettled segment comes back and learns what happened."""
    found = RecoveredPartition(P, (recovered(1, BATCHES, commit=commit, flush=flush),), (prepared(1, (M00, M01)),))
    config = BrokerConfig(second_member_us=0)
    bench = Bench(M01 if member == M01 else M00, 2, (found,), suspect=suspect, config=config)
    bench.link(M10)
    bench.link(M11)
    bench.read_chain(CHAIN)
    return bench


def stored(bench: Bench, member: object) -> None:
    """A member says that it has the tail on its disk."""
    request = bench.sent(msg.StoreTail, member)[-1]  # type: ignore[arg-type]
    bench.hear(member, msg.TailStored(P, 1, request.settle))  # type: ignore[arg-type]


def test_the_tail_is_on_a_second_disk_before_the_segment_is_settled() -> None:
    bench = returned()
    bench.persist()
    requests = bench.sent(msg.StoreTail)
    assert all(request.tail == TailCopy(1, 1, 3, BATCHES[1:]) for request in requests)
    assert {effect.broker for effect in bench.all(fx.Send) if isinstance(effect.message, msg.StoreTail)} == {
        M10.broker,
        M11.broker,
    }
    assert not bench.all(fx.WriteChain)
    stored(bench, M11)
    (write,) = bench.all(fx.WriteChain)
    settled = segment_of(write.chain, 1)
    assert (settled.state, settled.sealed_len, settled.sealed_checksum) == (
        SegmentState.SEALED,
        3,
        checksum_of(BATCHES),
    )
    assert (settled.tail_from, settled.tail_copies) == (1, (M11,))
    assert (settled.server, settled.eligible) == (M01, (M01,))
    assert segment_of(write.chain, 2).base == 3


def test_what_was_all_committed_needs_no_second_copy() -> None:
    bench = returned(commit=3)
    bench.persist()
    assert not bench.sent(msg.StoreTail)
    assert segment_of(bench.all(fx.WriteChain)[0].chain, 1).sealed_len == 3


def test_the_settler_is_fenced_durably_first() -> None:
    bench = opened_slave()
    replicate(bench, BATCHES, commit=3)
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(CHAIN, 102))
    assert bench.writes(PutSegment)[-1].segment.fenced
    assert not bench.all(fx.WriteChain)
    bench.persist()
    assert bench.all(fx.WriteChain)


def test_an_answer_to_another_settlement_does_not_count() -> None:
    bench = returned()
    bench.persist()
    bench.hear(M10, msg.TailStored(P, 1, b"x" * 16))
    assert not bench.all(fx.WriteChain)


def test_the_tail_is_offered_again_until_somebody_has_it() -> None:
    bench = returned()
    bench.persist()
    bench.clear()
    bench.wait(SECOND, (M10, M11))
    assert len(bench.sent(msg.StoreTail, M10)) > 1
    bench.unlink(M10)
    bench.clear()
    bench.link(M10)
    assert bench.sent(msg.StoreTail, M10)


def test_a_suspect_does_not_settle_where_the_topic_does_not_flush() -> None:
    bench = returned(flush=False, suspect=True)
    bench.persist()
    bench.wait(SECOND, (M10, M11))
    assert not bench.sent(msg.StoreTail)
    assert not bench.all(fx.WriteChain)


def test_if_all_members_are_suspects_the_longest_tail_settles() -> None:
    longer = returned(flush=False, suspect=True)
    longer.persist()
    longer.link(M00)
    assert longer.sent(msg.SuspectTail, M00)[-1] == msg.SuspectTail(P, 1, 3)
    longer.hear(M00, msg.SuspectTail(P, 1, 2))
    assert [note.name for note in longer.all(fx.Note)].count("settled_by_suspect") == 0, "first a second disk"
    stored(longer, M10)
    (write,) = longer.all(fx.WriteChain)
    assert segment_of(write.chain, 1).sealed_len == 3
    assert [note.name for note in longer.all(fx.Note)].count("settled_by_suspect") == 1


def test_a_suspect_with_a_shorter_tail_leaves_it_to_the_other() -> None:
    shorter = returned(flush=False, suspect=True)
    shorter.persist()
    shorter.hear(M10, msg.SuspectTail(P, 1, 9))
    shorter.link(M00)
    shorter.hear(M00, msg.SuspectTail(P, 1, 4))
    shorter.wait(SECOND, (M10, M11))
    assert not shorter.sent(msg.StoreTail)
    assert not shorter.all(fx.WriteChain)


def test_what_a_replaced_disk_said_before_is_not_waited_for_either() -> None:
    shorter = returned(flush=False, suspect=True)
    shorter.persist()
    shorter.link(M00)
    shorter.hear(M00, msg.SuspectTail(P, 1, 9))
    assert not shorter.sent(msg.StoreTail), "the longer one settles"
    shorter.unlink(M00)
    shorter.do(ev.DirectoryChanged((("g0", (MemberId(M00.broker, "another disk"), M01)), *GROUPS[1:])))
    stored(shorter, M10)
    (write,) = shorter.all(fx.WriteChain)
    assert segment_of(write.chain, 1).sealed_len == 3


def test_of_equal_tails_one_settles() -> None:
    settlers = []
    for mine, other in ((M00, M01), (M01, M00)):
        bench = returned(mine, flush=False, suspect=True)
        bench.persist()
        bench.link(other)
        bench.hear(other, msg.SuspectTail(P, 1, 3))
        settlers.append(bool(bench.sent(msg.StoreTail)))
    assert settlers == [True, False]


def test_a_suspect_that_was_not_listening_is_told_again_and_both_end() -> None:
    bench = returned(flush=False, suspect=True)
    bench.persist()
    bench.link(M00)
    assert len(bench.sent(msg.SuspectTail, M00)) == 1
    bench.hear(M00, msg.SuspectTail(P, 1, 4))
    assert len(bench.sent(msg.SuspectTail, M00)) == 2, "it may have dropped the first"
    bench.hear(M00, msg.SuspectTail(P, 1, 4))
    assert len(bench.sent(msg.SuspectTail, M00)) == 2, "no answer to an answer"
    bench.unlink(M00)
    bench.link(M00)  # restarted, perhaps, and it drops what it hears before it has read the chain record
    assert len(bench.sent(msg.SuspectTail, M00)) == 3
    bench.hear(M00, msg.SuspectTail(P, 1, 4))
    assert len(bench.sent(msg.SuspectTail, M00)) == 4


def test_a_member_that_is_no_suspect_listens_to_none() -> None:
    bench = returned(flush=False)
    bench.link(M00)
    bench.hear(M00, msg.SuspectTail(P, 1, 9))
    bench.persist()
    stored(bench, M10)
    assert segment_of(bench.all(fx.WriteChain)[0].chain, 1).sealed_len == 3


def test_a_suspect_settles_where_the_topic_flushes() -> None:
    bench = returned(suspect=True)
    bench.persist()
    assert bench.sent(msg.StoreTail)


def test_whoever_is_not_a_member_settles_nothing() -> None:
    bench = Bench(M10)
    bench.link(M11)
    bench.read_chain(CHAIN)
    bench.persist()
    assert not bench.all(fx.WriteChain)


def test_the_loser_of_a_settlement_follows_and_cuts() -> None:
    bench = returned()
    bench.persist()
    stored(bench, M10)
    winner = segment_of(bench.all(fx.WriteChain)[0].chain, 1)
    bench.written(CONFLICT)
    from dataclasses import replace

    chain = bench.all(fx.WriteChain)[0].chain
    other = replace(
        winner, sealed_len=2, sealed_checksum=checksum_of(BATCHES[:2]), server=M00, eligible=(M00,), tail_copies=()
    )
    bench.read_chain(replace(chain, segments=(other, replace(chain.segments[1], base=2))))
    assert [cut.length for cut in bench.writes(Truncate)] == [2]
    assert not bench.part.settling


def test_a_lost_settlement_is_tried_again() -> None:
    bench = returned()
    bench.persist()
    stored(bench, M10)
    bench.written(CONFLICT)
    bench.read_chain(CHAIN)
    bench.clear()
    bench.wait(SECOND, (M10, M11))
    assert bench.all(fx.WriteChain)


def test_a_settler_that_is_not_eligible_leaves_the_serving_right_alone() -> None:
    found = RecoveredPartition(P, (recovered(1, BATCHES, commit=3),), (prepared(1, (M00, M01)),))
    bench = Bench(M01, 2, (found,), config=BrokerConfig(second_member_us=0))
    bench.link(M10)
    bench.read_chain(remove_eligible(CHAIN, 1, [M01]))
    bench.persist()
    settled = segment_of(bench.all(fx.WriteChain)[0].chain, 1)
    assert (settled.server, settled.eligible) == (M00, (M00,))


def test_a_stored_tail_is_confirmed_when_it_is_durable_and_another_ones_is_kept_too() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.link(M01)
    bench.hear(M01, msg.StoreTail(P, b"x" * 16, TailCopy(1, 0, 2, BATCHES[:2])))
    assert not bench.sent(msg.TailStored)
    bench.persist()
    assert bench.sent(msg.TailStored, M01)
    bench.hear(M00, msg.StoreTail(P, b"y" * 16, TailCopy(1, 1, 3, BATCHES[1:])))
    kept = bench.writes(PutTailCopy)[-1].tail
    assert (kept.from_index, kept.length, kept.batches) == (0, 3, BATCHES)


def test_two_tails_that_do_not_touch_are_kept_beside_each_other() -> None:
    """A disk that lost what it had flushed has a tail that ends below where the other one's begins."""
    batches = batches_of(1, [1] * 6)
    bench = Bench(M10)
    bench.link(M00)
    bench.link(M01)
    for _ in range(2):  # sent again after a lost answer, it is no news
        bench.hear(M00, msg.StoreTail(P, b"x" * 16, TailCopy(1, 4, 6, batches[4:])))
        bench.hear(M01, msg.StoreTail(P, b"y" * 16, TailCopy(1, 2, 3, batches[2:3])))
        bench.persist()
    assert len(bench.sent(msg.TailStored)) == 4
    kept = {write.place: write.tail for write in bench.writes(PutTailCopy)}
    assert {place: (tail.from_index, tail.length) for place, tail in kept.items()} == {0: (4, 6), 1: (2, 3)}
    assert len(bench.writes(PutTailCopy)) == 2
    restarted = Bench(M10, 2, (RecoveredPartition(P, (), (), tuple(kept.values())),))
    restarted.link(M20)
    for member in (bench, restarted):
        member.link(M20)
        for first in (2, 4):
            member.clear()
            member.hear(M20, msg.CopyRequest(P, 1, first, 1 << 20, want_table=False))
            (answer,) = member.sent(msg.CopyAnswer, M20)
            assert answer.available
            assert answer.batches[0] == batches[first]
