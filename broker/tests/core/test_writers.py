"""What becomes of a writer's record: every branch, and every refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest
from seriatim_api import errors
from seriatim_api.ids import PartitionId, TopicIncarnation, make_offset
from seriatim_api.publications import (
    LAYOUTS_MAX,
    PRODUCER_MARK,
    LaidOut,
    Manifest,
    ManifestPart,
    RowLayout,
    StagedBatch,
    StagedBatches,
    digest_of,
)
from seriatim_broker.core.values import writers
from seriatim_broker.core.values.writers import (
    ManifestPlace,
    Publication,
    Verdict,
    WriterRecord,
    WriterState,
    check_floor,
    check_manifest,
    check_rebuilt,
    decided,
    done,
    earlier_layout,
    judge,
    name_digest,
    opened,
)

NEW_ID = b"w" * 4
PRODUCER = name_digest("nightly") + NEW_ID + PRODUCER_MARK
OTHER = b"o" * 4
INCARNATION = TopicIncarnation("ab" * 16)
CHUNK = b"c" * 16
PARTS = (ManifestPart(3, 10, StagedBatches([StagedBatch(90, 4, make_offset(2, 5), CHUNK)])),)
MANIFEST = Manifest(INCARNATION, PARTS)
DIGEST = digest_of(PARTS)
PLACE = ManifestPlace(
    PartitionId(91), (make_offset(1, 7),), 80, 1234, b"m" * 16, content_digest=b"a" * 16, layout=RowLayout(2, 1000)
)
WANTED = Publication("nightly", 2, "me", 7, PLACE, DIGEST)
NEW = WriterRecord(PRODUCER, "orders", epoch=2)
DECIDED = decided(NEW, WANTED, "orders", 4, 1000, OTHER)
DONE = done(DECIDED, 0, 2000)


def test_the_first_who_opens_a_writer_makes_it() -> None:
    record = opened(None, "orders", "nightly", NEW_ID, 41, 9000)
    assert record == WriterRecord(PRODUCER, "orders", epoch=42, state=WriterState.NEW, opened_at_ms=9000)


@pytest.mark.parametrize("record", [NEW, DECIDED, DONE])
def test_opening_raises_the_epoch_and_nothing_else(record: WriterRecord) -> None:
    assert opened(record, "orders", "nightly", OTHER, 41, 9000) == replace(record, epoch=42, opened_at_ms=9000)
    restored = opened(record, "orders", "nightly", OTHER, 1, 9000)
    assert restored.epoch == 3, "the coordinator was restored"


def test_a_writer_that_was_opened_and_published_nothing_may_decide() -> None:
    assert judge(NEW, WANTED) is Verdict.DECIDE
    assert judge(NEW, replace(WANTED, sequence=0)) is Verdict.DECIDE


def test_a_writer_that_was_never_opened_may_decide() -> None:
    assert judge(None, replace(WANTED, epoch=0)) is Verdict.DECIDE


def test_a_writer_that_was_deleted_since_it_was_opened_is_refused() -> None:
    with pytest.raises(errors.UnknownWriterError):
        judge(None, WANTED)
    with pytest.raises(errors.UnknownWriterError):
        judge(replace(DONE, epoch=1), replace(WANTED, sequence=8))


@pytest.mark.parametrize("record", [NEW, DECIDED, DONE])
def test_who_opened_it_before_is_fenced_whatever_it_wants(record: WriterRecord) -> None:
    newer = opened(record, "orders", "nightly", OTHER, 41, 9000)
    for sequence in (6, 7, 8):
        with pytest.raises(errors.WriterFencedError) as caught:
            judge(newer, replace(WANTED, sequence=sequence))
        assert caught.value.details["epoch"] == "42"


@pytest.mark.parametrize("record", [DECIDED, DONE])
def test_another_owner_is_refused_whatever_it_wants(record: WriterRecord) -> None:
    for sequence in (6, 7, 8):
        with pytest.raises(errors.WriterOwnedError):
            judge(record, replace(WANTED, owner="you", sequence=sequence))


def test_a_writer_without_an_owner_takes_any() -> None:
    record = replace(DONE, owner="")
    assert judge(record, replace(WANTED, owner="you", sequence=8)) is Verdict.DECIDE


def test_who_says_no_owner_is_not_compared_and_leaves_the_one_that_is_known() -> None:
    known = writers.done(writers.decided(NEW, replace(WANTED, owner="query 1"), "orders", 4, 0, NEW_ID), 0, 0)
    following = replace(WANTED, sequence=WANTED.sequence + 1, owner="")
    assert writers.judge(known, following) is Verdict.DECIDE
    assert writers.decided(known, following, "orders", 4, 0, NEW_ID).owner == "query 1"


@pytest.mark.parametrize("sequence", [6, 7, 8])
def test_what_is_decided_is_finished_before_anything_is_answered(sequence: int) -> None:
    assert judge(DECIDED, replace(WANTED, sequence=sequence)) is Verdict.FINISH


def test_the_last_publication_is_ok_again_and_again() -> None:
    assert judge(DONE, WANTED) is Verdict.DONE


def test_the_last_publication_with_other_rows_is_refused() -> None:
    with pytest.raises(errors.PublicationDiffersError):
        judge(DONE, replace(WANTED, digest=b"d" * 16))


def test_an_earlier_publication_is_never_ok() -> None:
    with pytest.raises(errors.SequencePassedError):
        judge(DONE, replace(WANTED, sequence=6))


def test_a_loss_is_told_each_time() -> None:
    lost = done(DECIDED, 3, 2000)
    with pytest.raises(errors.PublishedWithLossError) as caught:
        judge(lost, WANTED)
    assert caught.value.details["lost_rows"] == "3"
    assert judge(lost, replace(WANTED, sequence=8)) is Verdict.DECIDE


def test_a_decision_says_what_it_is_of() -> None:
    assert DECIDED.state is WriterState.DECIDED
    assert (DECIDED.producer, DECIDED.epoch) == (PRODUCER, 2), "the writer stays who it was"
    assert (DECIDED.sequence, DECIDED.manifest, DECIDED.digest, DECIDED.rows) == (7, PLACE, DIGEST, 4)
    assert (DECIDED.owner, DECIDED.decided_at_ms) == ("me", 1000)


def test_a_decision_without_a_record_makes_one() -> None:
    record = decided(None, replace(WANTED, epoch=0), "orders", 4, 1000, OTHER)
    producer = name_digest("nightly") + OTHER + PRODUCER_MARK
    assert (record.producer, record.epoch, record.state) == (producer, 0, WriterState.DECIDED)


def test_a_decision_forgets_what_the_one_before_lost() -> None:
    assert decided(done(DECIDED, 3, 2000), replace(WANTED, sequence=8), "orders", 4, 3000, OTHER).lost_rows == 0


def test_nothing_is_decided_on_top_of_a_decision() -> None:
    with pytest.raises(AssertionError):
        decided(DECIDED, replace(WANTED, sequence=8), "orders", 4, 1000, OTHER)


def test_only_that_publication_is_decided() -> None:
    assert DECIDED.has_decided(PRODUCER, 7, PLACE.id)
    assert not DONE.has_decided(PRODUCER, 7, PLACE.id)
    assert not DECIDED.has_decided(OTHER + PRODUCER_MARK, 7, PLACE.id)
    assert not DECIDED.has_decided(PRODUCER, 8, PLACE.id)
    assert not DECIDED.has_decided(PRODUCER, 7, b"x" * 16)


# ---- after a rebuild -------------------------------------------------------------------------------------

REBUILT = WriterRecord(
    PRODUCER, "orders", state=WriterState.DONE, sequence=7, done_at_ms=2000, rebuilt=((3, 4),), epoch=2,
    manifest=replace(writers.NO_MANIFEST, layout=RowLayout(2, 0)),
)  # fmt: skip
"""The coordinator lost the record, and brokers have 4 rows of publication 7 in partition 3."""


def test_a_rebuilt_publication_is_not_known_to_be_done() -> None:
    assert DONE.done_sequence == 7
    assert REBUILT.done_sequence == 6, "its program publishes 7 again"
    assert replace(REBUILT, sequence=0).done_sequence is None
    assert NEW.done_sequence is None


def test_a_rebuilt_publication_is_carried_out_again_under_its_own_numbers() -> None:
    assert judge(REBUILT, WANTED) is Verdict.DECIDE
    check_rebuilt(REBUILT, WANTED, MANIFEST)
    again = decided(REBUILT, WANTED, "orders", 4, 3000, OTHER)
    assert (again.producer, again.sequence, again.state) == (PRODUCER, 7, WriterState.DECIDED)
    finished = done(again, 0, 4000)
    assert judge(finished, WANTED) is Verdict.DONE
    assert finished.done_sequence == 7


def test_a_rebuilt_publication_that_is_cut_in_another_way_differs() -> None:
    for rebuilt in (((3, 3),), ((3, 5),), ((3, 4), (4, 1))):
        with pytest.raises(errors.PublicationDiffersError, match="rebuilt"):
            check_rebuilt(replace(REBUILT, rebuilt=rebuilt), WANTED, MANIFEST)
    check_rebuilt(replace(REBUILT, rebuilt=((4, 1),)), replace(WANTED, sequence=8), MANIFEST)


def test_a_sequence_below_a_rebuilt_one_is_passed() -> None:
    with pytest.raises(errors.SequencePassedError):
        judge(REBUILT, replace(WANTED, sequence=6))
    assert judge(REBUILT, replace(WANTED, sequence=8)) is Verdict.DECIDE


def test_a_rebuilt_record_that_no_program_asks_for_goes() -> None:
    assert replace(REBUILT, epoch=0).goes_at_ms == 2000 + writers.REBUILT_KEPT_MS
    assert REBUILT.goes_at_ms is None


# ---- manifests ------------------------------------------------------------------------------------------


def check(
    manifest: Manifest = MANIFEST, partitions: set[int] | None = None, floors: dict[int, int] | None = None
) -> None:
    """Check it as the publication's, whose topic has the partitions 3 and 4."""
    check_manifest(WANTED, manifest, INCARNATION, partitions if partitions is not None else {3, 4}, floors or {})


def test_a_manifest_of_its_topic_above_all_floors_is_taken() -> None:
    check()
    check(floors={90: make_offset(2, 5), 92: make_offset(9, 0)})


def test_a_manifest_of_another_topic_is_refused() -> None:
    with pytest.raises(errors.PreconditionError, match="made again"):
        check(replace(MANIFEST, incarnation=TopicIncarnation("cd" * 16)))


def test_a_partition_of_another_topic_is_refused() -> None:
    with pytest.raises(errors.BadRequestError, match="partition id 3"):
        check(partitions={4, 5})


def test_a_digest_of_other_rows_is_refused() -> None:
    parts = (replace(PARTS[0], value_bytes=11),)
    with pytest.raises(errors.BadRequestError, match="digest"):
        check(Manifest(INCARNATION, parts))


def test_a_manifest_names_each_staged_batch_once() -> None:
    batch = StagedBatch(90, 4, make_offset(2, 5), CHUNK)
    other = StagedBatch(91, 4, make_offset(2, 5), CHUNK)
    for parts in (
        (ManifestPart(3, 20, StagedBatches([batch, other, batch])),),
        (ManifestPart(3, 20, StagedBatches([other, batch])), ManifestPart(4, 10, StagedBatches([batch]))),
    ):
        wanted = replace(WANTED, digest=digest_of(parts))
        with pytest.raises(errors.BadRequestError, match="twice"):
            check_manifest(wanted, Manifest(INCARNATION, parts), INCARNATION, {3, 4}, {})
    parts = (ManifestPart(3, 20, StagedBatches([batch])), ManifestPart(4, 10, StagedBatches([other])))
    wanted = replace(WANTED, digest=digest_of(parts))
    check_manifest(wanted, Manifest(INCARNATION, parts), INCARNATION, {3, 4}, {})


def with_contents(digest: bytes, id_: bytes = b"m" * 16) -> ManifestPlace:
    """A manifest staged again, whose rows have that digest."""
    return replace(PLACE, id=id_, content_digest=digest)


def test_other_contents_of_the_same_size_differ() -> None:
    record = done(decided(NEW, replace(WANTED, manifest=with_contents(b"a" * 16)), "orders", 4, 1000, OTHER), 0, 2000)
    assert judge(record, replace(WANTED, manifest=with_contents(b"a" * 16, b"n" * 16))) is Verdict.DONE
    with pytest.raises(errors.PublicationDiffersError):
        judge(record, replace(WANTED, manifest=with_contents(b"b" * 16, b"n" * 16)))


Laid = TypeVar("Laid", Publication, WriterRecord)


def laid_out(one: Laid, layout: RowLayout) -> Laid:
    """The same with another layout."""
    return replace(one, manifest=replace(one.manifest, layout=layout))


TWO, FOUR = RowLayout(2, 1000), RowLayout(4, 1000)
FOR_TWO = done(decided(NEW, replace(WANTED, manifest=replace(PLACE, layout=TWO)), "orders", 4, 1000, OTHER), 0, 2000)
"""Publication 7, decided while the topic had two partitions."""

GROWN = replace(WANTED, digest=b"4" * 16, manifest=replace(with_contents(b"c" * 16, b"n" * 16), layout=FOUR))
"""The same rows, staged for four partitions."""


def test_a_repeat_after_growth_is_compared_as_it_was_decided() -> None:
    repeat = replace(GROWN, repeats=(LaidOut(TWO, DIGEST, b"a" * 16),))
    told = replace(FOR_TWO, manifest=replace(with_contents(b"a" * 16), layout=TWO))
    assert judge(told, repeat) is Verdict.DONE
    for wrong in (LaidOut(TWO, DIGEST, b"b" * 16), LaidOut(TWO, b"d" * 16, b"a" * 16)):
        with pytest.raises(errors.PublicationDiffersError, match="deterministic"):
            judge(told, replace(GROWN, repeats=(wrong,)))


def test_a_repeat_of_what_was_decided_later_is_staged_again() -> None:
    with pytest.raises(errors.StagedDataGoneError, match=r"2 partitions.*stage the rows again"):
        judge(FOR_TWO, GROWN)
    with pytest.raises(errors.StagedDataGoneError, match="999 bytes"):
        judge(laid_out(FOR_TWO, RowLayout(4, 999)), GROWN)


def test_a_repeat_without_rows_differs() -> None:
    empty = Publication("nightly", 2, "me", 7, writers.NO_MANIFEST, digest_of(()))
    with pytest.raises(errors.PublicationDiffersError):
        judge(FOR_TWO, empty)


def test_the_layout_in_which_a_program_must_compare() -> None:
    assert earlier_layout(FOR_TWO) == earlier_layout(replace(FOR_TWO, state=WriterState.DECIDED)) == TWO
    assert [earlier_layout(nothing) for nothing in (None, NEW, REBUILT)] == [None] * 3


def test_a_rebuilt_publication_is_not_continued_for_other_partitions() -> None:
    rebuilt = replace(REBUILT, manifest=replace(writers.NO_MANIFEST, layout=RowLayout(2, 0)))
    check_rebuilt(rebuilt, laid_out(WANTED, TWO), MANIFEST)
    with pytest.raises(errors.PublicationDiffersError, match=r"2 partitions.*laid out for 4"):
        check_rebuilt(rebuilt, laid_out(WANTED, FOUR), MANIFEST)


def test_what_lies_below_a_floor_is_gone() -> None:
    with pytest.raises(errors.StagedDataGoneError):
        check(floors={90: make_offset(2, 6)})


def test_what_lies_in_too_many_segments_is_refused() -> None:
    batches = StagedBatches(StagedBatch(90, 1, make_offset(no, 0), CHUNK) for no in range(1, writers.SEGMENTS_MAX + 2))
    parts = (ManifestPart(3, 10, batches),)
    wanted = replace(WANTED, digest=digest_of(parts))
    with pytest.raises(errors.BadRequestError, match="segments"):
        check_manifest(wanted, Manifest(INCARNATION, parts), INCARNATION, {3}, {})


def test_a_manifest_that_lies_below_a_floor_itself_is_gone() -> None:
    check_floor(WANTED, {91: make_offset(1, 7)})
    with pytest.raises(errors.StagedDataGoneError):
        check_floor(WANTED, {91: make_offset(1, 8)})


@pytest.mark.parametrize(
    "wrong",
    [
        replace(WANTED, sequence=1 << 32),
        replace(WANTED, owner="x" * 201),
        replace(WANTED, digest=b"short"),
        replace(WANTED, repeats=(LaidOut(RowLayout(2, 9), b"d" * 16, b"c" * 16),) * (LAYOUTS_MAX + 1)),
        replace(WANTED, repeats=(LaidOut(RowLayout(2, 9), b"d" * 16, b""),)),
        replace(WANTED, manifest=replace(PLACE, content_digest=b"")),
        replace(WANTED, manifest=replace(PLACE, layout=RowLayout(0, 1000))),
        replace(WANTED, manifest=replace(PLACE, layout=RowLayout(2, 0))),
        replace(WANTED, manifest=replace(PLACE, offsets=())),
        replace(WANTED, manifest=replace(PLACE, offsets=(1,) * 69)),
        replace(WANTED, manifest=replace(PLACE, length=0)),
        replace(WANTED, manifest=replace(PLACE, length=(64 << 20) + 1)),
        replace(WANTED, manifest=replace(PLACE, id=b"")),
        replace(WANTED, manifest=replace(PLACE, partition=PartitionId(0))),
    ],
)
def test_what_no_record_could_hold_is_refused(wrong: Publication) -> None:
    WANTED.check()
    with pytest.raises(errors.BadRequestError):
        wrong.check()


def test_a_record_of_the_largest_manifest_stays_small() -> None:
    from seriatim_broker.runtime.coordinator.records import writer_from_value, writer_to_record

    place = replace(
        PLACE,
        layout=RowLayout(20_000, 1 << 19),
        offsets=tuple(make_offset(9, 1000 * number) for number in range(writers.PIECES_MAX)),
    )
    record = decided(
        NEW,
        replace(WANTED, manifest=place),
        "orders",
        10**9,
        1_700_000_000_000,
        OTHER,
    )
    value = writer_to_record(record).SerializeToString()
    assert len(value) < 1024
    assert writer_from_value(value) == record
    assert writer_from_value(value).layout == record.layout


def test_which_records_may_go_and_when() -> None:
    assert NEW.goes_at_ms is None, "no program opened it"
    assert opened(NEW, "orders", "nightly", OTHER, 41, 9000).goes_at_ms == 9000 + writers.NEW_KEPT_MS
    assert opened(DECIDED, "orders", "nightly", OTHER, 41, 9000).goes_at_ms is None
    assert DONE.goes_at_ms is None
    assert replace(DONE, ephemeral=True).goes_at_ms == DONE.done_at_ms + writers.EPHEMERAL_KEPT_MS
