"""Batches of publications between master and follower: a header, and a body that is staged on the follower too."""

from __future__ import annotations

from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import Batch, PutBatch
from seriatim_broker.core.writing.replication import LOOKS_AGAIN_US

from .support import M00, M01, M10, P, attempt, opened_master, opened_slave, replicate
from .test_publication_rows import asked, place_of, staged_batch

COUNT = 4


def _published(count: int = COUNT) -> tuple[list[msg.ReplicateStaged], list[Batch]]:
    """What a master sends of a publication of this many batches, and the batches."""
    carry, _ = asked(*(2,) * count)
    carry.fetched(is_here=True)
    sent = carry.bench.sent(msg.ReplicateStaged, M01)
    return sent, [put.batch for put in carry.bench.writes(PutBatch)]


class Follower:
    """The follower of that master."""

    def __init__(self) -> None:
        self.bench = opened_slave()
        self.sent, self.batches = _published()

    def hear(self, *numbers: int) -> None:
        """These batches come."""
        for number in numbers:
            self.bench.hear(M00, self.sent[number])

    def fetched(self, *numbers: int, missing: bool = False) -> None:
        """The staged batches of these questions were read."""
        questions = self.bench.all(fx.FetchStaged)
        for number in numbers:
            batch = None if missing else staged_batch(number)
            self.bench.do(ev.StagedFetched(questions[number].serial, P, batch, is_here=True))

    @property
    def log(self) -> list[Batch]:
        """What it wrote."""
        return [put.batch for put in self.bench.writes(PutBatch)]

    @property
    def refusals(self) -> list[str]:
        """What it said to the master instead of an acknowledgement."""
        return [refused.reason for refused in self.bench.sent(msg.ReplicateRefused, M00)]


# ---- the master -----------------------------------------------------------------------------------------


def test_a_master_that_has_what_is_staged_sends_where_it_is() -> None:
    carry, request = asked(2, 3)
    carry.fetched(is_here=True)
    assert not carry.bench.sent(msg.Replicate)
    puts = carry.bench.writes(PutBatch)
    assert [put.adopts for put in puts] == [staged_batch(0).header, staged_batch(1, 3).header]
    assert carry.bench.sent(msg.ReplicateStaged, M01) == [
        msg.ReplicateStaged(P, 1, attempt(1), 0, put.batch.header, place)
        for put, place in zip(puts, [place_of(0), place_of(1, 3)], strict=True)
    ]
    carry.commit()
    assert carry.answer(request) is not None


def test_a_master_that_had_to_fetch_it_elsewhere_sends_the_bodies() -> None:
    carry, _ = asked(2)
    carry.fetched()
    assert not carry.bench.sent(msg.ReplicateStaged)
    assert carry.bench.sent(msg.Replicate, M01)[0].batches[0].body == staged_batch(0).body


def test_a_small_body_is_sent_and_written() -> None:
    carry, _ = asked(2, bench=opened_master(config=BrokerConfig()))
    carry.fetched(is_here=True)
    assert not carry.bench.sent(msg.ReplicateStaged)
    assert carry.bench.sent(msg.Replicate, M01)[0].batches
    assert [put.adopts for put in carry.bench.writes(PutBatch)] == [None]


def test_a_follower_that_lacks_what_is_staged_gets_the_bodies_from_there_on() -> None:
    bench = opened_master()
    carry, request = asked(2, 2, bench=bench)
    carry.fetched(is_here=True)
    bench.hear(M01, msg.ReplicateRefused(P, 1, attempt(1), "staged"))
    assert bench.sent(msg.TailRequest, M01)
    bench.hear(M01, msg.TailAnswer(P, 1, attempt(1), 0, 0, 0))
    assert [len(sent.batches) for sent in bench.sent(msg.Replicate, M01)] == [2]
    assert bench.part.switch is None, "the segment continues"
    carry.commit()
    assert carry.answer(request) is not None
    bench.clear()
    carry.answered.clear()
    carry.ask(2, sequence=8)
    carry.fetched(is_here=True)
    assert not bench.sent(msg.ReplicateStaged)
    assert len(bench.sent(msg.Replicate, M01)) == 1
    carry.commit()
    bench.wait(LOOKS_AGAIN_US, (M01,))
    carry.ask(2, sequence=9)
    carry.fetched(is_here=True)
    assert len(bench.sent(msg.ReplicateStaged)) == 1, "it may have it by now"


# ---- the follower ---------------------------------------------------------------------------------------


def test_a_follower_reads_the_body_and_takes_the_batch() -> None:
    follower = Follower()
    follower.hear(0)
    (question,) = follower.bench.all(fx.FetchStaged)
    assert question.only_here
    assert question.staged == place_of(0)
    assert not follower.log
    follower.fetched(0)
    assert follower.log == follower.batches[:1]
    (put,) = follower.bench.writes(PutBatch)
    assert put.adopts == staged_batch(0).header
    assert not follower.bench.sent(msg.ReplicateAck)
    follower.bench.persist()
    assert follower.bench.sent(msg.ReplicateAck, M00)[-1].durable == 2


def test_bodies_that_come_out_of_order_wait_for_those_before() -> None:
    follower = Follower()
    follower.hear(0, 1, 2)
    follower.fetched(2, 1)
    assert not follower.log
    follower.fetched(0)
    assert follower.log == follower.batches[:3]


def test_what_the_master_sends_behind_it_waits_too() -> None:
    follower = Follower()
    follower.hear(0)
    replicate(follower.bench, tuple(follower.batches[1:2]))
    follower.hear(2)
    assert not follower.refusals
    follower.fetched(0)
    assert follower.log == follower.batches[:2]
    follower.bench.do(ev.StagedFetched(follower.bench.all(fx.FetchStaged)[1].serial, P, staged_batch(2)))
    assert follower.log == follower.batches[:3]


def test_the_commit_does_not_wait_for_a_body() -> None:
    follower = Follower()
    replicate(follower.bench, tuple(follower.batches[:1]))
    follower.hear(1)
    replicate(follower.bench, (), commit=2)
    assert follower.bench.part.logs[1].commit == 2


def test_a_follower_without_the_body_says_so_and_takes_the_bytes() -> None:
    follower = Follower()
    follower.hear(0, 1, 2)
    follower.fetched(1, missing=True)
    assert follower.refusals == ["staged"]
    follower.fetched(0, 2)
    assert not follower.log, "the master begins again after the tail"
    follower.bench.hear(M00, msg.TailRequest(P, 1, attempt(1)))
    replicate(follower.bench, tuple(follower.batches))
    assert follower.log == follower.batches
    assert follower.refusals == ["staged"]


def test_a_body_that_is_not_what_the_master_named_is_not_taken() -> None:
    """Also where it is what the manifest names: the header of the master promises another one."""
    for wrong in (staged_batch(1), staged_batch(0, chunk=b"x" * 16)):
        follower = Follower()
        follower.hear(0)
        follower.bench.do(ev.StagedFetched(follower.bench.all(fx.FetchStaged)[0].serial, P, wrong, is_here=True))
        assert follower.refusals == ["staged"]
        assert not follower.log
    follower = Follower()
    follower.bench.hear(M00, msg.ReplicateStaged(P, 1, attempt(1), 0, follower.batches[0].header, place_of(1)))
    follower.bench.do(ev.StagedFetched(follower.bench.all(fx.FetchStaged)[0].serial, P, staged_batch(1)))
    assert follower.refusals == ["staged"]
    assert not follower.log


def test_a_resume_lets_go_of_what_waits() -> None:
    follower = Follower()
    follower.hear(0, 1)
    follower.bench.hear(M00, msg.TailRequest(P, 1, attempt(1)))
    assert follower.bench.sent(msg.TailAnswer, M00)[-1].tail == 0
    follower.fetched(0)
    assert not follower.log
    replicate(follower.bench, tuple(follower.batches))
    assert follower.log == follower.batches
    follower.fetched(1)
    assert follower.log == follower.batches


def test_a_fenced_follower_takes_no_body_that_comes_late() -> None:
    follower = Follower()
    follower.hear(0, 1)
    follower.bench.link(M10)
    follower.bench.hear(M10, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    follower.fetched(0, 1)
    assert not follower.log
    follower.hear(2)
    assert follower.refusals[-1] == "fenced"


def test_a_batch_that_came_twice_is_asked_for_once() -> None:
    follower = Follower()
    follower.hear(0)
    follower.fetched(0)
    follower.hear(0)
    assert len(follower.bench.all(fx.FetchStaged)) == 1
    assert follower.log == follower.batches[:1]


def test_a_frame_of_another_attempt_asks_for_nothing() -> None:
    follower = Follower()
    sent = follower.sent[0]
    follower.bench.hear(M00, msg.ReplicateStaged(P, 1, b"another attempt!", 0, sent.header, sent.staged))
    assert follower.refusals == ["fenced"]
    assert not follower.bench.all(fx.FetchStaged)


def test_the_order_holds_when_a_body_is_here_and_the_one_before_is_not() -> None:
    """The first is refused: nothing that comes after it may be taken, although it is here."""
    follower = Follower()
    follower.hear(0, 1)
    follower.fetched(1)
    follower.fetched(0, missing=True)
    assert not follower.log
    assert follower.refusals == ["staged"]
    assert not follower.bench.part.logs[1].held
