"""Copying: batch after batch, checked against the seal, listed when it is complete and on the disk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import MemberId, RunId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, trim
from seriatim_broker.core.values.log import PutBatch, RecoveredPartition, TailCopy
from seriatim_broker.core.values.producers import NO_TABLE
from seriatim_broker.core.values.segment import Start

from .support import (
    GROUPS,
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    MS,
    SECOND,
    Bench,
    P,
    Serving,
    batches_of,
    checksum_of,
    fence_answer,
    filled,
    first_chain,
    prepared,
    recovered,
    sealed_chain,
    segment_of,
)

BATCHES = batches_of(1, [1, 2, 1])


def chain_of(**options: object) -> Chain:
    """Segment 1 is sealed on the first group; the open one is on the third."""
    return sealed_chain(first_chain(), 4, checksum_of(BATCHES), members=(M20, M21), **options)  # type: ignore[arg-type]


def returning(have: int = 1, **options: object) -> Bench:
    """A slave that has a part of the sealed segment comes back; the server is linked."""
    found = RecoveredPartition(P, (recovered(1, BATCHES[:have]),), (prepared(1, (M00, M01)),))
    bench = Bench(M01, 2, (found,))
    bench.link(M00)
    bench.read_chain(chain_of(eligible=(M00,), **options))
    bench.persist()
    return bench


def healing(replaces: MemberId | None = None) -> Bench:
    """A broker of the second group is asked to become a copy."""
    bench = Bench(M10)
    bench.link(M00)
    bench.link(M01)
    bench.do(ev.Heal(P, 1, M10, replaces))
    bench.read_chain(chain_of())
    return bench


def asked(bench: Bench) -> tuple[MemberId, msg.CopyRequest]:
    """The member that it asked last, and the request."""
    effect = [effect for effect in bench.all(fx.Send) if isinstance(effect.message, msg.CopyRequest)][-1]
    by_broker = {member.broker: member for member in (M00, M01, M10, M11, M20, M21)}
    assert isinstance(effect.message, msg.CopyRequest)
    return by_broker[effect.broker], effect.message


def answer(bench: Bench, batches: tuple[object, ...] = BATCHES, available: bool = True) -> None:
    """The source gives these."""
    source, request = asked(bench)
    given = {"from_index": request.from_index, "available": available, "batches": batches, "table": NO_TABLE}
    bench.hear(source, filled(msg.CopyAnswer, partition=P, segment_no=1, **given))


def request(from_index: int) -> msg.CopyRequest:
    """Another member requests the segment from this index on."""
    return filled(msg.CopyRequest, partition=P, segment_no=1, from_index=from_index, max_bytes=1000)


def test_a_member_that_comes_back_copies_from_its_own_tail_on() -> None:
    bench = returning()
    source, request = asked(bench)
    assert (source, request.from_index) == (M00, 1)
    answer(bench, BATCHES[1:])
    assert [write.batch for write in bench.writes(PutBatch)] == list(BATCHES[1:])
    assert bench.part.logs[1].is_in_sync


def test_it_asks_to_be_eligible_when_it_is_whole_and_durable() -> None:
    bench = returning()
    answer(bench, BATCHES[1:])
    assert not bench.sent(msg.EligibleRequest)
    bench.persist()
    bench.wait(100 * MS, (M00,))
    assert bench.sent(msg.EligibleRequest, M00)


def test_a_batch_that_breaks_the_chain_is_not_taken_and_another_source_is_asked() -> None:
    bench = healing()
    first, _ = asked(bench)
    wrong = batches_of(1, [1, 2, 1], producer=b"z" * 16)
    answer(bench, (BATCHES[0], wrong[1], wrong[2]))
    assert [write.batch for write in bench.writes(PutBatch)] == [BATCHES[0]]
    bench.persist()
    bench.clear()
    bench.wait(2 * SECOND, (M00, M01))
    other = M01 if first == M00 else M00
    assert [request.from_index for request in bench.sent(msg.CopyRequest, other)][:1] == [1]


def test_what_lies_above_the_seal_is_not_taken() -> None:
    bench = healing()
    answer(bench, batches_of(1, [1, 2, 1, 1]))
    assert bench.part.logs[1].tail == 4


def test_a_source_that_has_it_not_means_another_source() -> None:
    bench = healing()
    first, _ = asked(bench)
    answer(bench, (), available=False)
    bench.clear()
    bench.wait(2 * SECOND, (M00, M01))
    assert bench.sent(msg.CopyRequest, M01 if first == M00 else M00)


def test_a_source_that_says_nothing_or_is_cut_off_means_another_source() -> None:
    bench = healing()
    first, _ = asked(bench)
    bench.clear()
    bench.wait(3 * SECOND, (M00, M01))
    assert bench.sent(msg.CopyRequest, M01 if first == M00 else M00)
    bench = healing()
    first, _ = asked(bench)
    bench.unlink(first)
    assert asked(bench)[0] != first


def test_a_late_answer_of_another_source_is_ignored() -> None:
    bench = healing()
    first, request = asked(bench)
    bench.unlink(first)
    bench.link(first)
    before = bench.part.logs[1].tail
    other = filled(
        msg.CopyAnswer, partition=P, segment_no=1, from_index=9, available=True, batches=BATCHES, table=NO_TABLE
    )
    bench.hear(asked(bench)[0], other)
    assert bench.part.logs[1].tail == before == request.from_index


def test_what_differs_from_the_seal_is_copied_anew() -> None:
    other = batches_of(1, [1, 2, 1], producer=b"z" * 16)
    found = RecoveredPartition(P, (recovered(1, other),), (prepared(1, (M00, M01)),))
    bench = Bench(M01, 2, (found,))
    bench.link(M00)
    bench.read_chain(chain_of(eligible=(M00,)))
    assert asked(bench)[1].from_index == 0
    answer(bench)
    bench.persist()
    assert bench.part.logs[1].is_in_sync


def test_a_new_copy_is_listed_in_place_of_the_dead_one_in_one_step() -> None:
    bench = healing(M01)
    answer(bench)
    assert not bench.all(fx.WriteChain)
    bench.persist()
    write = bench.all(fx.WriteChain)[-1]
    segment = segment_of(write.chain, 1)
    assert (segment.members, segment.eligible) == ((M00, M10), (M00,))
    assert write.chain.epoch == chain_of().epoch + 1


def test_an_open_segment_is_not_copied() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.do(ev.Heal(P, 1, M10, None))
    bench.read_chain(first_chain())
    assert not bench.sent(msg.CopyRequest)
    assert P not in bench.core.partitions or not bench.part.copies


def test_a_heal_of_a_partition_that_is_not_known_waits_for_its_chain() -> None:
    bench = Bench(M10)
    bench.link(M00)
    bench.do(ev.Heal(P, 1, M10, None))
    assert bench.all(fx.ReadChain)
    bench.read_chain(chain_of())
    assert bench.sent(msg.CopyRequest)


def test_only_a_whole_copy_is_given_from_the_disk() -> None:
    bench = Serving(counts=(1, 1))
    bench.link(M10)
    bench.hear(M10, request(0))
    (read,) = bench.all(fx.ReadLog)
    assert (read.from_index, read.until_index) == (0, 2)
    bench.do(ev.LogRead(read.serial, bench.batches))
    assert [message.batches for message in bench.sent(msg.CopyAnswer, M10)] == [bench.batches]


@pytest.mark.parametrize(
    ("kept", "start"),
    [
        (trim(chain_of(), 1, Start(3, checksum_of(BATCHES[:2]), 9), 1), 3),
        (trim(chain_of(), 2, None, 1), 4),
        (trim(chain_of(), 2, None, 2), None),
    ],
)
def test_copy_that_begins_at_dropped_messages_ends(kept: Chain, start: int | None) -> None:
    """Rule `gone-is-read`: the new copy knows the record from before retention dropped them."""
    bench = healing()
    reads = len(bench.all(fx.ReadChain))
    answer(bench, (), available=False)
    assert len(bench.all(fx.ReadChain)) == reads + 1
    bench.read_chain(kept)
    if start is None:
        assert P not in bench.core.partitions, "the segment has left the record, so nothing is left to do"
        return
    assert bench.part.logs[1].start == start
    bench.wait(bench.config.retry_us, (M00, M01))
    if start < 4:
        assert asked(bench)[1].from_index == start


def test_sources_without_the_batches_cost_few_reads_of_the_chain() -> None:
    bench = healing()
    for _ in range(40):
        answer(bench, (), available=False)
        if bench.part.read_floor is not None:
            bench.read_chain(chain_of())
        bench.wait(bench.config.retry_us, (M00, M01))
    assert len(bench.all(fx.ReadChain)) <= 8


def test_a_part_of_a_copy_is_not_given() -> None:
    bench = returning()
    bench.link(M10)
    bench.clear()
    bench.hear(M10, request(0))
    assert [message.available for message in bench.sent(msg.CopyAnswer, M10)] == [False]


def test_a_tail_copy_is_handed_on_from_where_it_begins() -> None:
    tail = TailCopy(1, 1, 4, BATCHES[1:])
    found = RecoveredPartition(P, (), (prepared(2, (M20, M21), tail=tail),))
    bench = Bench(M20, 2, (found,))
    bench.link(M01)
    bench.read_chain(chain_of(tail_from=1))
    bench.clear()
    bench.hear(M01, request(0))
    bench.hear(M01, request(1))
    assert [message.batches for message in bench.sent(msg.CopyAnswer, M01)] == [(), BATCHES[1:]]


def test_who_lacks_the_tail_asks_its_copies_when_the_server_is_gone() -> None:
    found = RecoveredPartition(P, (recovered(1, BATCHES[:1]),), (prepared(1, (M00, M01)),))
    bench = Bench(M01, 2, (found,))
    bench.link(M20)
    bench.read_chain(chain_of(eligible=(M00,), tail_from=1))
    assert asked(bench)[0] == M20


def test_who_has_a_tail_copy_itself_takes_it_though_nobody_else_is_left() -> None:
    """Sealed at the length of one disk, which was lost before another member had copied from it."""
    preparations = (prepared(1, (M00, M01)), prepared(2, (M01, M00), tail=TailCopy(1, 1, 4, BATCHES[1:])))
    bench = Bench(M01, 2, (RecoveredPartition(P, (recovered(1, BATCHES[:1]),), preparations),))
    chain = sealed_chain(
        first_chain(), 4, checksum_of(BATCHES), members=(M01, M00), eligible=(M00,), server=M00, tail_from=1
    )
    bench.read_chain(chain)
    assert not bench.sent(msg.CopyRequest)
    assert [write.batch for write in bench.writes(PutBatch)] == list(BATCHES[1:])
    assert bench.part.logs[1].is_in_sync


def test_where_another_disk_has_the_slot_of_the_server_a_whole_copy_asks_for_another_server() -> None:
    """No other member asks, if no consumer group is in the segment. And only a server can list a copy."""
    bench = returning()
    answer(bench, BATCHES[1:])
    another = MemberId(M00.broker, "f" * 32)
    bench.do(ev.DirectoryChanged((("g0", (another, M01)), *GROUPS[1:])))
    bench.unlink(M00, refused=True)
    bench.do(ev.CertificateSeen(RunId(M00, 1)))  # written when the slot was given away
    bench.clear()
    bench.persist()
    bench.wait(5 * SECOND)
    assert not bench.sent(msg.EligibleRequest)
    assert segment_of(bench.all(fx.WriteChain)[-1].chain, 1).server == M01


# ---- several at once ------------------------------------------------------------------------------------

NOS = (1, 2, 3)


def long_chain(length: int = 4) -> Chain:
    """Segments 1 to 3 are sealed on the first group; the open one is on the third."""
    chain = first_chain()
    for no in NOS:
        members = (M20, M21) if no == NOS[-1] else (M00, M01)
        chain = sealed_chain(chain, length, checksum_of(batches_of(no, [1, 2, 1])) if length else 0, members)
    return chain


def healing_all(length: int = 4) -> Bench:
    """A broker of the second group is asked to become a copy of three segments."""
    bench = Bench(M10)
    bench.link(M00)
    bench.link(M01)
    for no in NOS:
        bench.do(ev.Heal(P, no, M10, M01))
    bench.read_chain(long_chain(length))
    return bench


def pause(bench: Bench) -> None:
    """The pause after an amendment that was carried out passes."""
    bench.wait(bench.config.amend_pause_us + bench.config.amend_spread_us, (M00, M01))


def give(bench: Bench, *nos: int) -> None:
    """The sources give these segments; of an empty one the producer table."""
    for no in nos:
        source = bench.part.copies[no].asked
        assert source is not None
        batches = () if bench.part.logs[no].is_in_sync else batches_of(no, [1, 2, 1])
        given = {"from_index": 0, "available": True, "batches": batches, "table": NO_TABLE}
        bench.hear(source, filled(msg.CopyAnswer, partition=P, segment_no=no, **given))


def listed(write: fx.WriteChain) -> list[int]:
    """The segments of which this member is a member in that record."""
    return [no for no in NOS if M10 in segment_of(write.chain, no).members]


def test_copies_that_are_whole_are_listed_in_one_transaction() -> None:
    bench = healing_all()
    give(bench, *NOS)
    assert not bench.all(fx.WriteChain)
    bench.persist()
    (write,) = bench.all(fx.WriteChain)
    assert listed(write) == [1, 2, 3]
    assert write.chain.epoch == long_chain().epoch + 1
    assert {segment_of(write.chain, no).members for no in NOS} == {(M00, M10)}, "in place of the dead one"


def test_a_copy_that_is_not_whole_or_not_on_the_disk_is_not_listed_with_the_others() -> None:
    bench = healing_all()
    give(bench, 1)
    bench.persist()
    (first,) = bench.all(fx.WriteChain)
    assert listed(first) == [1]
    give(bench, 2)
    bench.clear()
    bench.do(ev.ChainWritten(P, first.serial, ev.WriteOutcome.DONE, 200))
    pause(bench)
    assert bench.part.logs[2].is_in_sync
    assert not bench.all(fx.WriteChain), "segment 2 is in memory only"
    bench.persist()
    assert listed(bench.all(fx.WriteChain)[-1]) == [1, 2]


def test_what_becomes_whole_during_a_transaction_waits_for_it_and_goes_together() -> None:
    bench = healing_all()
    give(bench, 1)
    bench.persist()
    give(bench, 2)
    bench.persist()
    give(bench, 3)
    bench.persist()
    (first,) = bench.all(fx.WriteChain)
    assert listed(first) == [1]
    bench.written()
    pause(bench)
    second = bench.all(fx.WriteChain)[-1]
    assert len(bench.all(fx.WriteChain)) == 2
    assert listed(second) == [1, 2, 3]


def test_after_a_conflict_all_whole_copies_wait_for_the_read_and_go_together() -> None:
    bench = healing_all()
    give(bench, 1)
    bench.persist()
    bench.written(ev.WriteOutcome.CONFLICT)
    give(bench, 2, 3)
    bench.persist()
    bench.wait(bench.config.retry_us_max // 2, (M00, M01))
    assert len(bench.all(fx.WriteChain)) == 1, "the record is being read"
    bench.clear()
    bench.read_chain(replace(long_chain(), epoch=long_chain().epoch + 1))
    (write,) = bench.all(fx.WriteChain)
    assert listed(write) == [1, 2, 3]


def test_if_the_read_after_a_conflict_fails_whole_copies_try_again_later() -> None:
    bench = healing_all()
    give(bench, 1)
    bench.persist()
    bench.written(ev.WriteOutcome.UNKNOWN)
    bench.clear()
    bench.read_chain(None, failed=True)
    assert not bench.all(fx.WriteChain)
    bench.wait(2 * SECOND, (M00, M01))
    if bench.part.reading:  # it is read again, before or after the pause
        bench.read_chain(long_chain())
    assert listed(bench.all(fx.WriteChain)[-1]) == [1]


def test_the_copy_of_an_empty_segment_is_listed_when_its_producer_table_is_on_the_disk() -> None:
    bench = healing_all(length=0)
    bench.written()
    pause(bench)
    bench.written()
    pause(bench)
    assert [listed(write) for write in bench.all(fx.WriteChain)] == [[1], [1, 2]], "no table is needed for these two"
    give(bench, 3)
    bench.unlink(M01)
    bench.link(M01)
    assert len(bench.all(fx.WriteChain)) == 2
    bench.persist()
    assert listed(bench.all(fx.WriteChain)[-1]) == [1, 2, 3]


def test_between_two_transactions_that_list_copies_there_is_a_pause() -> None:
    """A switcher on another broker gets its turn in it."""
    bench = healing_all()
    give(bench, 1)
    bench.persist()
    give(bench, 2)
    bench.persist()
    bench.written()
    bench.wait(bench.config.amend_pause_us - 1, (M00, M01))
    give(bench, 3)
    bench.persist()
    assert len(bench.all(fx.WriteChain)) == 1
    bench.wait(bench.config.amend_spread_us + 1, (M00, M01))
    assert [listed(write) for write in bench.all(fx.WriteChain)] == [[1], [1, 2, 3]]


def conflicts(bench: Bench, times: int) -> list[int]:
    """Another broker's transaction comes first so often; returns how long this broker waited each time."""
    pauses = []
    for _ in range(times):
        bench.written(ev.WriteOutcome.CONFLICT)
        began_us = bench.now_us
        chain = bench.part.chain
        assert chain is not None
        bench.clear()
        bench.read_chain(replace(chain, epoch=chain.epoch + 1))
        while not bench.all(fx.WriteChain):
            bench.wait(MS, (M00, M01))
        pauses.append(bench.now_us - began_us)
    return pauses


def test_after_each_conflict_a_broker_waits_longer_up_to_a_limit() -> None:
    bench = healing_all()
    give(bench, *NOS)
    bench.persist()
    config = bench.config
    least = [50 * MS, 100 * MS, 200 * MS, 400 * MS, 800 * MS, SECOND, SECOND]
    for pause_us, least_us in zip(conflicts(bench, len(least)), least, strict=True):
        assert least_us <= pause_us <= least_us + config.amend_spread_us + MS
    bench.written()
    give(bench)
    assert bench.part.pace.pause_us == 0, "after a success it starts over"


def test_brokers_do_not_keep_in_step() -> None:
    """They draw their pauses."""
    bench = healing_all()
    give(bench, *NOS)
    bench.persist()
    pauses = conflicts(bench, 12)[6:]
    assert len(set(pauses)) > 3


# ---- and a switch of the partition -------------------------------------------------------------------------


def switching() -> Bench:
    """A broker runs a switch, and meanwhile its copies become complete."""
    bench = healing_all()
    for member in (M20, M21, M11):
        bench.link(member)
    bench.do(ev.SwitchAwayFrom(P, 4))
    bench.read_chain(long_chain())
    give(bench, *NOS)
    bench.persist()
    return bench


def fence_and_prepare(bench: Bench) -> None:
    """Members answer, and the transaction of the switch is sent."""
    (request,) = bench.sent(msg.FenceRequest, M20)
    bench.hear(M20, fence_answer(4, request.switch, 0, unbroken=True))
    asked = bench.sent(msg.PrepareRequest)[-1]
    for member in asked.members:
        if member != M10:
            bench.hear(member, msg.PrepareAnswer(P, 5, asked.switch_attempt, 1, ""))
    bench.persist()


def test_while_a_switch_fences_prepares_and_writes_no_copy_is_listed_and_all_are_when_it_has_won() -> None:
    bench = switching()
    bench.wait(50 * MS, (M00, M01, M20, M21, M11))
    assert not bench.all(fx.WriteChain), "the switch fences"
    fence_and_prepare(bench)
    (write,) = bench.all(fx.WriteChain)
    assert write.chain.open_segment.no == 5
    assert not listed(write)
    bench.written()
    assert bench.part.switch is None
    assert listed(bench.all(fx.WriteChain)[-1]) == [1, 2, 3]


def test_when_a_switch_has_lost_copies_are_listed() -> None:
    bench = switching()
    fence_and_prepare(bench)
    won = bench.all(fx.WriteChain)[-1].chain
    bench.written(ev.WriteOutcome.CONFLICT)
    bench.clear()
    bench.read_chain(replace(won, epoch=won.epoch + 1))
    assert bench.part.switch is None
    assert [listed(write) for write in bench.all(fx.WriteChain)] == [[1, 2, 3]]


def test_when_a_switch_was_won_by_another_broker_copies_are_listed() -> None:
    bench = switching()
    assert bench.sent(msg.FenceRequest, M20)
    assert not bench.all(fx.WriteChain)
    bench.hear(M20, msg.ChainUpdate(sealed_chain(long_chain(), 0, 0, (M00, M01)), 300))
    assert bench.part.switch is None
    assert [listed(write) for write in bench.all(fx.WriteChain)] == [[1, 2, 3]]


def test_when_a_planned_switch_is_given_up_copies_are_listed() -> None:
    bench = healing_all()
    for member in (M20, M21, M11):
        bench.link(member)
    bench.do(ev.PlanSwitch(1, P))
    bench.read_chain(long_chain())
    give(bench, *NOS)
    bench.persist()
    assert bench.part.switch is not None
    while bench.part.switch is not None:
        assert not bench.all(fx.WriteChain)
        bench.wait(MS, (M00, M01, M20, M21, M11))
    assert listed(bench.all(fx.WriteChain)[0]) == [1, 2, 3], "at once"


def test_in_the_pause_of_a_switch_copies_are_listed() -> None:
    """A switch may wait for its members for hours."""
    bench = healing_all()
    bench.do(ev.SwitchAwayFrom(P, 4))
    bench.read_chain(long_chain())
    give(bench, *NOS)
    bench.persist()
    bench.wait(SECOND, (M00, M01))
    assert bench.part.switch is not None
    assert listed(bench.all(fx.WriteChain)[0]) == [1, 2, 3]


# ---- and a coordinator that does not take writes ----------------------------------------------------------------


def written_nos(bench: Bench) -> list[list[int]]:
    """The segments of each write."""
    return [listed(write) for write in bench.all(fx.WriteChain)]


def test_copies_that_become_whole_while_writes_are_refused_are_listed_when_they_are_taken_again() -> None:
    bench = healing_all()
    bench.do(ev.WritesRefused(True))
    give(bench, *NOS)
    bench.persist()
    bench.wait(bench.config.retry_us // 2, (M00, M01))
    assert not bench.all(fx.WriteChain)
    bench.do(ev.WritesRefused(False))
    assert written_nos(bench) == [[1, 2, 3]], "at once"


def test_copies_that_wait_are_listed_when_the_coordinator_has_its_lost_decisions_again() -> None:
    bench = healing_all()
    bench.do(ev.OwnRecordSeen("the member record lacks a member run"))
    give(bench, *NOS)
    bench.persist()
    assert not bench.all(fx.WriteChain)
    bench.do(ev.OwnRecordSeen(""))
    bench.do(ev.Tick())
    assert written_nos(bench) == [[1, 2, 3]], "at once"


def test_copies_that_wait_are_listed_after_a_rebuild() -> None:
    bench = healing_all()
    bench.do(ev.OwnRecordSeen("the member record lacks a member run"))
    give(bench, *NOS)
    bench.persist()
    bench.core.state.coordinator.behind.clear()
    bench.do(ev.CoordinatorRebuilt())
    bench.read_chain(long_chain())
    assert written_nos(bench) == [[1, 2, 3]]


def test_a_copy_that_waits_looks_again_though_nothing_tells_it_to() -> None:
    """What is in the way may end without a word to this partition."""
    bench = healing_all()
    bench.do(ev.WritesRefused(True))
    give(bench, *NOS)
    bench.persist()
    bench.wait(3 * bench.config.retry_us_max, (M00, M01))
    assert not bench.all(fx.WriteChain)
    bench.core.state.coordinator.refuses = False
    bench.wait(bench.config.retry_us_max + MS, (M00, M01))
    assert written_nos(bench) == [[1, 2, 3]]


@pytest.mark.parametrize("outcome", list(ev.WriteOutcome))
def test_whatever_becomes_of_another_transaction_a_copy_that_waited_for_it_is_listed(outcome: ev.WriteOutcome) -> None:
    bench = healing_all()
    give(bench, 1)
    bench.persist()
    give(bench, 2, 3)
    bench.persist()
    bench.written(outcome)
    assert len(bench.all(fx.WriteChain)) == 1
    if outcome is not ev.WriteOutcome.DONE:
        bench.read_chain(long_chain())
    bench.wait(bench.config.retry_us, (M00, M01))
    bench.wait(bench.config.refused_us, (M00, M01))
    assert len(bench.all(fx.WriteChain)) == 2


def test_after_a_refused_transaction_one_change_alone_is_tried_and_after_each_success_twice_as_many() -> None:
    """It may have been too large."""
    bench = healing_all()
    give(bench, *NOS)
    bench.persist()
    assert written_nos(bench) == [[1, 2, 3]]
    for _ in range(2):
        bench.written(ev.WriteOutcome.REFUSED)
        bench.read_chain(long_chain())
        bench.wait(SECOND, (M00, M01))
        assert written_nos(bench)[-1] == [1]
    bench.written()
    pause(bench)
    assert written_nos(bench)[-1] == [1, 2, 3]


# ---- and a partition that is deleted ----------------------------------------------------------------------------


def test_after_a_read_that_finds_no_record_nothing_is_written_and_what_waits_is_dropped() -> None:
    bench = healing_all()
    give(bench, *NOS)
    bench.persist()
    bench.written(ev.WriteOutcome.CONFLICT)
    bench.clear()
    bench.do(ev.ChainRead(P, None, 0, deleted=True))
    bench.wait(5 * SECOND, (M00, M01))
    assert not bench.all(fx.WriteChain)
    assert P not in bench.core.partitions or not bench.part.copies
