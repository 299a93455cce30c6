"""A partition that was just made, at a broker whose read of its chain began before."""

from __future__ import annotations

from seriatim_api.errors import UnknownTopicError
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev

from .support import SECOND, Bench, P, first_chain


def asking(request: int, bench: Bench) -> ev.ResolveProducer:
    return ev.ResolveProducer(request, P, None, bench.now_us + SECOND)


def test_a_read_that_began_before_the_question_refuses_nothing() -> None:
    bench = Bench()
    bench.do(asking(1, bench))
    bench.do(asking(2, bench))  # the partition may have been made between the two
    bench.clear()
    bench.read_chain(None)
    assert not bench.all(fx.Resolved)
    assert len(bench.all(fx.ReadChain)) == 1
    bench.read_chain(first_chain())
    assert [(told.request, told.error) for told in bench.all(fx.Resolved)] == [(1, None), (2, None)]


def test_what_a_later_read_does_not_find_is_not_there() -> None:
    bench = Bench()
    bench.do(asking(1, bench))
    bench.do(asking(2, bench))
    bench.read_chain(None)
    bench.read_chain(None)
    assert [type(told.error) for told in bench.all(fx.Resolved)] == [UnknownTopicError] * 2
    bench.clear()
    bench.do(asking(3, bench))
    bench.read_chain(None)
    assert [type(told.error) for told in bench.all(fx.Resolved)] == [UnknownTopicError]
