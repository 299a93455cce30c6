"""An older copy of a disk from within its run: it decides no length that another disk knows to be false."""

from __future__ import annotations

from seriatim_api.ids import MemberId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import trim
from seriatim_broker.core.values.log import DropSegment, PutBatch, PutSegment, RecoveredPartition, Truncate
from seriatim_broker.core.values.segment import SegmentState

from .support import (
    GROUPS,
    M00,
    M01,
    M10,
    M11,
    MS,
    SECOND,
    Bench,
    P,
    attempt,
    batches_of,
    checksum_of,
    fence_answer,
    first_chain,
    prepared,
    recovered,
    sealed_chain,
    segment_of,
    unsettled_chain,
)

BATCHES = batches_of(1, [1, 1, 1])
SECOND_US = Bench().config.second_member_us


def back(member: object = M00, *, stored: int = 3, commit: int = 2) -> Bench:
    """A member starts again; both have gone down."""
    found = RecoveredPartition(P, (recovered(1, BATCHES[:stored], commit=commit),), (prepared(1, (M00, M01)),))
    bench = Bench(M01 if member == M01 else M00, 2, (found,))
    for other in (M10, M11):
        bench.link(other)
    return bench


def notes(bench: Bench) -> list[str]:
    return [note.name for note in bench.all(fx.Note)]


# ---- a switch -------------------------------------------------------------------------------------------


def switching() -> Bench:
    """A broker of another group runs the switch of segment 1 and has asked its members."""
    bench = Bench(M10)
    for member in (M00, M01, M11):
        bench.link(member, run=2)
    bench.do(ev.ResolveProducer(1, P, 1, bench.now_us + 60_000 * MS))
    bench.read_chain(first_chain())
    bench.read_chain(first_chain())
    return bench


def answer(bench: Bench, member: object, length: int, commit: int, *, from_disk: bool = True) -> None:
    """A member is fenced, and says what it has."""
    (request,) = bench.sent(msg.FenceRequest, member)  # type: ignore[arg-type]
    told = fence_answer(1, request.switch, length, commit=commit)
    changed = {name: getattr(told, name) for name in told.__slots__} | {"from_disk": from_disk}
    bench.hear(member, msg.FenceAnswer(**changed))  # type: ignore[arg-type]


def test_a_length_below_what_another_member_knows_to_be_committed_is_not_believed() -> None:
    bench = switching()
    answer(bench, M00, 0, 0)
    answer(bench, M01, 3, 2)
    assert bench.part.switch is not None
    assert bench.part.switch.sealing.source == M01
    assert "older_disk" in notes(bench)


def test_disks_that_were_just_started_do_not_decide_before_the_second_had_its_time() -> None:
    bench = switching()
    answer(bench, M00, 0, 0)
    bench.wait(SECOND_US - 100 * MS, (M00, M01, M11))
    assert bench.part.switch is not None
    assert bench.part.switch.sealing.source is None
    bench.wait(200 * MS, (M00, M01, M11))
    assert bench.part.switch.sealing.source == M00


def test_a_member_that_ran_on_is_not_waited_for() -> None:
    bench = switching()
    answer(bench, M00, 3, 2, from_disk=False)
    bench.wait(bench.config.fence_wait_us + 1, (M00, M01, M11))
    assert bench.part.switch is not None
    assert bench.part.switch.sealing.source == M00


def test_a_fenced_member_says_whether_a_restart_found_its_log() -> None:
    bench = back()
    bench.read_chain(first_chain())
    bench.clear()
    bench.hear(M10, msg.FenceRequest(P, 1, attempt(1), b"switch"))
    bench.persist()
    (told,) = bench.sent(msg.FenceAnswer)
    assert told.from_disk


# ---- a settlement ---------------------------------------------------------------------------------------


def settling(member: object = M00, **options: int) -> Bench:
    bench = back(member, **options)
    bench.read_chain(unsettled_chain(first_chain()))
    bench.persist()
    return bench


def test_a_settler_waits_for_the_second_member() -> None:
    bench = settling(stored=2, commit=2)
    bench.wait(SECOND_US - 100 * MS, (M10, M11))
    assert not bench.all(fx.WriteChain)
    bench.wait(200 * MS, (M10, M11))
    assert segment_of(bench.all(fx.WriteChain)[-1].chain, 1).sealed_len == 2


def test_a_settler_that_hears_the_second_member_goes_on_at_once() -> None:
    bench = settling(stored=2, commit=2)
    bench.link(M01, run=2)
    bench.hear(M01, msg.SuspectTail(P, 1, 2, True, 2))
    assert segment_of(bench.all(fx.WriteChain)[-1].chain, 1).sealed_len == 2


def test_an_older_disk_leaves_the_length_to_the_one_that_knows_more() -> None:
    bench = settling(stored=0, commit=0)
    bench.link(M01, run=2)
    bench.hear(M01, msg.SuspectTail(P, 1, 3, True, 2))
    bench.wait(2 * SECOND_US, (M01, M10, M11))
    assert not bench.all(fx.WriteChain)
    assert "older_disk" in notes(bench)


def test_members_tell_each_other_what_they_know() -> None:
    bench = settling()
    bench.link(M01, run=2)
    told = bench.sent(msg.SuspectTail, M01)
    assert told[-1] == msg.SuspectTail(P, 1, 3, True, 2)


# ---- contradicted ---------------------------------------------------------------------------------------


def contradicted() -> Bench:
    """The chain says that segment 1 ends at 0, and this member knows that 2 are committed."""
    bench = back(M01)
    bench.read_chain(sealed_chain(first_chain(), 0, 0, server=M00, eligible=(M00,)))
    return bench


def test_a_contradicted_member_keeps_what_it_has_and_says_so() -> None:
    bench = contradicted()
    assert not bench.writes(Truncate)
    (kept,) = [write.segment for write in bench.writes(PutSegment) if write.segment.quarantined]
    assert kept.sealed_len is None
    assert "disk_contradicts_chain" in notes(bench)
    assert bench.core.quarantined == {(P, 1): 3}
    assert bench.part.logs[1].readable_below == 0


def test_nothing_is_copied_over_what_is_quarantined() -> None:
    bench = contradicted()
    bench.link(M00, run=2)
    bench.wait(5_000 * MS, (M00, M10, M11))
    assert not bench.sent(msg.CopyRequest)
    assert not bench.sent(msg.EligibleRequest)
    assert not bench.writes(PutBatch)
    assert bench.part.switch is None


def test_what_is_quarantined_stays_when_its_segment_leaves_the_record() -> None:
    bench = contradicted()
    assert bench.part.chain is not None
    bench.hear(M10, msg.ChainUpdate(trim(bench.part.chain, 2, None, 2), 200))
    assert bench.part.chain.segments[0].no == 2
    assert not bench.writes(DropSegment)
    assert bench.core.quarantined == {(P, 1): 3}
    assert bench.part.logs[1].tail == 3


def test_what_agrees_with_the_record_goes_with_its_segment() -> None:
    bench = back(M01)
    bench.read_chain(sealed_chain(first_chain(), 3, checksum_of(BATCHES), server=M00, eligible=(M00, M01)))
    assert bench.part.chain is not None
    bench.hear(M10, msg.ChainUpdate(trim(bench.part.chain, 2, None, 2), 200))
    assert [write.segment_no for write in bench.writes(DropSegment)] == [1]


def test_the_member_that_settles_serves_though_the_contradicted_one_was_the_server() -> None:
    before = unsettled_chain(first_chain((M01, M00)))
    assert segment_of(before, 1).server == M01
    assert segment_of(before, 1).eligible == (M01, M00)
    bench = back(M00, stored=0, commit=0)
    bench.read_chain(before)
    bench.persist()
    bench.wait(2 * SECOND_US, (M10, M11))
    settled = segment_of(bench.all(fx.WriteChain)[-1].chain, 1)
    assert (settled.sealed_len, settled.server, settled.eligible) == (0, M00, (M00,))


def test_the_next_start_goes_on_and_knows_it_still() -> None:
    first = contradicted()
    (kept,) = [write.segment for write in first.writes(PutSegment) if write.segment.quarantined]
    again = recovered(1, BATCHES, commit=2)
    found = RecoveredPartition(P, (type(again)(kept, *(getattr(again, name) for name in again.__slots__[1:])),))
    bench = Bench(M01, 3, (found,))
    bench.read_chain(sealed_chain(first_chain(), 0, 0, server=M00, eligible=(M00,)))
    assert bench.core.quarantined == {(P, 1): 3}
    assert not bench.writes(Truncate)


def test_a_length_at_or_above_the_commit_is_followed_as_ever() -> None:
    bench = back(M01)
    bench.read_chain(sealed_chain(first_chain(), 2, checksum_of(BATCHES[:2]), server=M00, eligible=(M00, M01)))
    assert bench.part.chain is not None
    assert segment_of(bench.part.chain, 1).state is SegmentState.SEALED
    assert bench.part.logs[1].record.sealed_len == 2
    assert not bench.core.quarantined


def test_a_longer_tail_on_a_disk_that_was_replaced_is_not_waited_for() -> None:
    bench = settling(stored=2, commit=2)
    bench.link(M01, run=2)
    bench.hear(M01, msg.SuspectTail(P, 1, 3, True, 2))
    bench.unlink(M01, refused=True)
    bench.do(ev.DirectoryChanged((("g0", (M00, MemberId("g0-1", "9" * 32))), *GROUPS[1:])))
    bench.wait(60 * SECOND, (M10, M11))
    assert bench.all(fx.WriteChain)
