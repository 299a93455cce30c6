"""Tokens of grants: they grow over terms, and a term ends before its tokens do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from seriatim_api.v1 import broker_pb2
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import tokens
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.keyed import ConsumerGroupSettings, ConsumerMode

from .keyed_support import KeyedServing, indexes_of
from .support import GROUP, MS, STREAM, TOPIC, P

TERMS = (0, 1, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, tokens.TERM_MAX)


def test_tokens_of_a_term_are_above_those_of_each_lower_term() -> None:
    for lower, higher in pairwise(TERMS):
        assert tokens.first_of(lower) + tokens.count_max(lower) < tokens.first_of(higher)
    for term in TERMS:
        for token in (tokens.first_of(term), tokens.first_of(term) + tokens.count_max(term)):
            assert tokens.term_of(token) == term
            assert token < 1 << 63


def test_the_term_of_a_group_that_is_made_again_each_day_grows_by_one() -> None:
    """With retention of a minute, the chain record is written each 10 s. The group stays in one segment."""
    record = CursorRecord(1, 1, 0, TOPIC, mode=ConsumerMode.KEY_ORDERED)
    for _ in range(20 * 365):
        record = replace(record, term_base=record.next_term_base(1, 1))
    assert record.term_base + 1 == 20 * 365 + 1


def test_the_term_grows_by_one_when_a_group_is_rewound_and_comes_back() -> None:
    """The chain record was written three million times between the server epochs of both segments."""
    record, term = CursorRecord(2, 1, 0, TOPIC, mode=ConsumerMode.KEY_ORDERED), 3_000_000
    for left, following in ((3_000_000, 1), (1, 3_000_000)) * 1_000:
        record = record.after_term(left, following)
        assert record.term_base + following == (term := term + 1)


def test_a_base_says_that_there_were_tokens_also_in_another_mode() -> None:
    """Without it, the cursor could cross to a segment of a lower server epoch, and become key-ordered again there."""
    record = CursorRecord(1, 1, 0, TOPIC, mode=ConsumerMode.KEY_ORDERED)
    exclusive = record.with_settings(ConsumerGroupSettings())
    again = exclusive.after_term(9, 5).with_settings(ConsumerGroupSettings(ConsumerMode.KEY_ORDERED))
    assert again.term_base + 5 > 9
    assert CursorRecord(1, 1, 0, TOPIC).after_term(9, 5).term_base == 0


class Term(KeyedServing):
    """The cursor has a high term base."""

    base = 0

    def cursor(self, no: int = 1, epoch: int = 1, start: int = 0, revision: int = 5) -> None:
        record = CursorRecord(no, epoch, start, TOPIC, mode=self.mode, retry=self.policy, term_base=self.base)
        self.do(ev.CursorRead(P, GROUP, record, revision))

    def answer_write(self, outcome: ev.WriteOutcome = ev.WriteOutcome.DONE, revision: int = 6) -> CursorRecord:
        """The coordinator has carried out the write of the cursor."""
        write = self.all(fx.WriteCursor)[-1]
        assert write.chain_revision, "a server that was replaced writes no term"
        self.do(ev.CursorWritten(P, GROUP, write.serial, outcome, revision))
        return write.record

    @property
    def term(self) -> int:
        return self.base + self.part.consumer_groups[GROUP].served.server_epoch


@pytest.mark.parametrize("base", [0, (1 << 22) - 1, 1 << 24, tokens.TERM_MAX - 3])
def test_tokens_of_high_terms_fit_into_messages(base: int) -> None:
    bench = Term("ab")
    bench.base = base
    bench.serve()
    (granted,) = bench.delivered(fx.Granted)
    out = broker_pb2.DeliveryEvent()
    out.granted.token.extend(granted.tokens)
    assert [tokens.term_of(token) for token in granted.tokens] == [bench.term] * 2


def test_a_group_above_the_highest_term_is_refused() -> None:
    bench = Term("ab")
    bench.base = tokens.TERM_MAX
    bench.begin()
    bench.deliver()
    (refused,) = bench.delivered(fx.SubscriptionRefused)
    assert "consume under another group name" in str(refused.error)
    assert not bench.runs()


def few_tokens(keys: str = "abcdef") -> Term:
    """After four tokens the server takes the next term."""
    bench = Term(keys)
    bench.core.state.config = replace(bench.core.state.config, term_tokens_max=4)
    bench.begin(credit=0)
    keyed = bench.keyed
    keyed.handoff.rests_until_us = 1 << 60
    bench.deliver()
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.deliver()
    return bench


def test_the_next_term_is_taken_while_grants_go_on() -> None:
    bench = few_tokens()
    runs = bench.runs()
    assert [tokens.term_of(run.token) for run in runs] == [bench.term] * 6
    bench.nack(runs[0], delay_ms=0)
    bench.deliver()
    (again,) = bench.runs()
    assert tokens.term_of(again.token) == bench.term, "the write has no answer yet"
    record = bench.answer_write()
    assert record.term_base == bench.base + 1
    for run in (again, *runs[1:5]):
        bench.acks(run)
    assert not bench.void(), "earlier tokens count as before"
    bench.nack(runs[5], delay_ms=0)
    bench.deliver()
    (later,) = bench.runs()
    assert (tokens.term_of(later.token), indexes_of(later)) == (bench.term + 1, [5])
    assert later.token - tokens.first_of(bench.term + 1) == 1
    state = bench.part.cursor_in(1, GROUP)
    assert state is not None
    assert state.term_base == bench.base + 1, "what is reported to a rebuild"


def test_a_term_that_may_have_been_written_is_taken_up() -> None:
    bench = few_tokens()
    first = bench.runs()[0]
    bench.nack(first, delay_ms=0)
    bench.deliver()
    (first,) = bench.runs()
    record = bench.answer_write(ev.WriteOutcome.UNKNOWN)
    assert bench.all(fx.ReadCursor)
    bench.do(ev.CursorRead(P, GROUP, record, 6))
    bench.nack(first, delay_ms=0)
    bench.deliver()
    (later,) = bench.runs()
    assert later.token > first.token
    assert tokens.term_of(later.token) == bench.term + 1


def test_conflict_at_the_next_term_has_the_chain_read() -> None:
    """Else the server writes the term under the revision that it knows for ever, and grants nothing."""
    bench = few_tokens()
    bench.nack(bench.runs()[0], delay_ms=0)
    bench.deliver()
    reads = len(bench.all(fx.ReadChain))
    bench.answer_write(ev.WriteOutcome.CONFLICT, 0)
    assert len(bench.all(fx.ReadChain)) == reads + 1


def test_nothing_is_granted_when_a_term_has_no_more_tokens() -> None:
    bench = Term("ab")
    bench.begin(credit=0)
    bench.deliver()
    bench.core.state.streams.tokens = tokens.count_max(1) - 10
    bench.do(ev.ConsumerCredit(STREAM, 1 << 20))
    bench.deliver(400 * MS)
    assert not bench.runs(), "the tokens of the next frame would not fit"
    bench.answer_write()
    bench.deliver(400 * MS)
    assert [tokens.term_of(run.token) for run in bench.runs()] == [bench.term + 1] * 2
