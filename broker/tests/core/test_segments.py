"""The segments of a chain against a plain list of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_broker.core.values import segments as segments_module
from seriatim_broker.core.values.segment import Segment, Start
from seriatim_broker.core.values.segments import CHUNK_SEGMENTS, Changes, Segments

from .support import M00, M01, M10, M11, first_chain

_FIRST = first_chain().open_segment


def _segment(no: int, epoch: int = 1, mine: bool = True) -> Segment:
    members = (M00, M01) if mine else (M10, M11)
    return replace(_FIRST, no=no, server_epoch=epoch, members=members, eligible=members)


def _plain(count: int) -> dict[int, Segment]:
    return {no: _segment(no) for no in range(1, count + 1)}


@settings(deadline=None)
@given(st.data())
def test_it_is_the_plain_list_after_any_changes(data: st.DataObject) -> None:
    plain = _plain(data.draw(st.integers(1, 3 * CHUNK_SEGMENTS)))
    found = Segments.of(plain.values())
    for round_no in range(data.draw(st.integers(0, 5))):
        numbers = sorted(plain)
        chosen = data.draw(st.lists(st.sampled_from(numbers), max_size=5, unique=True))
        gone = data.draw(st.lists(st.sampled_from(numbers), max_size=min(70, len(numbers) - 1), unique=True))
        new = range(numbers[-1] + 1, numbers[-1] + 1 + data.draw(st.integers(0, 70)))
        changed = tuple(_segment(no, round_no + 2) for no in (*chosen, *new) if no not in gone)
        before, plain_before = found, dict(plain)
        found = found.with_changes(Changes(changed, tuple(gone)))
        plain.update((segment.no, segment) for segment in changed)
        for no in gone:
            del plain[no]
        changes = found.changes_since(before)
        assert {s.no for s in changes.changed} == {no for no in plain if plain[no] != plain_before.get(no)}
        assert set(changes.gone) == set(plain_before) - set(plain)
        assert before.with_changes(changes) == found
    listed = [plain[no] for no in sorted(plain)]
    assert list(found) == listed
    assert list(reversed(found)) == listed[::-1]
    assert len(found) == len(listed)
    assert found == tuple(listed)
    assert found.digest == Segments.of(listed).digest
    for no in range(max(plain) + 2):
        assert found.at(no) == plain.get(no)
    start, stop = data.draw(st.tuples(st.integers(-200, 200), st.integers(-200, 200)))
    assert found[start:stop] == tuple(listed[start:stop])
    assert [found[place] for place in range(-len(listed), len(listed))] == listed * 2


def test_a_sequence_from_elsewhere_takes_the_objects_that_are_known() -> None:
    known = Segments.of(_plain(200).values())
    other = Segments.of({**_plain(201), 100: _segment(100, 7)}.values())
    shared = other.sharing(known)
    assert shared == other
    assert [old is new for old, new in zip(known, shared, strict=False)].count(False) == 1
    assert {id(chunk) for chunk in shared._chunks} & {id(chunk) for chunk in known._chunks}
    assert other.sharing(known).changes_since(known).changed == (_segment(100, 7), _segment(201))


def test_peers_are_those_of_the_segments_that_are_shared() -> None:
    found = Segments.of([_segment(1), _segment(2, mine=False)])
    assert found.peers(M00) == ("g0-1",)
    assert found.peers(M11) == ("g1-0",)


def test_the_digest_of_a_segment_says_all_of_it() -> None:
    names = set(_FIRST.__slots__)
    first = replace(_FIRST, begin=Start(7, 7, 7))
    said = segments_module._digest(first)
    assert segments_module._digest(_FIRST) != said
    values = {
        "members": (M10,), "eligible": (), "tail_copies": (M10,), "server": M10, "switch_attempt": b"other",
        "broker_group": "g9", "state": type(_FIRST.state).LOST, "incomplete_table": True, "records_lost": True,
        "begin": Start(7, 7, 8),
    }  # fmt: skip
    for name in names:
        assert segments_module._digest(replace(first, **{name: values.get(name, 77)})) != said, name
