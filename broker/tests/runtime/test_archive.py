"""Long chains in the coordinator: nothing is lost between record and pages, and neither grows without bound."""

from __future__ import annotations

import typing
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim_api.errors import CorruptionError
from seriatim_api.ids import MemberId
from seriatim_api.v1 import records_pb2
from seriatim_broker.core.values.chain import (
    CHANGED_AT_ONCE_MAX,
    Chain,
    Opening,
    Seal,
    add_copy,
    change_server,
    check,
    declare_lost,
    may_join,
    merged,
    open_over,
    replace_copy,
    seal_and_open,
    settle,
    trim,
)
from seriatim_broker.core.values.segment import SegmentState as State
from seriatim_broker.interfaces.coordinator import REQUEST_SIZE_BYTES_MAX
from seriatim_broker.runtime.coordinator.chain_layout import (
    MOVED_SEGMENTS_MAX,
    RECORD_SEGMENTS_MAX,
    RECORD_SEGMENTS_MIN,
    ChainArchive,
    Layout,
    PagesNeededError,
)
from seriatim_broker.runtime.coordinator.records import PAGE_SEGMENTS, chain_to_record, page_numbers, parse_record

from .test_planning import CHAIN

UNKNOWN = b"\xc2\x3e\x05newer"  # field 1000, length-delimited
A, B, C = (MemberId(f"g{number}-0", f"{number:032x}") for number in range(3))


def opening(no: int, *, incomplete: bool = False) -> Opening:
    return Opening(no.to_bytes(16, "big"), "g0", (A, B), 1, incomplete)


SEAL = Seal(10, 5, A, (A, B), None, (), 0)


def switched(chain: Chain, times: int) -> Chain:
    for _ in range(times):
        chain = seal_and_open(chain, SEAL, opening(chain.open_segment.no + 1), 1)
    return chain


@cache
def longer(count: int) -> Chain:
    """A chain of `count` segments."""
    last = replace(CHAIN.open_segment, switch_attempt=bytes(16), members=(A, B), server=A, eligible=(A, B))
    sealed = replace(last, state=State.SEALED, sealed_len=10, sealed_checksum=5, sealed_bytes=90)
    older = tuple(replace(sealed, no=no, base=10 * (no - 1)) for no in range(1, count))
    chain = replace(CHAIN, segments=(*older, replace(last, no=count, base=10 * (count - 1))), epoch=max(CHAIN.epoch, 9))
    check(chain)
    return chain


class Store:
    """What a coordinator would hold of one partition, and how often each page was written."""

    def __init__(self) -> None:
        self.record = b""
        self.pages: dict[int, bytes] = {}
        self.revision = 0
        self.page_writes: list[int] = []

    def take(self, layout: Layout) -> int:
        self.revision += 1
        self.record = layout.record
        for number, value in layout.pages:
            self.page_writes.append(number)
            if value is None:
                del self.pages[number]
            else:
                self.pages[number] = value
        return self.revision

    def write(self, archive: ChainArchive, chain: Chain) -> None:
        layout = archive.lay_out(chain)
        archive.written(layout, self.take(layout))

    def read(self, archive: ChainArchive) -> Chain:
        record = parse_record(self.record)
        numbers = page_numbers(record)
        assert sorted(self.pages) == list(numbers)
        assert len(record.segments) <= RECORD_SEGMENTS_MAX
        return archive.parse(self.record, self.revision, [self.pages[number] for number in numbers])


def read_again(store: Store, archive: ChainArchive) -> tuple[Chain, list[int]]:
    """What a broker reads that holds something already, and which pages it needs for that."""
    numbers = archive.unread(store.record)
    if numbers is None:
        return store.read(archive), sorted(store.pages)
    values = [store.pages[number] for number in numbers]
    return archive.parse(store.record, store.revision, values, numbers), list(numbers)


def changed(chain: Chain, no: int, kind: str) -> Chain:
    """One step of a chain, at an old segment where the step has one."""
    segment = chain.segment(no)
    assert segment is not None
    if kind == "switch" or segment is chain.open_segment:
        return switched(chain, 1)
    if kind == "unsettle":
        return open_over(chain, opening(chain.open_segment.no + 1, incomplete=True), 1)
    if kind == "server":
        return change_server(chain, no, B if segment.server == A else A, ())
    if kind == "lost" and segment.state is not State.LOST:
        return declare_lost(chain, no)
    if segment.state is State.UNSETTLED:
        return settle(chain, no, SEAL)
    if kind == "copy" and segment.state is State.SEALED and C not in segment.members:
        return replace_copy(chain, no, C, B) if segment.server != B else add_copy(chain, no, C)
    if kind == "drop" and chain.settled_before(no):
        return trim(chain, no, None, no)
    return chain


KINDS = ("switch", "unsettle", "server", "lost", "settle", "copy", "drop")


@settings(max_examples=25, deadline=None)
@given(
    length=st.sampled_from([1, 63, 64, 80, 81, 255, 300, 600]),
    steps=st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 1), st.booleans()), max_size=12),
)
def test_long_chains_survive(length: int, steps: list[tuple[str, float, bool]]) -> None:
    store, archive, reader = Store(), ChainArchive(), ChainArchive()
    chain = longer(length)
    store.write(archive, chain)
    for kind, where, forgets in steps:
        chain = changed(chain, chain.segments[int(where * (len(chain.segments) - 1))].no, kind)
        if forgets:  # another broker continues
            archive = ChainArchive()
            store.read(archive)
        store.write(archive, chain)
        assert store.read(ChainArchive()) == chain
        if where < 0.7:  # it misses some
            assert read_again(store, reader)[0] == chain
    assert store.read(archive) == chain


def test_a_page_that_is_held_is_not_read_again() -> None:
    store, archive, reader = Store(), ChainArchive(), ChainArchive()
    chain = longer(10_000)
    for _ in range(10):  # what does not fit into a transaction moves in steps
        store.write(archive, chain)
    assert read_again(store, reader) == (chain, list(range(39)))
    chain = switched(chain, 1)
    store.write(archive, chain)
    first = reader.parse(store.record, store.revision, (), ())
    assert first == chain
    chain = change_server(chain, 1000, B, ())
    store.write(archive, chain)
    found, numbers = read_again(store, reader)
    assert found == chain
    assert numbers == [1000 // PAGE_SEGMENTS]
    assert found.segments[500] is first.segments[500], "the same objects: the core compares and keeps no others"
    assert archive.unread(store.record) == (), "who wrote it holds it"


def largest(count: int) -> Chain:
    """A chain whose segments take as much room as they can: four copies, tail copies, and names of 40 characters."""
    name = "a-broker-with-a-name-of-40-characters-"
    four = tuple(MemberId(f"{name}{number:02}", f"{number:032x}") for number in range(90, 94))
    open_one = replace(
        CHAIN.open_segment,
        no=count,
        base=(1 << 40) * (count - 1),
        switch_attempt=bytes(range(16)),
        broker_group=f"{name}gr",
        members=four,
        server=four[0],
        eligible=four,
        master_run=1 << 40,
        server_epoch=1 << 40,
        opened_at_ms=1 << 41,
        append_floor_ms=1 << 41,
    )
    sealed = replace(
        open_one,
        state=State.SEALED,
        sealed_len=1 << 40,
        sealed_checksum=(1 << 32) - 1,
        sealed_at_ms=1 << 41,
        sealed_bytes=1 << 50,
        incomplete_table=True,
        tail_from=(1 << 40) - 1,
        tail_copies=four,
    )
    older = tuple(replace(sealed, no=no, base=(1 << 40) * (no - 1)) for no in range(1, count))
    return replace(CHAIN, segments=(*older, open_one), epoch=1 << 40)


@pytest.mark.parametrize("first", [1, 200, 255, 256, 257, 3_000])
def test_changes_that_may_join_fit_into_one_transaction_however_long_names_are(first: int) -> None:
    """Copies all over a long chain become complete: those that are listed together are in at most two pages."""
    store, archive = Store(), ChainArchive()
    chain = largest(5_000)
    while len(store.pages) < 4_900 // PAGE_SEGMENTS:
        store.write(archive, chain)
    changes: dict[int, Chain] = {}
    for no in (first, *range(3, 4_900, 100), *range(4_899, 0, -1)):
        if no not in changes and may_join(changes, no):
            changes[no] = add_copy(chain, no, C)
    following = merged(chain, changes)
    layout = archive.lay_out(following)
    assert len(changes) == CHANGED_AT_ONCE_MAX
    assert len(layout.pages) <= 2
    assert max(len(value or b"") for _, value in layout.pages) > 290_000, "as large as a page may be"
    assert layout.size_bytes < REQUEST_SIZE_BYTES_MAX // 2
    assert following.epoch == chain.epoch + 1
    store.write(archive, following)
    found = store.read(ChainArchive())
    assert [segment.no for segment in found.segments if C in segment.members] == sorted(changes)


def test_a_page_that_was_held_and_changed_meanwhile_is_asked_for() -> None:
    store, archive, reader = Store(), ChainArchive(), ChainArchive()
    chain = longer(700)
    store.write(archive, chain)
    older = store.record
    read_again(store, reader)
    store.write(reader, change_server(chain, 5, B, ()))
    with pytest.raises(PagesNeededError):
        reader.parse(older, 1, (), ())


def test_short_chains_have_no_page_and_leave_nothing_in_memory() -> None:
    store, archive = Store(), ChainArchive()
    chain = longer(RECORD_SEGMENTS_MAX)
    store.write(archive, chain)
    assert store.read(archive) == chain
    assert store.record == chain_to_record(chain).SerializeToString()
    assert not store.pages
    assert not archive._kept


def test_record_and_pages_are_bounded_and_pages_are_seldom_written() -> None:
    store, archive = Store(), ChainArchive()
    chain = longer(200)
    store.write(archive, chain)
    sizes: list[int] = []
    for _ in range(400):
        store.write(archive, chain)
        sizes.append(len(store.record))
        chain = switched(chain, 1)
    assert max(sizes) <= RECORD_SEGMENTS_MAX * 400
    assert max(map(len, store.pages.values())) <= PAGE_SEGMENTS * 400
    assert sorted(store.pages) == [0, 1, 2]
    assert len(store.page_writes) <= 400 / (RECORD_SEGMENTS_MAX - RECORD_SEGMENTS_MIN) + 3


def test_only_the_page_that_changed_is_written() -> None:
    store, archive = Store(), ChainArchive()
    chain = longer(900)
    store.write(archive, chain)
    store.page_writes.clear()
    store.write(archive, switched(chain, 1))
    assert store.page_writes == []
    store.write(archive, change_server(switched(chain, 1), 300, B, ()))
    assert store.page_writes == [1]
    store.page_writes.clear()
    store.write(archive, trim(chain, 520, None, 520))
    assert store.page_writes == [0, 1, 2]
    assert sorted(store.pages) == [2, 3]


def test_a_write_that_was_not_done_changes_nothing_remembered() -> None:
    store, archive = Store(), ChainArchive()
    chain = longer(300)
    store.write(archive, chain)
    archive.lay_out(change_server(chain, 5, B, ()))  # lost: a conflict, or unknown
    assert not archive.has_seen(chain.partition, store.revision + 1)
    other = change_server(chain, 6, B, ())
    store.write(archive, other)
    assert store.read(ChainArchive()) == other


def test_record_with_very_many_segments_loses_them_in_steps() -> None:
    store, archive = Store(), ChainArchive()
    chain = longer(MOVED_SEGMENTS_MAX + 200)
    archive.parse(chain_to_record(chain).SerializeToString(), 1)
    store.take(archive.lay_out(chain))
    assert len(parse_record(store.record).segments) == 200
    again = ChainArchive()
    assert again.parse(store.record, 1, [store.pages[number] for number in sorted(store.pages)]) == chain
    store.write(again, chain)
    assert store.read(ChainArchive()) == chain


def test_fields_of_a_newer_version_survive_in_pages_and_on_the_way_there() -> None:
    store, archive = Store(), ChainArchive()
    chain = longer(RECORD_SEGMENTS_MAX + PAGE_SEGMENTS)
    store.write(archive, chain)
    record = parse_record(store.record)
    record.MergeFromString(UNKNOWN)
    record.segments[0].MergeFromString(UNKNOWN)  # still in the record, soon in a page
    store.record = record.SerializeToString()
    page = records_pb2.ChainPage.FromString(store.pages[0])
    page.MergeFromString(UNKNOWN)
    page.segments[7].MergeFromString(UNKNOWN)
    page.segments[7].members[0].MergeFromString(UNKNOWN)
    store.pages[0] = page.SerializeToString()
    assert store.read(archive) == chain
    chain = switched(change_server(chain, page.segments[7].no, B, ()), RECORD_SEGMENTS_MAX)
    store.write(archive, chain)
    assert store.pages[0].count(UNKNOWN) == 3
    assert store.record.count(UNKNOWN) == 1
    assert b"".join([store.record, *store.pages.values()]).count(UNKNOWN) == 5
    assert store.read(archive) == chain


def test_pages_that_do_not_belong_to_the_record_are_refused() -> None:
    store, archive = Store(), ChainArchive()
    store.write(archive, longer(700))
    zero, one, two = (store.pages[number] for number in range(3))
    cut = records_pb2.ChainPage.FromString(one)
    del cut.segments[3]
    for pages in ([zero, one], [zero, two, one], [zero, b"\xff", two], [zero, cut.SerializeToString(), two]):
        with pytest.raises(CorruptionError):
            ChainArchive().parse(store.record, 1, pages)
    many = parse_record(store.record)
    for page_count in (99, 2**32 - 1):  # not even billions are counted one by one
        many.page_count = page_count
        with pytest.raises(CorruptionError):
            ChainArchive().parse(many.SerializeToString(), 1, typing.cast("list[bytes]", []))


def test_chains_share_the_objects_they_have_in_common() -> None:
    value = chain_to_record(longer(2)).SerializeToString()
    one, other = (ChainArchive().parse(bytes(bytearray(value)), 1) for _ in range(2))
    assert one is not other
    assert one.topic is other.topic
    assert one.send_chain is other.send_chain
    assert one.send_chain[0] is other.send_chain[0]
    assert one.segments[0].members is other.segments[1].members
    assert one.segments[0].server is other.segments[0].members[0]
    assert one.segments[0].eligible is one.segments[0].members


def folded(chain: Chain, times: int) -> Chain:
    """The chain after this many switches with nothing in between."""
    for _ in range(times):
        opened = opening(chain.open_segment.no + 1)
        chain = seal_and_open(chain, Seal(0, 0, A, (A, B), None, (), 0), opened, 1)
    return chain


def test_pages_may_leave_out_numbers_where_segments_were_folded() -> None:
    """Three stretches of segments with messages, with more than a page of empty ones folded between them."""
    store, writer, reader = Store(), ChainArchive(), ChainArchive()
    chain = longer(2)
    for _ in range(3):
        chain = switched(chain, 100)
        store.write(writer, chain)
        chain = folded(chain, 2 * PAGE_SEGMENTS)
        store.write(writer, chain)
    chain = switched(chain, 100)
    store.write(writer, chain)
    record = parse_record(store.record)
    numbers = page_numbers(record)
    assert sorted(store.pages) == list(numbers)
    assert list(numbers) != list(range(numbers[0], numbers[-1] + 1)), "some pages would be empty"
    assert all(segment.sealed_len != 0 for segment in chain.segments)
    pages = [store.pages[number] for number in numbers]
    assert reader.parse(store.record, store.revision, pages) == chain
    assert reader.unread(store.record) == ()
    assert reader.parse(store.record, store.revision, (), ()) == chain


def test_pages_that_cannot_be_are_damage() -> None:
    store, archive = Store(), ChainArchive()
    store.write(archive, switched(longer(2), 298))
    record = parse_record(store.record)
    assert not record.page_numbers
    record.page_numbers[:] = [7] * record.page_count
    with pytest.raises(CorruptionError):
        page_numbers(record)
    record = parse_record(store.record)
    del record.page_digests[-1]
    with pytest.raises(CorruptionError, match="a digest for each page"):
        ChainArchive().unread(record.SerializeToString())


def test_a_number_that_is_missing_without_a_word_is_damage() -> None:
    store, archive = Store(), ChainArchive()
    chain = folded(switched(longer(2), 298), 3)
    store.write(archive, chain)
    record = parse_record(store.record)
    (segment,) = [segment for segment in record.segments if segment.folded]
    segment.folded = 0
    pages = [store.pages[number] for number in page_numbers(record)]
    with pytest.raises(CorruptionError):
        ChainArchive().parse(record.SerializeToString(), 1, pages)
