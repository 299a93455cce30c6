"""Updates of a long chain say what changed in it; what cannot be taken up is read from the coordinator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import MemberId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain, change_server, remove_eligible
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.states import NOTHING
from seriatim_broker.rpc.links import codec

from .support import M00, M01, M10, M11, Bench, P, attempt, first_chain, sealed_chain, segment_of

ENCODED_BYTES_MAX = 4_000
"""Of an update of a switch and of a change of the right; 2.4 MB were seen for a whole record of 10,000 segments."""


def long_chain(count: int) -> Chain:
    """This many segments on the first group, all but the last of them sealed."""
    first = sealed_chain(first_chain(), 0, 0, members=(M00, M01))
    sealed, last = first.segments
    segments = tuple(replace(sealed, no=no, switch_attempt=attempt(no), server_epoch=no) for no in range(1, count))
    return replace(
        first,
        epoch=count,
        segments=(*segments, replace(last, no=count, switch_attempt=attempt(count), server_epoch=count)),
    )


def link(bench: Bench, member: MemberId) -> None:
    """A new connection to a member."""
    bench.sessions[member.broker] = bench.sessions.get(member.broker, 0) + 1
    bench.do(ev.LinkUp(member.broker, member, 1, bench.sessions[member.broker]))


def switched(chain: Chain) -> Chain:
    """The record after one more switch."""
    return sealed_chain(chain, 0, 0, members=(M10, M11))


def teller(chain: Chain, steps: int = 2) -> tuple[Bench, msg.Message, Chain]:
    """A member that has seen this many switches since it knows the chain; what it sends M01, and the newest
    record."""
    bench = Bench(M00)
    bench.read_chain(chain)
    for _ in range(steps):
        chain = switched(chain)
        bench.read_chain(chain)
    bench.clear()
    link(bench, M01)
    bench.clear()
    bench.hear(M01, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))  # decided long ago: it is sent the record
    (told,) = [effect.message for effect in bench.all(fx.Send) if effect.broker == M01.broker]
    return bench, told, chain


def hearer(chain: Chain | None, config: BrokerConfig | None = None) -> Bench:
    """A member that knows this record."""
    bench = Bench(M01, config=config)
    link(bench, M00)
    if chain is not None:
        bench.read_chain(chain)
    bench.clear()
    return bench


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_an_update_of_a_long_chain_is_small(count: int) -> None:
    _, told, chain = teller(long_chain(count))
    assert isinstance(told, msg.ChainChanges)
    assert len(codec.encode(told)) < ENCODED_BYTES_MAX
    bench = hearer(long_chain(count))
    found = codec.decode(codec.encode(told))
    bench.hear(M00, found)
    assert bench.part.chain == chain
    assert not bench.all(fx.ReadChain)


def test_a_short_record_is_told_whole() -> None:
    _, told, chain = teller(long_chain(60))
    assert told == msg.ChainUpdate(chain, 100 + chain.epoch)


def test_what_changed_is_taken_up_from_any_record_since() -> None:
    """Lost ones between do not matter, and neither do those that came another way."""
    chain = long_chain(200)
    _, told, newest = teller(chain, steps=3)
    for known in (chain, switched(chain), switched(switched(chain))):
        bench = hearer(known)
        bench.hear(M00, told)
        assert bench.part.chain == newest
        bench.hear(M00, told)
        assert bench.part.chain == newest, "reported twice"


def test_who_knows_less_reads_the_coordinator_until_it_has_what_it_was_told() -> None:
    chain = long_chain(200)
    _, told, newest = teller(chain, steps=20)
    bench = hearer(chain)
    bench.hear(M00, told)
    assert bench.part.chain == chain
    assert len(bench.all(fx.ReadChain)) == 1
    bench.clear()
    bench.read_chain(switched(chain))  # the read was under way before
    bench.wait(bench.config.retry_us_max)
    assert bench.all(fx.ReadChain)
    bench.read_chain(newest)
    bench.clear()
    bench.wait(10 * bench.config.retry_us_max)
    assert not bench.all(fx.ReadChain)


def test_a_new_member_that_knows_nothing_reads_the_coordinator() -> None:
    _, told, newest = teller(long_chain(200))
    bench = Bench(M10)
    link(bench, M00)
    bench.clear()
    bench.hear(M00, told)
    assert bench.all(fx.ReadChain)
    bench.read_chain(newest)
    assert bench.part.chain == newest


def test_changes_that_do_not_fit_what_is_known_are_not_taken_up() -> None:
    chain = long_chain(200)
    _, told, _ = teller(chain)
    other = remove_eligible(chain, 100, (M01,))
    bench = hearer(replace(other, epoch=chain.epoch))  # the coordinator was restored, and continued from an older copy
    bench.hear(M00, told)
    assert bench.part.chain is not None
    assert bench.part.chain.epoch == chain.epoch
    assert [note.name for note in bench.all(fx.Note)] == ["chain_differs"]
    assert bench.all(fx.ReadChain)


def test_an_older_update_is_answered_with_the_newer_record() -> None:
    chain = long_chain(200)
    _, told, newest = teller(chain)
    bench = hearer(switched(newest))
    bench.hear(M00, told)
    (answer,) = bench.sent(msg.ChainChanges, M00)
    assert answer.chain.epoch == newest.epoch + 1


def test_a_refused_server_is_told_of_its_segment_though_that_changed_long_ago() -> None:
    """It serves no more from then on, even if it cannot take up the record yet."""
    chain = long_chain(200)
    taken = change_server(chain, 50, M01, ())
    newest = taken
    for _ in range(20):
        newest = switched(newest)
    bench = Bench(M01)
    bench.read_chain(newest)
    bench.core.state.links.refusals = {M00.broker: {P: {50: (0, 0)}}}
    link(bench, M00)
    told = bench.sent(msg.ChainChanges, M00)[-1]
    assert segment_of(told.chain, 50).server == M01
    old = hearer_of(M00, chain)
    assert 50 in old.part.rights
    old.hear(M01, told)
    assert 50 not in old.part.rights
    assert old.part.rights != NOTHING


def hearer_of(member: MemberId, chain: Chain) -> Bench:
    """A member that knows this record, and serves what it says."""
    bench = Bench(member)
    link(bench, M01)
    bench.read_chain(chain)
    return bench
