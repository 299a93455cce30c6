"""A coordinator that has lost decisions: who notices, what stops, what continues when it has them again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.errors import CoordinatorBehindError, NotServingError
from seriatim_broker.core.peers import lost_decisions
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.log import PutChain, PutSegment, RecoveredPartition

from .support import (
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    SECOND,
    Bench,
    P,
    fence_answer,
    first_chain,
    opened_master,
    sealed_chain,
)
from .test_switch import asked_to_prepare, fenced, planner, prepare_answers, rested, switcher


def second_chain() -> Chain:
    """The first segment is sealed, empty, and the second is open on the second group."""
    return sealed_chain(first_chain(), 0, 0)


def is_behind(bench: Bench) -> bool:
    return bool(bench.core.state.coordinator.behind)


def ahead() -> Bench:
    """A master of the second segment; the coordinator is asked for the record again."""
    bench = Bench(M10)
    bench.link(M11)
    bench.open(second_chain())
    bench.read_chain(second_chain())
    bench.follow(M11, 2)
    bench.clear()
    bench.do(ev.CompareChains())
    assert bench.all(fx.ReadChain) == [fx.ReadChain(P, known=True)]
    return bench


@pytest.mark.parametrize("found", [None, first_chain()])
def test_a_record_that_went_back_stops_everything(found: Chain | None) -> None:
    bench = ahead()
    bench.do(ev.ChainRead(P, found, 3))
    assert is_behind(bench)
    assert bench.writes(PutSegment)[-1].segment.fenced, "nothing is accepted any more"
    assert [note.name for note in bench.all(fx.Note)] == ["coordinator_behind"]
    bench.persist()
    bench.clear()
    bench.append(0, starts=True)
    assert bench.refused()
    bench.do(ev.PlanSwitch(9, P))
    (answer,) = bench.all(fx.Resolved)
    assert isinstance(answer.error, CoordinatorBehindError)
    bench.wait(2 * SECOND, (M11,))
    assert bench.all(fx.ReadChain), "it looks again"
    assert not bench.sent(msg.FenceRequest)
    assert not bench.all(fx.WriteChain)


def test_when_the_record_is_there_again_the_segment_is_switched() -> None:
    bench = ahead()
    bench.do(ev.ChainRead(P, None, 0))
    bench.persist()
    bench.wait(2 * SECOND, (M11,))
    bench.clear()
    rebuilt = replace(second_chain(), epoch=second_chain().epoch + 1)
    bench.do(ev.ChainRead(P, rebuilt, 4))
    assert not is_behind(bench)
    bench.wait(SECOND, (M11,))
    bench.do(ev.ChainRead(P, rebuilt, 4))
    assert bench.sent(msg.FenceRequest, M11), "what was fenced is switched away from"


def test_a_deleted_partition_is_no_loss() -> None:
    bench = ahead()
    bench.do(ev.ChainRead(P, None, 0, deleted=True))
    assert not is_behind(bench)


def test_a_member_that_is_about_to_be_master_does_not_say_that_there_is_no_partition() -> None:
    """The coordinator came back empty before this member learned that its segment was opened."""
    bench = Bench(M10)
    bench.link(M20)
    bench.prepare(2, (M10, M11), M20)
    bench.persist()
    bench.do(ev.ConsumerJoin(1, 1, P, "g", "consumer-1", ev.StartPosition.EARLIEST, False))
    bench.do(ev.ChainRead(P, None, 0))
    assert not bench.all(fx.Deliver)
    assert not is_behind(bench), "the partition may just be made"
    bench.clear()
    bench.wait(SECOND)
    assert bench.all(fx.ReadChain)


def test_an_answer_to_a_read_that_began_before_is_no_loss() -> None:
    bench = opened_master()
    bench.read_chain(first_chain())
    bench.do(ev.CompareChains())
    bench.hear(M01, msg.ChainUpdate(second_chain(), 101))
    bench.do(ev.ChainRead(P, first_chain(), 100))
    assert not is_behind(bench)


def test_what_was_lost_and_decided_once_more_is_the_same_record() -> None:
    """A rebuild writes nothing there: who took it for another one would wait for ever."""
    bench = ahead()
    other = bench.part.revision + 3
    bench.do(ev.ChainRead(P, second_chain(), other))
    assert not is_behind(bench)
    assert bench.part.revision == other, "the next write is compared with this one"


def test_a_number_that_was_used_twice_is_noticed_whatever_the_epoch() -> None:
    bench = ahead()
    other = second_chain()
    forked = replace(other.open_segment, switch_attempt=b"another---------", broker_group="g2", members=(M20, M21))
    chain = replace(other, epoch=other.epoch + 7, segments=(*other.segments[:-1], forked))
    bench.do(ev.ChainRead(P, chain, 300))
    assert "opened twice" in lost_decisions.reason(bench.core.state)
    assert bench.part.chain == second_chain()


def test_a_record_that_could_not_be_taken_up_is_not_forgotten() -> None:
    bench = opened_master()
    newer = replace(second_chain(), epoch=first_chain().epoch + 3)
    changes = msg.ChainChanges(newer, 0, since=newer.epoch, gone=(), digest=0)
    bench.clear()
    bench.hear(M01, changes)
    assert bench.part.chain == first_chain(), "it does not fit what is known here"
    assert bench.all(fx.ReadChain), "so the coordinator is asked"
    bench.do(ev.ChainRead(P, first_chain(), 3))
    assert is_behind(bench)
    bench.do(ev.CompareChains())
    bench.do(ev.ChainRead(P, replace(first_chain(), epoch=newer.epoch + 1), 4))
    assert is_behind(bench), "something else was changed in the older copy"
    bench.do(ev.CompareChains())
    bench.do(ev.ChainRead(P, replace(newer, epoch=newer.epoch + 1), 5))
    assert not is_behind(bench)


def test_a_master_that_was_told_of_a_later_segment_takes_no_batch() -> None:
    bench = opened_master()
    later = replace(second_chain(), epoch=first_chain().epoch + 3)
    same = replace(first_chain(), epoch=first_chain().epoch + 3)
    bench.hear(M01, msg.ChainChanges(same, 0, since=same.epoch, gone=(), digest=0))
    bench.clear()
    bench.append(0, starts=True)
    assert not bench.all(fx.AppendRefused), "its segment may still be open"
    bench.hear(M01, msg.ChainChanges(later, 0, since=later.epoch, gone=(), digest=0))
    bench.clear()
    bench.append(1)
    (refused,) = bench.all(fx.AppendRefused)
    assert isinstance(refused.error, NotServingError)


def test_what_is_told_while_the_record_is_read_shows_no_loss() -> None:
    bench = opened_master()
    bench.read_chain(first_chain())
    bench.do(ev.CompareChains())
    newer = replace(second_chain(), epoch=first_chain().epoch + 3)
    bench.hear(M01, msg.ChainChanges(newer, 0, since=newer.epoch, gone=(), digest=0))
    bench.do(ev.ChainRead(P, first_chain(), bench.part.revision))
    assert not is_behind(bench)


def test_who_knows_of_the_loss_answers_no_fence() -> None:
    bench = opened_master()
    bench.link(M20)
    bench.do(ev.OwnRecordSeen("it has no record of g0-0"))
    bench.persist()
    bench.clear()
    bench.hear(M20, msg.FenceRequest(P, 1, first_chain().open_segment.switch_attempt, b"s" * 16))
    (answer,) = bench.sent(msg.FenceAnswer, M20)
    assert answer.coordinator_behind
    assert not answer.fenced
    assert answer.length is None


def told_of_a_later_segment() -> msg.ChainChanges:
    """Changes that no member can apply that knows only the first record."""
    later = replace(second_chain(), epoch=first_chain().epoch + 3)
    return msg.ChainChanges(later, 0, since=later.epoch, gone=(), digest=0)


def test_a_member_told_of_a_later_segment_gives_no_length() -> None:
    bench = opened_master()
    bench.link(M20)
    bench.hear(M01, told_of_a_later_segment())
    bench.clear()
    request = msg.FenceRequest(P, 1, first_chain().open_segment.switch_attempt, b"s" * 16)
    bench.hear(M20, request)
    (answer,) = bench.sent(msg.FenceAnswer, M20)
    assert (answer.coordinator_behind, answer.fenced, answer.length) == (True, False, None)
    assert not is_behind(bench), "the switcher may just be late"
    bench.clear()
    bench.read_chain(told_of_a_later_segment().chain)
    bench.hear(M20, request)
    assert bench.sent(msg.ChainUpdate, M20), "now it can say which record is the newer one"


def test_a_member_told_of_a_segment_does_not_prepare_it_again() -> None:
    bench = Bench(M10)
    bench.link(M20)
    bench.hear(M20, told_of_a_later_segment())
    bench.prepare(2, (M10, M11), M20, name=b"another---------")
    assert bench.sent(msg.PrepareAnswer, M20)[-1].refusal == "decided"
    bench.prepare(3, (M10, M11), M20, name=b"the next--------")
    bench.persist()
    assert not bench.sent(msg.PrepareAnswer, M20)[-1].refusal, "of that one it was notified of nothing"


def test_a_switcher_told_of_a_later_segment_writes_nothing() -> None:
    bench = switcher()
    fenced(bench, M00, 0, unbroken=True)
    bench.hear(M01, told_of_a_later_segment())
    prepare_answers(bench, M10, M11)
    assert not bench.all(fx.WriteChain)
    bench.do(ev.ChainRead(P, first_chain(), 100))  # the read that the reported changes began
    assert is_behind(bench)


def test_a_restarted_member_takes_no_other_record_of_its_epoch() -> None:
    """It would overwrite the only proof that segment 2 was opened."""
    again = Bench(M00, 2, (RecoveredPartition(P, chain=second_chain()),))
    again.link(M01)
    other = replace(first_chain(), epoch=second_chain().epoch)  # written after an older copy was restored
    again.hear(M01, msg.ChainUpdate(other, 102))
    again.hear(M01, msg.ChainUpdate(replace(other, epoch=other.epoch + 1), 103))
    assert is_behind(again)
    assert again.part.decided == second_chain()
    assert not again.writes(PutChain)


def test_a_switch_in_which_a_member_knows_of_the_loss_opens_nothing() -> None:
    bench = switcher()
    (request,) = bench.sent(msg.FenceRequest, M00)
    refusal = replace(fence_answer(1, request.switch, None, fenced=False), coordinator_behind=True)
    reads = len(bench.all(fx.ReadChain))
    bench.hear(M00, refusal)
    fenced(bench, M01, 1)
    bench.wait(4 * SECOND, (M00, M01, M10, M11, M21))
    assert not asked_to_prepare(bench)
    assert not bench.all(fx.ReadCertificate)
    assert len(bench.all(fx.ReadChain)) > reads, "it tries again later"


def test_a_later_segment_under_no_later_epoch_is_noticed_when_a_member_tells_it() -> None:
    bench = opened_master()
    bench.link(M10)
    older = replace(first_chain(), epoch=second_chain().epoch)  # something else was changed in the copy of the record
    bench.hear(M01, msg.ChainUpdate(older, 100))
    bench.hear(M10, msg.ChainUpdate(second_chain(), 0))
    assert "g1-0 knows segment 2" in lost_decisions.reason(bench.core.state)
    assert bench.part.chain == older
    bench.clear()
    bench.do(ev.SwitchAwayFrom(P, 1))
    bench.wait(2 * SECOND, (M01, M10))
    assert not bench.all(fx.WriteChain)
    bench.do(ev.ChainRead(P, older, 3))
    assert is_behind(bench), "the record lacks it still"
    bench.do(ev.ChainRead(P, replace(second_chain(), epoch=older.epoch + 1), 4))
    assert not is_behind(bench)


def test_a_record_that_a_member_does_not_know_yet_is_no_loss() -> None:
    bench = ahead()
    bench.hear(M11, msg.ChainUpdate(first_chain(), 0))
    assert not is_behind(bench)


def test_the_record_is_on_the_disk_and_a_restarted_member_remembers_it() -> None:
    bench = ahead()
    again = Bench(M10, run=2, found=[RecoveredPartition(P, chain=second_chain())])
    (read,) = again.all(fx.ReadChain)
    assert read == fx.ReadChain(P, known=True)
    again.do(ev.ChainRead(P, first_chain(), 3))
    assert is_behind(again)
    again.link(M20)
    again.clear()
    again.hear(M20, msg.FenceRequest(P, 1, b"switch----------", first_chain().open_segment.switch_attempt))
    assert again.sent(msg.ChainUpdate, M20)[-1].chain == second_chain(), "a switcher is told what was decided"
    again.hear(M20, msg.ChainUpdate(first_chain(), 3))
    assert again.part.decided == second_chain(), "what another broker believes changes nothing"
    again.prepare(2, (M10, M11), M20, name=b"another---------")
    assert again.sent(msg.PrepareAnswer, M20)[-1].refusal
    assert not bench.writes(PutChain), "nothing was learned since"


def test_only_what_changed_is_written() -> None:
    bench = Bench(M10)
    bench.open(second_chain())
    (first,) = bench.writes(PutChain)
    assert first.changed == (1, 2)
    bench.clear()
    third = sealed_chain(second_chain(), 0, 0, members=(M00, M01))
    bench.hear(M21, msg.ChainUpdate(third, 102))
    (second,) = bench.writes(PutChain)
    assert (second.chain, second.changed) == (third, (2, 3))


@pytest.mark.parametrize("refusal", ["decided", "fenced or holds a batch"])
def test_who_holds_the_next_segment_ends_the_switch(refusal: str) -> None:
    bench = switcher()
    fenced(bench, M00, 0, unbroken=True)
    bench.clear()
    prepare_again(bench, refusal)
    assert bench.all(fx.ReadChain), "the record may have moved on"
    bench.read_chain(first_chain())
    fenced(bench, M00, 0, unbroken=True)
    prepare_answers(bench, M10, refusal=refusal)
    assert is_behind(bench)
    assert not [m for _, m in asked_to_prepare(bench) if M20 in m.members], "no other group gets the number"


def prepare_again(bench: Bench, refusal: str) -> None:
    attempt = bench.part.switch.opening.switch_attempt  # type: ignore[union-attr]
    bench.hear(M10, msg.PrepareAnswer(P, 2, attempt, 1, refusal))


def test_its_own_record_counts_too() -> None:
    bench = opened_master()
    bench.do(ev.OwnRecordSeen("it has no record of g0-0"))
    assert is_behind(bench)
    bench.do(ev.OwnRecordSeen(""))
    assert not is_behind(bench)


def test_a_newer_epoch_of_an_older_state_is_noticed() -> None:
    bench = ahead()
    bench.do(ev.ChainRead(P, replace(first_chain(), epoch=9), 400))
    assert "ends with segment 1" in lost_decisions.reason(bench.core.state)


def test_who_was_only_asked_stays_until_the_record_is_there_again() -> None:
    bench = Bench(M20)
    bench.link(M10)
    bench.do(ev.ResolveConsumer(1, P, "readers", None, ev.StartPosition.EARLIEST, 1_000_000 * SECOND))
    bench.do(ev.ChainRead(P, second_chain(), 20))
    bench.do(ev.CompareChains())
    bench.do(ev.ChainRead(P, first_chain(), 3))
    assert is_behind(bench)
    bench.do(ev.CursorRead(P, "readers", ev.CursorRecord(1, 1, 0, "orders"), 2))
    assert bench.all(fx.ConsumerResolved), "the caller that asked has the answer"
    assert is_behind(bench)
    assert P in bench.core.partitions
    bench.do(ev.ChainRead(P, second_chain(), 20))
    assert not is_behind(bench)
    assert P not in bench.core.partitions, "nothing of it is here"


def test_a_planned_switch_that_learns_of_the_loss_after_the_fence_goes_on_when_the_record_is_there() -> None:
    bench = planner()
    rested(bench)
    bench.do(ev.OwnRecordSeen("it has no record of g2-0"))
    prepare_answers(bench, M10, M11)
    assert not bench.all(fx.WriteChain)
    bench.clear()
    bench.do(ev.OwnRecordSeen(""))
    bench.read_chain(first_chain())
    assert bench.sent(msg.FenceRequest, M01), "the master is fenced, so all members are asked"
