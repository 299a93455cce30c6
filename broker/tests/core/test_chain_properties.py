"""What is true of every chain that transitions can make, whatever their order (hypothesis plays the switchers)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values.chain import Chain, Opening, Seal
from seriatim_broker.core.values.segment import LEGAL_TRANSITIONS, IllegalTransitionError, Segment, SegmentState

GROUPS = ("g0", "g1", "g2")
QUICK = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _members(group: str) -> tuple[MemberId, ...]:
    return tuple(MemberId(f"{group}-{slot}", f"{group}{slot}" * 8) for slot in range(3))


def _opening(draw: st.DrawFn, *, incomplete: bool) -> Opening:
    group = draw(st.sampled_from(GROUPS))
    members = tuple(draw(st.permutations(_members(group)))[:2])
    return Opening(draw(st.binary(min_size=16, max_size=16)), group, members, draw(st.integers(1, 5)), incomplete)


def _seal(draw: st.DrawFn, segment: Segment) -> Seal:
    length = draw(st.integers(0, 100))
    has_tail = draw(st.booleans())
    return Seal(
        length=length,
        checksum=draw(st.integers(0, 2**32 - 1)),
        server=segment.members[-1],
        eligible=segment.members[-1:],
        tail_from=draw(st.integers(0, length)) if has_tail else None,
        tail_copies=_members("g2")[:2] if has_tail else (),
        size_bytes=draw(st.integers(0, 10_000)),
    )


@dataclass
class Story:
    """The versions of one chain, oldest first."""

    versions: list[Chain]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """A chain's life: some twenty transitions of any kind that is possible at that moment."""
    chain = chains.create(PartitionId(1), "t", 0, True, GROUPS, _opening(draw, incomplete=False), 1)
    versions = [chain]
    for now_ms in range(draw(st.integers(0, 20))):
        chain = _step(draw, chain, now_ms)
        versions.append(chain)
    return Story(versions)


def _step(draw: st.DrawFn, chain: Chain, now_ms: int) -> Chain:
    unsettled = [segment for segment in chain.segments if segment.state is SegmentState.UNSETTLED]
    sealed = [segment for segment in chain.segments if segment.state is SegmentState.SEALED]
    kinds = ["seal", "seal", "open_over", "server", "silent"]
    kinds += ["settle", "settle", "lose"] if unsettled else []
    kinds += ["copy", "uncopy", "lose_sealed"] if sealed else []
    kind = draw(st.sampled_from(kinds))
    if kind == "seal":
        opening = _opening(draw, incomplete=chain.open_segment.incomplete_table)
        return chains.seal_and_open(chain, _seal(draw, chain.open_segment), opening, now_ms)
    if kind == "open_over":
        return chains.open_over(chain, _opening(draw, incomplete=True), now_ms)
    if kind == "settle":
        segment = draw(st.sampled_from(unsettled))
        return chains.settle(chain, segment.no, _seal(draw, segment))
    if kind in ("lose", "lose_sealed"):
        return chains.declare_lost(chain, draw(st.sampled_from(unsettled if kind == "lose" else sealed)).no)
    if kind in ("copy", "uncopy"):
        return _change_copies(draw, chain, draw(st.sampled_from(sealed)), kind)
    segment = draw(st.sampled_from(chain.segments))
    if kind == "server":
        server = draw(st.sampled_from(segment.members))
        silent = [member for member in segment.eligible if member != server and draw(st.booleans())]
        return chains.change_server(chain, segment.no, server, silent)
    silent = [member for member in segment.eligible if member != segment.server and draw(st.booleans())]
    return chains.remove_eligible(chain, segment.no, silent)


def _change_copies(draw: st.DrawFn, chain: Chain, segment: Segment, kind: str) -> Chain:
    new = MemberId("spare", draw(st.integers(0, 10**6)).to_bytes(16, "big").hex())
    if new in segment.members:
        return chain
    if kind == "copy":
        return chains.add_copy(chain, segment.no, new)
    others = [member for member in segment.members if member != segment.server]
    return chains.replace_copy(chain, segment.no, new, others[0]) if others else chain


def _same(before: Chain, after: Chain) -> list[tuple[Segment, Segment]]:
    """The segments that both versions have, as they are in each."""
    return [(old, new) for old in before.segments if (new := after.segment(old.no)) is not None]


def _pairs(story: Story) -> list[tuple[Chain, Chain]]:
    return [(a, b) for a, b in zip(story.versions, story.versions[1:], strict=False) if a is not b]


@QUICK
@given(stories())
def test_versions_form_one_line_with_one_open_segment_at_its_end(story: Story) -> None:
    for before, after in _pairs(story):
        assert after.epoch == before.epoch + 1
        assert [segment.state for segment in after.segments].count(SegmentState.OPEN) == 1
        assert after.open_segment.state is SegmentState.OPEN
        chains.check(after)
        assert after.open_segment.no - before.open_segment.no in (0, 1)
        gone = {segment.no for segment in before.segments} - {segment.no for segment in after.segments}
        assert all(after.is_folded(no) and before.segment(no).sealed_len == 0 for no in gone)  # type: ignore[union-attr]


@QUICK
@given(stories())
def test_a_length_and_a_base_once_known_never_change(story: Story) -> None:
    for before, after in _pairs(story):
        for old, new in _same(before, after):
            if old.is_settled:
                assert (new.sealed_len, new.sealed_checksum) == (old.sealed_len, old.sealed_checksum)
            if old.base is not None:
                assert new.base == old.base
            assert new.state is old.state or new.state in LEGAL_TRANSITIONS[old.state]


@QUICK
@given(stories())
def test_what_opened_a_segment_never_changes(story: Story) -> None:
    for before, after in _pairs(story):
        for old, new in _same(before, after):
            fixed = ("switch_attempt", "broker_group", "master_run", "incomplete_table", "opened_at_ms")
            assert [getattr(new, name) for name in fixed] == [getattr(old, name) for name in fixed]
            if old.state in (SegmentState.OPEN, SegmentState.UNSETTLED):
                assert new.members == old.members


@QUICK
@given(stories())
def test_positions_are_known_up_to_the_first_unsettled_segment(story: Story) -> None:
    for chain in story.versions:
        base: int | None = 0
        for segment in chain.segments:
            assert segment.base == base
            settled = segment.is_settled and segment.sealed_len is not None
            base = base + segment.sealed_len if base is not None and settled else None  # type: ignore[operator]


@QUICK
@given(stories())
def test_the_send_chain_keeps_its_groups_and_its_head_owns_the_open_segment(story: Story) -> None:
    for before, after in _pairs(story):
        assert sorted(after.send_chain) == sorted(GROUPS)
        if len(after.segments) > len(before.segments):
            assert after.send_chain[0] == after.open_segment.broker_group
            if before.open_segment.broker_group != after.open_segment.broker_group:
                assert after.send_chain[-1] == before.open_segment.broker_group


@QUICK
@given(stories())
def test_a_new_server_means_a_new_server_epoch_and_is_eligible(story: Story) -> None:
    for before, after in _pairs(story):
        for old, new in _same(before, after):
            assert new.server_epoch >= old.server_epoch
            if new.server != old.server:
                assert new.server_epoch == after.epoch
            assert new.server in new.eligible


@QUICK
@given(stories(), st.sampled_from(list(SegmentState)))
def test_a_transition_outside_the_table_is_refused(story: Story, target: SegmentState) -> None:
    for segment in story.versions[-1].segments:
        if target in LEGAL_TRANSITIONS[segment.state]:
            assert segment.to_state(target) is target
        else:
            with pytest.raises(IllegalTransitionError):
                segment.to_state(target)


@QUICK
@given(stories())
def test_check_finds_a_planted_fault(story: Story) -> None:
    chain = story.versions[-1]
    first = chain.segments[0]
    faulty = [
        replace(chain, segments=(*chain.segments, replace(chain.open_segment, no=chain.open_segment.no + 1))),
        replace(chain, segments=(replace(first, server_epoch=chain.epoch + 1), *chain.segments[1:])),
        replace(chain, segments=(replace(first, members=()), *chain.segments[1:])),
        replace(chain, segments=(*chain.segments[:-1], replace(chain.open_segment, sealed_len=1))),
    ]
    for wrong in faulty:
        with pytest.raises(AssertionError):
            chains.check(wrong)
