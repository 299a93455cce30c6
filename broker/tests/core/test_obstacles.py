"""What is reported of a group that does not get empty: what waits for something, and nothing that merely takes its
time."""

from __future__ import annotations

from dataclasses import replace

from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.control.obstacles import Around, obstacles
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import Segment, SegmentState

from .support import M00, M01, M10, M11, M20, first_chain

EVERYBODY = frozenset((M00, M01, M10, M11, M20))


def chain_of(sealed: Segment) -> Chain:
    """A sealed segment 1, and an open one on g1."""
    first = first_chain()
    opened = replace(first.open_segment, no=2, broker_group="g1", members=(M10, M11), server=M10, eligible=(M10, M11))
    return replace(first, partition=PartitionId(7), topic="orders", number=3, segments=(sealed, opened))


def sealed(*eligible: MemberId, more: tuple[MemberId, ...] = (), tail: tuple[MemberId, ...] = ()) -> Segment:
    """Segment 1 of g0: those who may serve it, further copies that may not yet, and holders of its tail."""
    opened = first_chain().open_segment
    return replace(
        opened, state=SegmentState.SEALED, sealed_len=5, members=(*eligible, *more), eligible=eligible,
        server=eligible[0], tail_copies=tail,
    )  # fmt: skip


def told(
    chain: Chain,
    there: frozenset[MemberId] = EVERYBODY,
    *,
    replaced: frozenset[MemberId] = frozenset(),
    closed: frozenset[str] = frozenset({"g0"}),
    takers: frozenset[str] = frozenset({"g1-0", "g1-1"}),
    whole: bool = True,
) -> list[str]:
    around = Around(
        closed, lambda member: member.broker.startswith("g0"), there.__contains__, replaced.__contains__, takers,
        whole, 2,
    )  # fmt: skip
    return [text for _, text in obstacles(chain, around)]


def test_what_leaves_by_itself_is_not_told() -> None:
    chain = chain_of(sealed(M00, M01))
    assert told(chain) == []
    assert told(chain, EVERYBODY - {M00}) == [], "the other one takes the right to serve"
    assert told(first_chain()) == [], "its head is about to move"


def test_a_segment_that_nobody_may_serve_waits_for_those_who_may_come_back() -> None:
    chain = chain_of(sealed(M00, M01, more=(M10,)))
    alone = EVERYBODY - {M00, M01}
    (text,) = told(chain, alone)
    assert text == "segment 1 of orders/3 has no live server: g0-0 or g0-1 must come back"
    (text,) = told(chain, alone, replaced=frozenset({M00}))
    assert "no live server: g0-1 must" in text, "a disk that was replaced never comes back"
    assert told(chain, alone, replaced=frozenset({M00, M01})) == [], "then another in-sync copy serves"
    (text,) = told(chain_of(sealed(M00, M01)), alone, replaced=frozenset({M00, M01}))
    assert "none of its disks can come back" in text


def test_too_few_brokers_for_the_copies_are_told_and_a_holder_of_the_tail_is_no_copy() -> None:
    chain = chain_of(sealed(M00, M01, tail=(M10, M11)))
    (text,) = told(chain, takers=frozenset())
    assert text.endswith("needs 2 copies, and 0 other brokers are live")
    assert told(chain_of(sealed(M00, M01, more=(M10,))), takers=frozenset({"g2-0"})) == []


def test_a_head_waits_for_a_whole_group_or_for_its_own_members() -> None:
    chain = first_chain()
    (text,) = told(chain, whole=False)
    assert "no other group is complete" in text
    (text,) = told(chain, EVERYBODY - {M00, M01})
    assert "g0-0 or g0-1 must come back, or an administrator must say that g0-0 has ended" in text
    (text,) = told(chain, EVERYBODY - {M00, M01}, replaced=frozenset({M00, M01}))
    assert "must come back" not in text
    assert told(chain, whole=False, closed=frozenset()) == []


def test_an_unsettled_segment_waits_for_one_that_may_know_its_length() -> None:
    unsettled = replace(sealed(M00, M01), state=SegmentState.UNSETTLED, sealed_len=None)
    assert told(chain_of(unsettled), EVERYBODY - {M01}) == [], "one is enough"
    away = EVERYBODY - {M00, M01}
    (text,) = told(chain_of(unsettled), away)
    assert text.endswith("has no settled length: g0-0 or g0-1 must come back")
    (text,) = told(chain_of(unsettled), away, replaced=frozenset({M00, M01}))
    assert "declare-gap" in text
