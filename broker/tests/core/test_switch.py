"""The switch, step by step: read, fence, decide, prepare, one transaction; and what may go wrong at each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.errors import PreconditionError, UnavailableError
from seriatim_api.ids import MemberId, RunId, make_offset
from seriatim_broker.core.dispatch import partitions
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.state.switching import SwitchPhase, Waiter
from seriatim_broker.core.switching import routes
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, add_eligible, remove_eligible
from seriatim_broker.core.values.producers import NO_TABLE, Entry, ProducerTable, Table, pack_table, pack_window
from seriatim_broker.core.values.segment import SegmentState

from .support import (
    CONFLICT,
    DONE,
    M00,
    M01,
    M10,
    M11,
    M20,
    M21,
    MS,
    SECOND,
    UNKNOWN,
    Bench,
    P,
    attempt,
    batches_of,
    checksum_of,
    fence_answer,
    first_chain,
    opened_master,
    opened_slave,
    replicate,
    sealed_chain,
    segment_of,
    unsettled_chain,
)


def linked() -> Bench:
    """A broker of the third group, linked to all others."""
    bench = Bench(M20)
    for member in (M00, M01, M10, M11, M21):
        bench.link(member)
    return bench


def switcher(chain: Chain | None = None, without: tuple[MemberId, ...] = ()) -> Bench:
    """One that is not linked to some, and is told to look after a partition."""
    bench = linked()
    for member in without:
        bench.unlink(member, refused=True)
    bench.do(ev.SwitchAwayFrom(P, 1))
    bench.read_chain(chain or first_chain())
    return bench


def fenced_at_0() -> Bench:
    """One whose unbroken master has answered that it has no message."""
    bench = switcher()
    fenced(bench, M00, 0, unbroken=True)
    return bench


def decided() -> Bench:
    """The same, and the next members are prepared."""
    bench = fenced_at_0()
    prepare_answers(bench, M10, M11)
    return bench


def fenced(bench: Bench, member: MemberId, length: int | None, **answer: Any) -> None:
    """A member answers the fence."""
    (request,) = bench.sent(msg.FenceRequest, member)
    bench.hear(member, fence_answer(1, request.switch, length, **answer))


def asked_to_prepare(bench: Bench) -> list[tuple[str, msg.PrepareRequest]]:
    """Who was asked to prepare what; this broker itself does not show up here."""
    return [
        (effect.broker, effect.message)
        for effect in bench.all(fx.Send)
        if isinstance(effect.message, msg.PrepareRequest)
    ]


def prepare_answers(bench: Bench, *members: MemberId, run: int = 1, refusal: str = "") -> None:
    """Members answer the last prepare request."""
    request = asked_to_prepare(bench)[-1][1]
    for member in members:
        bench.hear(member, msg.PrepareAnswer(P, request.segment_no, request.switch_attempt, run, refusal))


def written_chain(bench: Bench) -> Chain:
    """The record that the switch wants to write."""
    return bench.all(fx.WriteChain)[-1].chain


def test_a_switch_reads_before_it_fences_and_fences_all_members() -> None:
    bench = Bench(M20)
    bench.link(M00)
    bench.link(M01)
    bench.do(ev.SwitchAwayFrom(P, 1))
    assert bench.all(fx.ReadChain)
    assert not bench.sent(msg.FenceRequest)
    bench.read_chain(first_chain())
    assert len(bench.sent(msg.FenceRequest, M00)) == len(bench.sent(msg.FenceRequest, M01)) == 1


def test_an_unbroken_masters_commit_is_the_length_at_once() -> None:
    bench = switcher()
    fenced(bench, M00, 2, unbroken=True, commit=2, value=77)
    prepare_answers(bench, M10, M11)
    chain = written_chain(bench)
    old = segment_of(chain, 1)
    assert (old.state, old.sealed_len, old.sealed_checksum, old.tail_from) == (SegmentState.SEALED, 2, 77, None)
    assert chain.open_segment.members in ((M10, M11), (M11, M10))
    assert chain.epoch == 2


def test_a_masters_commit_is_preferred_to_a_tail_that_came_before_it() -> None:
    bench = switcher()
    batches = batches_of(1, [1, 1, 1])
    fenced(bench, M01, 3, commit=1, tail=batches[1:])
    fenced(bench, M00, 1, unbroken=True, commit=1)
    prepare_answers(bench, M10, M11)
    assert segment_of(written_chain(bench), 1).sealed_len == 1


def test_of_two_tails_the_shorter_is_taken_with_its_own_uncertain_part() -> None:
    bench = switcher()
    batches = batches_of(1, [1, 1, 1])
    fenced(bench, M00, 3, commit=1, tail=batches[1:])
    fenced(bench, M01, 2, commit=0, tail=batches[:2])
    (_, request), *_ = asked_to_prepare(bench)
    assert request.tail is not None
    assert (request.tail.from_index, request.tail.length, request.tail.batches) == (0, 2, batches[:2])


def test_the_uncertain_tail_and_the_table_go_to_the_new_members_before_the_transaction() -> None:
    bench = switcher(without=(M00,))
    batches = batches_of(1, [1, 1])
    table = ProducerTable()
    for batch in batches:
        table.record(batch.header)
    fenced(bench, M01, 2, commit=1, tail=batches[1:], table=table.at_rest(), value=checksum_of(batches))
    requests = asked_to_prepare(bench)
    assert {broker for broker, _ in requests} == {M10.broker, M11.broker}
    assert all(request.tail and request.tail.batches == batches[1:] for _, request in requests)
    assert all(request.table == table.at_rest() for _, request in requests)
    assert not bench.all(fx.WriteChain)
    prepare_answers(bench, M10)
    assert not bench.all(fx.WriteChain), "all members of the new segment"
    prepare_answers(bench, M11)
    old = segment_of(written_chain(bench), 1)
    assert old.tail_from == 1
    assert set(old.tail_copies) == {M10, M11}


@pytest.mark.parametrize(
    ("length", "answered_ms", "floor_ms"),
    [
        (0, 0, 7_000),  # a member that restarted, and has no batch of the segment
        (1, 9_000, 9_000),
        (1, 5_000, 5_000),  # its master did not believe 7,000, and set append time back
    ],
)
def test_the_next_segment_begins_at_the_newest_append_time_that_a_member_or_else_the_chain_knows(
    length: int, answered_ms: int, floor_ms: int
) -> None:
    """And not at the clock of the switcher: if that one is years ahead, no segment shall take it up."""
    chain = first_chain()
    bench = switcher(chain=replace(chain, segments=(replace(chain.segments[0], append_floor_ms=7_000),)))
    fenced(bench, M00, length, unbroken=True, last_append_ms=answered_ms)
    prepare_answers(bench, M10, M11)
    opened = written_chain(bench).open_segment
    assert opened.append_floor_ms == floor_ms
    assert opened.opened_at_ms == bench.wall_ms


@pytest.mark.parametrize("length", [1, None])
def test_a_segment_does_not_end_before_its_newest_append_time(length: int | None) -> None:
    """Rule `ends-behind-its-messages`."""
    bench = switcher(without=() if length else (M01,))
    answered_ms = bench.wall_ms + 3 * 86_400_000  # the clock of the switcher is three days behind
    fenced(bench, M00, length, unbroken=bool(length), last_append_ms=answered_ms)
    prepare_answers(bench, M10, M11)
    ended, opened = written_chain(bench).segments[-2:]
    assert ended.sealed_at_ms == opened.opened_at_ms == answered_ms


def test_a_batch_that_is_not_sealed_sets_append_time_not_back() -> None:
    chain = first_chain()
    bench = switcher(chain=replace(chain, segments=(replace(chain.segments[0], append_floor_ms=7_000),)))
    fenced(bench, M01, 1, last_append_ms=1_000)
    fenced(bench, M00, 0, unbroken=True, last_append_ms=7_000)
    prepare_answers(bench, M10, M11)
    sealed, opened = written_chain(bench).segments[-2:]
    assert (sealed.sealed_len, opened.append_floor_ms) == (0, 7_000)


@pytest.mark.parametrize(
    ("answered_ms", "floor_ms"),
    [
        (9_000, 9_000),
        (5_000, 7_000),  # its newest batches are gone with the machine, perhaps
        (0, 7_000),  # it has no batch
    ],
)
def test_behind_a_suspect_member_append_time_goes_back_neither_to_the_record_nor_below_it(
    answered_ms: int, floor_ms: int
) -> None:
    """It reports no length, so the next segment is opened over; the time of its last batch is true all the same."""
    chain = first_chain()
    bench = switcher(
        chain=replace(chain, segments=(replace(chain.segments[0], append_floor_ms=7_000),)), without=(M01,)
    )
    fenced(bench, M00, None, last_append_ms=answered_ms)
    prepare_answers(bench, M10, M11)
    chain = written_chain(bench)
    assert segment_of(chain, 1).state is SegmentState.UNSETTLED
    assert chain.open_segment.append_floor_ms == floor_ms


def test_the_server_holds_all_below_the_sealed_length_and_only_such_members_are_eligible() -> None:
    bench = switcher()
    batches = batches_of(1, [1, 1, 1])
    fenced(bench, M00, 3, commit=1, tail=batches[1:])
    fenced(bench, M01, 2, commit=0, tail=batches[:2])
    prepare_answers(bench, M10, M11)
    old = segment_of(written_chain(bench), 1)
    assert old.server == M00
    assert set(old.eligible) == {M00, M01}
    bench = switcher(without=(M00,))
    fenced(bench, M01, 2, commit=2)
    prepare_answers(bench, M10, M11)
    old = segment_of(written_chain(bench), 1)
    assert (old.server, old.eligible, old.server_epoch) == (M01, (M01,), 2)


def test_master_run_is_what_the_master_named_in_its_answer() -> None:
    bench = fenced_at_0()
    master = asked_to_prepare(bench)[-1][1].members[0]
    other = M11 if master == M10 else M10
    prepare_answers(bench, master, run=4)
    prepare_answers(bench, other, run=9)
    assert written_chain(bench).open_segment.master_run == 4


def test_the_record_names_the_attempt_and_each_group_has_its_own() -> None:
    bench = fenced_at_0()
    first = asked_to_prepare(bench)[-1][1]
    prepare_answers(bench, M10, refusal="voided")
    second = asked_to_prepare(bench)[-1][1]
    assert second.switch_attempt != first.switch_attempt
    assert second.members in ((M20, M21), (M21, M20))
    bench.persist()
    prepare_answers(bench, M21)
    assert written_chain(bench).open_segment.switch_attempt == second.switch_attempt


def test_answers_to_another_attempt_do_not_count() -> None:
    bench = fenced_at_0()
    for member in (M10, M11):
        bench.hear(member, msg.PrepareAnswer(P, 2, b"x" * 16, 1, ""))
    assert not bench.all(fx.WriteChain)


def test_answers_to_another_switch_do_not_count() -> None:
    bench = switcher()
    bench.hear(M00, fence_answer(1, b"x" * 16, 0, unbroken=True))
    assert not asked_to_prepare(bench)


def test_the_transaction_is_compared_with_the_revision_that_was_read() -> None:
    bench = decided()
    assert bench.all(fx.WriteChain)[-1].revision == 101


@pytest.mark.parametrize("outcome", [CONFLICT, UNKNOWN])
def test_who_lost_or_does_not_know_reads_first_and_begins_anew(outcome: ev.WriteOutcome) -> None:
    bench = decided()
    bench.clear()
    bench.do(ev.ChainWritten(P, _serial(bench), outcome, 0))
    assert [type(effect) for effect in bench.effects] == [fx.ReadChain]
    bench.read_chain(first_chain())
    assert bench.sent(msg.FenceRequest, M00), "each attempt fences"


def _serial(bench: Bench) -> int:
    return next(iter(bench.part.writes))


def test_the_loser_follows() -> None:
    bench = decided()
    bench.written(CONFLICT)
    bench.read_chain(sealed_chain(first_chain(), 0, 0))
    assert P not in bench.core.partitions or bench.part.switch is None


def test_a_newer_record_ends_the_switch_in_every_phase() -> None:
    newer = sealed_chain(first_chain(), 0, 0)
    for steps in range(3):
        bench = switcher()
        if steps > 0:
            fenced(bench, M00, 0, unbroken=True)
        if steps > 1:
            prepare_answers(bench, M10, M11)
        bench.hear(M10, msg.ChainUpdate(newer, 555))
        assert P not in bench.core.partitions or bench.part.switch is None


def test_another_field_that_changes_meanwhile_does_not_lose_what_was_decided() -> None:
    bench = fenced_at_0()
    changed = remove_eligible(first_chain(), 1, [M01])
    bench.hear(M00, msg.ChainUpdate(changed, 555))
    prepare_answers(bench, M10, M11)
    write = bench.all(fx.WriteChain)[-1]
    assert (write.chain.epoch, write.revision) == (3, 555)
    assert add_eligible(changed, 1, M01).epoch == 3


def test_members_concerned_are_told_after_the_transaction_only() -> None:
    bench = decided()
    assert not bench.sent(msg.ChainUpdate)
    bench.written()
    assert all(bench.sent(msg.ChainUpdate, member) for member in (M00, M01, M10, M11))


@pytest.mark.parametrize("outcome", [None, UNKNOWN])
def test_members_concerned_are_told_when_a_read_shows_the_transaction(outcome: ev.WriteOutcome | None) -> None:
    """Rule `read-is-told`: the answer was lost, or is not here yet."""
    bench = decided()
    chain = written_chain(bench)
    if outcome is not None:
        bench.do(ev.ChainWritten(P, _serial(bench), outcome, 0))
    assert not bench.sent(msg.ChainUpdate)
    bench.read_chain(chain)
    assert all(bench.sent(msg.ChainUpdate, member) for member in (M00, M01, M10, M11))


def test_a_record_of_another_switcher_is_not_told_by_the_one_that_lost() -> None:
    bench = decided()
    bench.written(CONFLICT)
    bench.read_chain(sealed_chain(first_chain(), 0, 0))
    assert not bench.sent(msg.ChainUpdate)


# ---- no member answers ----------------------------------------------------------------------------------


def silent_members() -> Bench:
    """No member of the open segment can be asked."""
    return switcher(without=(M00, M01))


def test_without_a_certificate_a_silent_segment_is_not_opened_over() -> None:
    bench = silent_members()
    (read,) = bench.all(fx.ReadCertificate)
    assert (read.member_run.member, read.member_run.run) == (M00, 1)
    bench.do(ev.CertificateRead(P, read.member_run, False))
    bench.clear()
    for _ in range(20):
        bench.wait(SECOND // 4, (M10, M11, M21))
        bench.read_chain(first_chain())
        for read in bench.all(fx.ReadCertificate)[-1:]:
            bench.do(ev.CertificateRead(P, read.member_run, False))
    assert not asked_to_prepare(bench)
    assert not bench.all(fx.WriteChain)
    assert len(bench.all(fx.ReadCertificate)) > 1, "it looks again"


def test_an_unknown_certificate_is_none() -> None:
    bench = silent_members()
    bench.do(ev.CertificateRead(P, bench.all(fx.ReadCertificate)[0].member_run, None))
    assert not asked_to_prepare(bench)


def test_with_a_certificate_it_is_opened_over_and_the_transaction_compares_it() -> None:
    bench = silent_members()
    run = bench.all(fx.ReadCertificate)[0].member_run
    bench.do(ev.CertificateRead(P, run, True))
    assert all(request.incomplete_table for _, request in asked_to_prepare(bench))
    assert all(request.table == NO_TABLE and request.tail is None for _, request in asked_to_prepare(bench))
    prepare_answers(bench, M10, M11)
    write = bench.all(fx.WriteChain)[-1]
    assert write.certificate == run
    old = segment_of(write.chain, 1)
    assert (old.state, old.sealed_len, old.server, old.eligible) == (SegmentState.UNSETTLED, None, M00, (M00, M01))
    assert write.chain.open_segment.incomplete_table
    assert write.chain.open_segment.base is None


@pytest.mark.parametrize(
    ("proof", "is_proof"), [((M00, 0), False), ((M01, 1), False), ((M00, 1), True), ((M00, 3), True)]
)
def test_the_certificate_of_a_later_run_of_the_disk_will_do_and_is_compared(
    proof: tuple[MemberId, int], is_proof: bool
) -> None:
    """An earlier run's, or another disk's, says nothing of the run that may still acknowledge."""
    bench = silent_members()
    assert bench.all(fx.ReadCertificate)[0].member_run == RunId(M00, 1)
    bench.do(ev.CertificateRead(P, RunId(*proof), True))
    assert bool(asked_to_prepare(bench)) == is_proof
    if is_proof:
        prepare_answers(bench, M10, M11)
        assert bench.all(fx.WriteChain)[-1].certificate == RunId(*proof)


def test_a_sealing_switch_needs_no_certificate() -> None:
    bench = decided()
    assert bench.all(fx.WriteChain)[-1].certificate is None


def test_if_only_suspects_answer_it_is_opened_over_for_one_fence_is_enough() -> None:
    bench = switcher(without=(M00,))
    fenced(bench, M01, None)
    prepare_answers(bench, M10, M11)
    assert segment_of(written_chain(bench), 1).state is SegmentState.UNSETTLED


def test_a_member_that_cannot_say_is_no_answer() -> None:
    bench = switcher(without=(M00,))
    (request,) = bench.sent(msg.FenceRequest, M01)
    bench.hear(M01, fence_answer(1, request.switch, None, fenced=False))
    assert bench.all(fx.ReadCertificate)
    assert not asked_to_prepare(bench)


# ---- tables ---------------------------------------------------------------------------------------------


def _behind(settled: bool) -> Chain:
    chain = unsettled_chain(first_chain())
    if settled:
        from seriatim_broker.core.values.chain import Seal, settle

        chain = settle(chain, 1, Seal(0, 0, M01, (M01,), None, (), 0))
    return chain


def _fence_second(bench: Bench, table: Table = NO_TABLE) -> None:
    (request,) = bench.sent(msg.FenceRequest, M10)
    bench.hear(M10, fence_answer(2, request.switch, 0, unbroken=True, table=table, incomplete=True))


def _switch_second(chain: Chain) -> Bench:
    bench = linked()
    bench.do(ev.SwitchAwayFrom(P, 2))
    bench.read_chain(chain)
    return bench


def test_the_mark_of_an_incomplete_table_is_inherited_while_a_segment_before_is_unsettled() -> None:
    bench = _switch_second(_behind(settled=False))
    _fence_second(bench)
    assert not bench.sent(msg.TableRequest)
    assert all(request.incomplete_table for _, request in asked_to_prepare(bench))


def test_after_settlement_the_tables_are_merged_and_the_mark_goes() -> None:
    bench = _switch_second(_behind(settled=True))
    _fence_second(bench)
    assert [request.segment_no for request in bench.sent(msg.TableRequest, M01)] == [1]
    assert not asked_to_prepare(bench)
    table = ProducerTable()
    table.record(batches_of(1, [1])[0].header)
    bench.hear(M01, msg.TableAnswer(P, 1, table.at_rest()))
    requests = asked_to_prepare(bench)
    assert requests
    assert all(not request.incomplete_table and request.table == table.at_rest() for _, request in requests)


def test_without_the_table_in_time_the_mark_is_passed_on() -> None:
    bench = _switch_second(_behind(settled=True))
    _fence_second(bench)
    bench.wait(bench.config.table_timeout_us, (M00, M01, M10, M11, M21))
    assert asked_to_prepare(bench)
    assert all(request.incomplete_table for _, request in asked_to_prepare(bench))


# ---- which group ----------------------------------------------------------------------------------------


def test_the_failed_head_goes_to_the_tail_of_the_send_chain() -> None:
    bench = decided()
    assert written_chain(bench).send_chain == ("g1", "g2", "g0")


def test_a_group_that_is_not_whole_is_passed_over_while_another_is() -> None:
    bench = switcher(without=(M11,))
    fenced(bench, M00, 0, unbroken=True)
    assert {broker for broker, _ in asked_to_prepare(bench)} == {M21.broker}


def test_never_fewer_members_than_min_copies() -> None:
    bench = switcher(without=(M11, M01))
    bench.unlink(M21, refused=True)
    fenced(bench, M00, 0, unbroken=True)
    assert not asked_to_prepare(bench)
    bench.wait(100 * MS, (M00, M10))
    assert not bench.all(fx.WriteChain)


def test_a_silent_group_costs_its_time_and_the_next_one_is_asked() -> None:
    bench = fenced_at_0()
    bench.wait(bench.config.prepare_timeout_us, (M00, M01, M10, M11, M21))
    assert asked_to_prepare(bench)[-1][0] == M21.broker


def test_a_group_that_lost_a_segment_is_passed_over_for_a_while() -> None:
    bench = decided()
    bench.written()
    assert bench.core.state.directory.flapping["g0"][0] == bench.now_us + bench.config.flapping_us


# ---- planned --------------------------------------------------------------------------------------------


def rehearsed(bench: Bench) -> None:
    """All members of the target have prepared, as the planner asks them to before a producer waits."""
    bench.persist()  # if it is one of them
    if asked_to_prepare(bench):
        members = asked_to_prepare(bench)[-1][1].members
        prepare_answers(bench, *(member for member in members if member != bench.member))


def planner() -> Bench:
    """A broker of the third group that is asked for a planned switch."""
    bench = linked()
    bench.do(ev.PlanSwitch(9, P))
    bench.read_chain(first_chain())
    return bench


def test_a_planned_switch_waits_until_the_master_rests_and_fences_then() -> None:
    bench = planner()
    rehearsed(bench)
    (request,) = bench.sent(msg.QuiesceRequest, M00)
    assert not bench.sent(msg.FenceRequest)
    bench.hear(M00, msg.QuiesceAnswer(P, 1, request.switch, True))
    assert bench.sent(msg.FenceRequest, M00)
    fenced(bench, M00, 4, unbroken=True, commit=4)
    prepare_answers(bench, M10, M11)
    bench.written()
    assert [effect.error for effect in bench.all(fx.Resolved)] == [None]


def planned_for(group: str, master: str = "") -> Bench:
    bench = linked()
    bench.do(ev.PlanSwitch(9, P, group, master))
    bench.read_chain(first_chain())
    return bench


def test_the_target_prepares_before_anybody_waits() -> None:
    bench = planner()
    first, second = asked_to_prepare(bench)
    assert {first[0], second[0]} == {M10.broker, M11.broker}
    prepare_answers(bench, M10)
    assert not bench.sent(msg.QuiesceRequest), "all members of the target"
    prepare_answers(bench, M11)
    (request,) = bench.sent(msg.QuiesceRequest, M00)
    bench.hear(M00, msg.QuiesceAnswer(P, 1, request.switch, True))
    bench.clear()
    bench.hear(M00, fence_answer(1, request.switch, 4, unbroken=True, commit=4))
    again = [prepare for _, prepare in asked_to_prepare(bench)]
    assert {prepare.members for prepare in again} == {first[1].members}
    assert all(prepare.switch_attempt != first[1].switch_attempt for prepare in again), (
        "with the table, under another attempt"
    )
    assert all(prepare.replaces == (first[1].switch_attempt,) for prepare in again), "the rehearsal is forgotten"


@pytest.mark.parametrize("how", ["link", "refusal", "silence"])
def test_a_target_that_cannot_prepare_ends_the_plan_while_the_master_goes_on(how: str) -> None:
    bench = planned_for("g1")
    if how == "link":
        bench.unlink(M11, refused=True)
    elif how == "refusal":
        prepare_answers(bench, M11, refusal="voided")
    else:
        prepare_answers(bench, M10)
        bench.wait(bench.config.prepare_timeout_us, (M00, M01, M10, M21))
    assert not bench.sent(msg.QuiesceRequest)
    assert not bench.sent(msg.FenceRequest)
    assert isinstance(bench.all(fx.Resolved)[-1].error, UnavailableError)


def test_a_target_that_dies_while_the_master_comes_to_rest_ends_the_plan() -> None:
    bench = planned_for("g1")
    rehearsed(bench)
    (request,) = bench.sent(msg.QuiesceRequest, M00)
    bench.unlink(M11, refused=True)
    bench.hear(M00, msg.QuiesceAnswer(P, 1, request.switch, True))
    assert not bench.sent(msg.FenceRequest)
    assert isinstance(bench.all(fx.Resolved)[-1].error, UnavailableError)


def test_a_planned_switch_that_has_fenced_comes_to_an_end_whatever_becomes_of_its_targets() -> None:
    """Else the partition would stay closed until a fenced member loses patience."""
    bench = planned_for("g1")
    rested(bench)
    for member in (M10, M11, M21):
        bench.unlink(member, refused=True)
    bench.read_chain(first_chain())
    assert bench.all(fx.Resolved)[-1].error is not None
    assert bench.part.switch is not None
    assert not bench.part.switch.is_planned
    assert bench.sent(msg.FenceRequest, M01), "all members are asked"


def rested(bench: Bench) -> None:
    rehearsed(bench)
    (request,) = bench.sent(msg.QuiesceRequest, M00)
    bench.hear(M00, msg.QuiesceAnswer(P, 1, request.switch, True))
    fenced(bench, M00, 4, unbroken=True, commit=4)


@pytest.mark.parametrize(
    ("group", "master", "members"),
    [
        ("g2", "", (M20, M21)),  # by turn: partition 7, segment 1
        ("g2", "g2-0", (M20, M21)),
        ("g2", "g2-1", (M21, M20)),
        ("g1", "g1-1", (M11, M10)),
        ("g0", "g0-1", (M01, M00)),  # the same group under its other member
    ],
)
def test_a_planned_switch_goes_where_it_is_told(group: str, master: str, members: tuple[MemberId, ...]) -> None:
    bench = planned_for(group, master)
    rested(bench)
    prepares = [bench.sent(msg.PrepareRequest, member)[-1] for member in members if member != M20]
    if M20 in members:
        assert bench.part.switch is not None
        assert bench.part.switch.opening.members == members
    else:
        assert {prepare.members for prepare in prepares} == {members}
        prepare_answers(bench, *members)
        bench.written()
        (resolved,) = bench.all(fx.Resolved)
        assert resolved.error is None
        assert resolved.route is not None
        assert resolved.route.master == members[0].broker


@pytest.mark.parametrize(
    ("group", "master"), [("g0", ""), ("g0", "g0-0"), ("g1", "g2-0"), ("nowhere", ""), ("nowhere", "g1-0")]
)
def test_a_target_that_cannot_be_is_refused_before_anybody_waits(group: str, master: str) -> None:
    bench = planned_for(group, master)
    assert not bench.sent(msg.QuiesceRequest)
    (resolved,) = bench.all(fx.Resolved)
    assert isinstance(resolved.error, (PreconditionError, UnavailableError))
    assert P not in bench.core.partitions


def test_a_target_that_is_not_whole_is_refused_before_anybody_waits() -> None:
    bench = Bench(M20)
    for member in (M00, M01, M10, M21):
        bench.link(member)
    bench.do(ev.PlanSwitch(9, P, "g1"))
    bench.read_chain(first_chain())
    assert not bench.sent(msg.QuiesceRequest)
    (resolved,) = bench.all(fx.Resolved)
    assert isinstance(resolved.error, UnavailableError)
    assert [effect for effect in bench.all(fx.Connect) if effect.broker == M11.broker]


def test_a_target_that_dies_after_the_fence_costs_the_target_and_nothing_else() -> None:
    bench = planned_for("g2", "g2-1")
    rested(bench)
    bench.unlink(M21, refused=True)
    prepare_answers(bench, M10, M11)
    bench.written()
    (resolved,) = bench.all(fx.Resolved)
    assert resolved.error is None
    assert resolved.route is not None
    assert resolved.route.master in ("g1-0", "g1-1")


def test_a_planned_switch_is_dropped_if_the_master_does_not_rest() -> None:
    bench = planner()
    rehearsed(bench)
    (request,) = bench.sent(msg.QuiesceRequest, M00)
    bench.hear(M00, msg.QuiesceAnswer(P, 1, request.switch, False))
    assert bench.all(fx.Resolved)[0].error is not None
    assert not bench.sent(msg.FenceRequest)


def test_a_planned_switch_is_dropped_if_the_master_says_nothing() -> None:
    bench = planner()
    rehearsed(bench)
    bench.wait(SECOND, (M00, M01, M10, M11, M21))
    assert bench.all(fx.Resolved)[0].error is not None
    assert not bench.sent(msg.FenceRequest)


def test_the_master_queues_new_batches_until_commit_is_tail() -> None:
    bench = opened_master()
    first = bench.append(0, starts=True)
    bench.link(M20)
    bench.hear(M20, msg.QuiesceRequest(P, 1, b"s" * 16))
    queued = bench.append(1)
    assert not bench.sent(msg.QuiesceAnswer)
    bench.persist()
    bench.ack(M01, 1)
    assert [answer.quiet for answer in bench.sent(msg.QuiesceAnswer, M20)] == [True]
    assert list(bench.accepted()) == [first]
    assert queued not in bench.refused()
    assert bench.part.logs[1].tail == 1


def test_after_its_time_the_master_goes_on_accepting_in_order() -> None:
    bench = opened_master()
    bench.link(M20)
    bench.hear(M20, msg.QuiesceRequest(P, 1, b"s" * 16))
    bench.append(0, starts=True)
    bench.append(1)
    bench.wait(bench.config.planned_switch_us, (M01, M20))
    assert bench.sent(msg.QuiesceAnswer, M20)[-1].quiet is False
    bench.append(2)
    assert bench.part.logs[1].tail == 3
    assert not bench.refused()


def test_queued_batches_are_refused_with_the_new_route_only_after_the_transaction() -> None:
    bench = opened_master()
    bench.link(M20)
    bench.hear(M20, msg.QuiesceRequest(P, 1, b"s" * 16))
    request = bench.append(0, starts=True)
    bench.hear(M20, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    bench.persist()
    bench.wait(bench.config.planned_switch_us, (M01, M20))
    assert not bench.refused()
    bench.hear(M20, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 9))
    assert request in bench.refused()
    (refused,) = bench.all(fx.AppendRefused)
    assert refused.route is not None
    assert (refused.route.segment_no, refused.route.master) == (2, M10.broker)


def test_a_batch_behind_the_fence_waits_for_the_new_route_as_long_as_the_plan_has_time() -> None:
    bench, held = _held_behind_a_fence()
    bench.wait(bench.config.planned_switch_us, (M01, M20))
    late = bench.append(1)
    assert list(bench.refused()) == [late], "the plan may have failed, so its producer asks another broker"
    bench.hear(M20, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 9))
    routes = {refused.request: refused.route for refused in bench.all(fx.AppendRefused)}
    assert set(routes) == {late, held}
    assert (route := routes[held]) is not None
    assert (route.segment_no, route.master) == (2, M10.broker)
    assert bench.part.logs[1].tail == 0, "nothing of it is stored"


# ---- genesis and complaints -----------------------------------------------------------------------------


def test_a_partition_is_made_on_the_first_group_that_answers() -> None:
    bench = linked()
    bench.do(ev.CreatePartition(4, P, "orders", 3, True, ("g0", "g1")))
    bench.read_chain(None)
    prepare_answers(bench, asked_to_prepare(bench)[-1][1].members[0], refusal="voided")
    prepare_answers(bench, M10, M11)
    write = bench.all(fx.WriteChain)[-1]
    assert (write.revision, write.chain.epoch, write.chain.open_segment.no) == (0, 1, 1)
    assert write.chain.open_segment.broker_group == "g1"
    bench.written(DONE)
    assert [(effect.request, effect.error) for effect in bench.all(fx.Resolved)] == [(4, None)]


def test_a_complaint_is_answered_when_the_chain_is_past_the_segment() -> None:
    bench = opened_slave()
    bench.do(ev.ResolveProducer(5, P, 1, bench.now_us + SECOND))
    assert not bench.all(fx.Resolved)
    bench.link(M10)
    bench.hear(M10, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 9))
    (answer,) = bench.all(fx.Resolved)
    assert answer.route is not None
    assert answer.route.segment_no == 2


def test_a_complaint_is_answered_at_its_deadline() -> None:
    bench = opened_slave()
    bench.do(ev.ResolveProducer(5, P, 1, bench.now_us + 100 * MS))
    bench.wait(100 * MS, (M00,))
    assert [effect.request for effect in bench.all(fx.Resolved)] == [5]


def suspicion() -> Bench:
    """A bystander that is linked to the master, and is told that the master is silent to a client."""
    bench = Bench(M20)
    for member in (M00, M01, M10, M11):
        bench.link(member)
    bench.wait(MS)
    bench.clear()
    bench.do(ev.ResolveProducer(5, P, None, bench.now_us + SECOND, silent_segment=1))
    bench.read_chain(first_chain())
    assert bench.sent(msg.Heartbeat, M00), "it asks the master"
    assert not bench.all(fx.Resolved)
    return bench


def test_a_suspicion_is_answered_with_the_same_master_when_it_was_heard() -> None:
    bench = suspicion()
    bench.wait(bench.config.probe_us, (M00, M01, M10, M11))
    (answer,) = bench.all(fx.Resolved)
    assert answer.route is not None
    assert answer.route.segment_no == 1
    assert not bench.sent(msg.FenceRequest)


def test_a_suspicion_is_answered_with_the_next_master_when_its_segment_is_open() -> None:
    bench = suspicion()
    bench.wait(bench.config.probe_us + routes.LOOK_AGAIN_US, (M01, M10, M11))
    bench.read_chain(first_chain())  # the switch looks for itself
    assert bench.sent(msg.FenceRequest, M01)
    assert not bench.all(fx.Resolved)
    bench.hear(M10, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 9))
    (answer,) = bench.all(fx.Resolved)
    assert answer.route is not None
    assert answer.route.segment_no == 2


@pytest.mark.parametrize("pause_us", [160 * MS, 240 * MS, 340 * MS, 2 * SECOND])
def test_the_pause_of_the_asking_broker_is_no_silence_of_the_master(pause_us: int) -> None:
    bench = suspicion()
    (asked,) = bench.sent(msg.Heartbeat, M00)
    bench.now_us += pause_us  # the master's answer lies in the socket
    bench.do(ev.Tick())  # and the timers come first
    bench.answer(M00, asked)
    bench.wait(bench.config.probe_us, (M00, M01, M10, M11))
    assert not bench.sent(msg.FenceRequest)
    partition = bench.core.partitions.get(P)
    assert partition is None or partition.switch is None
    (answer,) = bench.all(fx.Resolved)
    assert answer.route is not None
    assert answer.route.segment_no == 1


@pytest.mark.parametrize("pause_us", [160 * MS, 240 * MS])
def test_a_silent_master_is_left_though_the_asking_broker_paused(pause_us: int) -> None:
    bench = suspicion()
    bench.now_us += pause_us
    bench.do(ev.Tick())
    bench.wait(bench.config.probe_us, (M01, M10, M11))
    assert bench.part.switch is not None
    assert bench.part.switch.reason.value == "silent to a client"


def test_a_suspicion_is_answered_at_its_deadline() -> None:
    bench = suspicion()
    bench.wait(SECOND, (M01, M10, M11))
    (answer,) = bench.all(fx.Resolved)
    assert answer.route is not None
    assert answer.route.segment_no == 1


def test_a_suspicion_of_a_segment_that_is_no_longer_open_is_answered_at_once() -> None:
    bench = Bench(M20)
    bench.link(M00)
    bench.do(ev.ResolveProducer(5, P, None, bench.now_us + SECOND, silent_segment=1))
    bench.read_chain(sealed_chain(first_chain(), 0, 0))
    (answer,) = bench.all(fx.Resolved)
    assert answer.route is not None
    assert answer.route.segment_no == 2


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_suspicion_of_the_next_segment_is_answered_though_the_segment_before_is_still_asked_about(
    is_heard: bool,
) -> None:
    bench = suspicion()
    bench.wait(bench.config.probe_us // 3)
    bench.hear(M10, msg.ChainUpdate(sealed_chain(first_chain(), 0, 0), 9))
    bench.wait(MS)
    bench.clear()
    bench.do(ev.ResolveProducer(6, P, None, bench.now_us + SECOND, silent_segment=2))
    assert bench.sent(msg.Heartbeat, M10), "it asks the next master"
    bench.read_chain(sealed_chain(first_chain(), 0, 0))
    assert not bench.all(fx.Resolved)
    bench.wait(bench.config.probe_us + routes.LOOK_AGAIN_US, (M00, M01, M10, M11) if is_heard else (M00, M01, M11))
    if is_heard:
        (answer,) = bench.all(fx.Resolved)
        assert answer.request == 6
    else:
        assert bench.part.switch is not None
        assert bench.part.switch.segment_no == 2


def test_suspicions_of_many_clients_cost_a_slave_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand producers find the same master silent, and the slave has a switch to run."""
    bench, looks = opened_slave(), 0
    look = routes._is_looked_into

    def counted(partition: Partition, waiter: Waiter) -> bool:
        nonlocal looks
        looks += 1
        return look(partition, waiter)

    monkeypatch.setattr(routes, "_is_looked_into", counted)
    for number in range(100):
        bench.do(ev.ResolveProducer(number, P, None, bench.now_us + SECOND, silent_segment=1))
    assert len(bench.part.waiters) == 100
    assert looks <= 200, "each question looks at all others"


def test_a_suspicion_does_not_wait_for_a_planned_switch() -> None:
    bench = suspicion()
    bench.do(ev.PlanSwitch(9, P, "g1"))
    bench.read_chain(first_chain())
    assert bench.part.switch is not None
    bench.wait(bench.config.probe_us, (M00, M01, M10, M11))
    assert bench.part.switch is not None
    assert [effect.request for effect in bench.all(fx.Resolved)] == [5]


def moved(bench: Bench, *ages_s: float) -> Chain:
    """A partition whose segments were opened this long ago, the oldest first."""
    chain = first_chain()
    for _ in ages_s[1:]:
        chain = sealed_chain(chain, 0, 0, (M00, M01))
    now_ms = bench._moment().wall_ms
    opened = [replace(segment, opened_at_ms=now_ms - int(age_s * 1000))
              for segment, age_s in zip(chain.segments, ages_s, strict=True)]  # fmt: skip
    return replace(chain, segments=tuple(opened))


def complaint(*ages_s: float) -> tuple[Bench, Chain]:
    """A bystander that is linked to the master, and is told that a client cannot reach it."""
    bench = Bench(M20)
    bench.link(M00)
    chain = moved(bench, *ages_s)
    bench.wait(MS)
    complain(bench, chain)
    return bench, chain


def complain(bench: Bench, chain: Chain) -> None:
    """A client cannot reach the master of the open segment."""
    bench.clear()
    bench.do(ev.ResolveProducer(5, P, chain.open_segment.no, bench.now_us + 60 * SECOND))
    bench.read_chain(chain)
    bench.read_chain(chain)  # the switch looks for itself


@pytest.mark.parametrize("ages_s", [(0.1,), (100.0, 0.1), (3.0, 1.1), (9.0, 6.0, 4.1), (0.1, -5.0)])
def test_a_complaint_is_believed_at_once_unless_the_partition_is_restless(ages_s: tuple[float, ...]) -> None:
    bench, _ = complaint(*ages_s)
    assert bench.sent(msg.FenceRequest, M00)


@pytest.mark.parametrize(("ages_s", "wait_s"), [((3.0, 0.1), 0.9), ((5.0, 0.5, 0.1), 3.9), ((5.0, 3.0, 2.0), 2.0)])
def test_a_complaint_about_a_restless_partition_does_not_count_while_its_master_answers(
    ages_s: tuple[float, ...], wait_s: float
) -> None:
    bench, chain = complaint(*ages_s)
    for wait_us in (int(wait_s * SECOND) - 50 * MS, 100 * MS):
        (answer,) = bench.all(fx.Resolved)
        assert answer.route is not None, "it is sent the same master, and tries again"
        assert answer.route.segment_no == len(ages_s)
        assert not bench.sent(msg.FenceRequest)
        bench.wait(wait_us, (M00,))
        complain(bench, chain)
    assert bench.sent(msg.FenceRequest, M00)


def test_one_client_that_reaches_no_broker_opens_2_100_segments_in_a_week_and_not_150_000() -> None:
    """It complains of each master as soon as it is named; all brokers are alive, and no message comes."""
    bench = Bench(M20)
    bench.link(M00)
    now_ms = bench._moment().wall_ms
    chain = first_chain()
    opened_ms, end_ms = now_ms, now_ms + 7 * 24 * 3_600_000
    count = 0
    while now_ms < end_ms:
        chain = replace(chain, segments=(*chain.segments[:-1], replace(chain.open_segment, opened_at_ms=opened_ms)))
        bench.core.state.now = ev.Moment(bench.now_us, now_ms)
        partitions.find(bench.core.partitions, P).chain = chain
        if routes._is_restless(bench.core.state, bench.part, chain.open_segment.no):
            now_ms += 1000 if count < 20 else 20_000  # only to be done sooner
            continue
        chain = sealed_chain(chain, 0, 0, (M00, M01), folds=True)
        opened_ms, count = now_ms, count + 1
    assert count < 2_100


def test_a_message_ends_the_patience_with_a_partition_that_was_moved_without_a_message() -> None:
    bench = Bench(M20)
    config, groups = bench.config, len(first_chain().send_chain)
    chain = first_chain()
    seen = []
    for _ in range(2 * groups + 8):
        chain = sealed_chain(chain, 0, 0, (M00, M01), folds=True)
        seen.append(routes._patience_without_messages_us(config, chain))
    assert seen[: 2 * groups - 1] == [0] * (2 * groups - 1), "each group was tried twice before"
    assert seen[2 * groups - 1 :] == [min(8 << n, 300) * SECOND for n in range(9)]
    assert routes._patience_without_messages_us(config, sealed_chain(chain, 1, 0, (M00, M01))) == 0


def test_a_complaint_about_a_restless_partition_does_not_wait_for_a_dead_master() -> None:
    bench, chain = complaint(9.0, 0.5, 0.1)
    assert not bench.sent(msg.FenceRequest)
    bench.wait(200 * MS)
    bench.read_chain(chain)
    assert bench.sent(msg.FenceRequest)


def test_the_slave_that_lost_its_master_seals_with_its_own_tail() -> None:
    bench = opened_slave()
    batches = batches_of(1, [1, 1])
    replicate(bench, batches, commit=1)
    bench.persist()
    for member in (M10, M11):
        bench.link(member)
    bench.unlink(M00, refused=True)
    bench.read_chain(first_chain())
    bench.persist()  # its own fence
    bench.wait(30 * MS, (M10, M11))
    prepare_answers(bench, M10, M11)
    old = segment_of(written_chain(bench), 1)
    assert (old.sealed_len, old.tail_from, old.server) == (2, 1, M01)


def test_a_switch_does_not_decide_before_its_own_fence_is_durable() -> None:
    bench = opened_slave()
    bench.unlink(M00, refused=True)
    bench.link(M10)
    bench.link(M11)
    bench.read_chain(first_chain())
    assert not asked_to_prepare(bench)
    bench.persist()
    bench.wait(30 * MS, (M10, M11))
    assert asked_to_prepare(bench)


# ---- large tables ---------------------------------------------------------------------------------------


def _table_of(count: int) -> Table:
    window = pack_window([Entry(0, 0, 1, make_offset(1, 0))])
    return pack_table({number.to_bytes(16, "big"): window for number in range(count)})


@pytest.mark.parametrize("producer_count", [10_000, 100_000])
def test_members_get_longer_to_write_a_larger_table(producer_count: int) -> None:
    bench = switcher()
    table = _table_of(producer_count)
    fenced(bench, M00, 0, unbroken=True, table=table)
    _, request = asked_to_prepare(bench)[-1]
    allowed_us = bench.config.prepare_timeout_us + bench.config.transfer_us(table.size_bytes)
    bench.wait(allowed_us - 1, (M00, M01, M10, M11, M21))
    assert asked_to_prepare(bench)[-1][1] == request, "the same try continues"
    prepare_answers(bench, M10, M11)
    assert written_chain(bench).open_segment.switch_attempt == request.switch_attempt


def test_a_switch_whose_members_are_always_a_little_too_slow_comes_to_an_end() -> None:
    """Each try starts over: were each given the same time, none would ever be through."""
    bench = switcher()
    all_others = (M00, M01, M10, M11, M21)
    took_us = 11 * bench.config.prepare_timeout_us // 10
    for _ in range(20):
        running = bench.part.switch
        assert running is not None
        if running.phase is SwitchPhase.READING:
            bench.clear()
            bench.read_chain(first_chain())
        elif running.phase is SwitchPhase.FENCING:
            fenced(bench, M00, 0, unbroken=True)
        elif running.phase is SwitchPhase.PREPARING:
            request = asked_to_prepare(bench)[-1][1]
            bench.wait(took_us, all_others)
            for member in set(request.members) & set(all_others):
                bench.hear(member, msg.PrepareAnswer(P, 2, request.switch_attempt, 1, ""))
        elif running.phase is SwitchPhase.WRITING:
            return
        else:
            bench.wait(SECOND, all_others)
    raise AssertionError("no try was through")


def test_a_fenced_member_waits_longer_for_a_switcher_that_carries_a_large_table() -> None:
    """Else it would run a switch of its own while the first one is under way, with the same table once more."""
    for table in (NO_TABLE, _table_of(16_000)):
        bench = Bench(M01)
        bench.open(first_chain(), table=table)
        bench.link(M10)
        bench.hear(M10, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
        bench.persist()
        bench.wait(bench.config.fenced_us + 2 * bench.config.transfer_us(len(table.rows)) - 1000)
        assert bench.part.switch is None
        bench.wait(2000 + bench.config.transfer_us(2 * len(table.rows)) // 10)
        assert bench.part.switch is not None


def _held_behind_a_fence() -> tuple[Any, int]:
    bench = opened_master()
    bench.link(M20)
    bench.hear(M20, msg.QuiesceRequest(P, 1, b"s" * 16))
    bench.hear(M20, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    held = bench.append(0, starts=True)
    bench.persist()
    assert not bench.refused()
    return bench, held


def test_a_held_batch_is_refused_when_its_segment_is_declared_lost() -> None:
    bench, held = _held_behind_a_fence()
    chain = sealed_chain(first_chain(), 0, 0)
    lost = replace(chain.segments[0], state=SegmentState.LOST)
    bench.hear(M20, msg.ChainUpdate(replace(chain, segments=(lost, *chain.segments[1:]), epoch=chain.epoch + 3), 9))
    bench.persist()
    assert held in bench.refused()
    assert bench.part.quiescence is None


def test_a_held_batch_is_refused_when_retention_has_dropped_its_segment() -> None:
    bench, held = _held_behind_a_fence()
    chain = sealed_chain(sealed_chain(first_chain(), 0, 0), 0, 0, (M00, M01))
    bench.hear(M20, msg.ChainUpdate(replace(chain, segments=chain.segments[-1:], epoch=chain.epoch + 3), 9))
    bench.persist()
    assert held in bench.refused()
    assert bench.part.quiescence is None
