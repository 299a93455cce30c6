"""Rules about publications, removed one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seriatim._publishing import chunks
from seriatim._publishing.chunks import Chunk
from seriatim_api.batch import BatchHeader
from seriatim_api.ids import TopicIncarnation, split_offset
from seriatim_api.publications import Manifest
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.state.segment_log import SegmentLog
from seriatim_broker.core.state.writing import Carrying
from seriatim_broker.core.values import writers
from seriatim_broker.core.values.events import StagedFetched
from seriatim_broker.core.values.producers import Entry, ProducerTable
from seriatim_broker.core.values.writers import Publication, Verdict, WriterRecord, WriterState
from seriatim_broker.core.writing import appending, carrying, following, publication_plan
from seriatim_broker.core.writing.publication_plan import Stand
from seriatim_broker.runtime import deciding, taking_up
from seriatim_broker.runtime.stage_floors import StageFloors

from ..publishing import staged
from .mutation import Mutation, Patch, nothing

_JUDGE = writers.judge


def _record_is_not_read() -> list[Patch]:
    def ask(broker: BrokerState, partition: Partition, known: Carrying) -> None:
        known.is_decided = True

    return [(carrying, "_ask_record", ask)]


def _table_is_not_asked() -> list[Patch]:
    def stand(last: Entry | None, _sequence: int, _rows: Sequence[int]) -> int | Stand:
        return Stand.UNKNOWN if last is None else 0

    return [(carrying, "stand", stand)]


def _next_is_decided_at_once() -> list[Patch]:
    """What is decided counts as done."""

    def as_done(record: WriterRecord | None) -> WriterRecord | None:
        if record is None or record.state is not WriterState.DECIDED:
            return record
        return replace(record, state=WriterState.DONE)

    before = writers.decided

    def judge(record: WriterRecord | None, wanted: Publication) -> Verdict:
        is_later = record is not None and wanted.sequence > record.sequence
        return _JUDGE(as_done(record) if is_later else record, wanted)

    def decided(record: WriterRecord | None, *arguments: Any) -> WriterRecord:
        return before(as_done(record), *arguments)

    return [(writers, "judge", judge), (writers, "decided", decided)]


def _epochs_are_not_compared() -> list[Patch]:
    def judge(record: WriterRecord | None, wanted: Publication) -> Verdict:
        return _JUDGE(record, replace(wanted, epoch=record.epoch) if record is not None else wanted)

    return [(writers, "judge", judge)]


def _earlier_ones_are_ok() -> list[Patch]:
    def judge(record: WriterRecord | None, wanted: Publication) -> Verdict:
        is_passed = record is not None and record.state is WriterState.DONE and wanted.sequence < record.sequence
        return Verdict.DONE if is_passed else _JUDGE(record, wanted)

    return [(writers, "judge", judge)]


def _digests_are_not_compared() -> list[Patch]:
    def judge(record: WriterRecord | None, wanted: Publication) -> Verdict:
        return _JUDGE(record, replace(wanted, digest=record.digest) if record is not None else wanted)

    return [(writers, "judge", judge)]


def _repeats_are_compared_as_they_are_staged() -> list[Patch]:
    def judge(record: WriterRecord | None, wanted: Publication) -> Verdict:
        return _JUDGE(record, replace(wanted, repeats=()))

    return [(writers, "judge", judge)]


def _owners_are_not_compared() -> list[Patch]:
    def judge(record: WriterRecord | None, wanted: Publication) -> Verdict:
        return _JUDGE(record, replace(wanted, owner=record.owner) if record is not None else wanted)

    return [(writers, "judge", judge)]


def _epochs_count() -> list[Patch]:
    """An epoch is the one before plus 1, as far as it is known."""

    before = writers.opened

    def opened(
        record: WriterRecord | None, topic: str, writer: str, new_id: bytes, _revision: int, now_ms: int
    ) -> WriterRecord:
        after = before(record, topic, writer, new_id, 0, now_ms)
        return after if record is None else replace(after, epoch=record.epoch + 1)

    return [(writers, "opened", opened)]


def _floors_are_not_looked_at() -> list[Patch]:
    before = writers.check_manifest

    def check_manifest(
        wanted: Publication, manifest: Manifest, incarnation: TopicIncarnation, partitions: set[int], _floors: object
    ) -> None:
        before(wanted, manifest, incarnation, partitions, {})

    return [(writers, "check_manifest", check_manifest)]


def _chunks_in_another_order() -> list[Patch]:
    before = chunks.manifest_of
    return [(chunks, "manifest_of", lambda topic, given: before(topic, given[::-1]))]


def _chunks_for_any_count() -> list[Patch]:
    before = chunks.manifest_of

    def manifest_of(topic: str, given: Sequence[Chunk]) -> Manifest:
        return before(topic, [replace(chunk, partition_count=0) for chunk in given])

    return [(chunks, "manifest_of", manifest_of)]


def _what_is_gone_is_waited_for() -> list[Patch]:
    before = carrying.on_fetched

    def on_fetched(broker: BrokerState, partition: Partition, event: StagedFetched) -> None:
        before(broker, partition, replace(event, is_gone=False))

    return [(carrying, "on_fetched", on_fetched)]


def _rows_as_staged() -> list[Patch]:
    before = publication_plan.published_header

    def published_header(
        header: BatchHeader, partition: int, _writer: bytes, sequence: int, row: int, manifest: bytes
    ) -> BatchHeader:
        return before(header, partition, header.producer, sequence, row, manifest)

    return [(carrying, "published_header", published_header)]


def _followers_forget() -> list[Patch]:
    before = SegmentLog.keep_producer

    def keep_producer(self: SegmentLog, *given: Any) -> bool:
        return self.unbroken and before(self, *given)

    return [(SegmentLog, "keep_producer", keep_producer)]


def _is_committed(log: SegmentLog, carrying_: Carrying) -> bool:
    """Whether all rows are, though they may be on no disk."""
    last = log.live_table.last(carrying_.producer)
    if last is None or last.epoch != carrying_.sequence:
        return True
    segment_no, index = split_offset(last.offset)
    return segment_no != log.no or index + last.message_count <= log.commit


def _says(answer: bool) -> Any:
    async def says(*_arguments: Any) -> bool:
        return answer

    return says


def _mutation(rule: str, patches: Any, *breaks: str, profile: str = "publications", layer: str = "core") -> Mutation:
    return Mutation(rule, patches, breaks, profile, layer=layer)


MUTATIONS: dict[str, Mutation] = {
    "record-if-unknown": _mutation(
        "a master that does not know the writer reads its record, and refuses what is not decided",
        _record_is_not_read,
        "I9",
        "WHOLE",
        "PUB",
        profile="late-publications",
    ),
    "own-table": _mutation(
        "a master continues a publication where its own table says", _table_is_not_asked, "I9", "CUTS", "GAP", "CORE"
    ),
    "answers-committed": _mutation(
        "a master answers only when all rows are committed",
        lambda: [(carrying, "_is_safe", lambda *_: True)],
        "DONE",
        "I12",
    ),
    "answers-flushed": _mutation(
        "a master answers only when the disks have all rows, even if the topic commits earlier",
        lambda: [(carrying, "_is_safe", _is_committed)],
        "I12",
        profile="unflushed-publications",
    ),
    "checks-staged": _mutation(
        "a staged batch is appended only if it is the one that the manifest names",
        lambda: [(carrying, "is_as_staged", lambda *_: True)],
        "CUTS",
    ),
    "follows-as-staged": _mutation(
        "a slave takes a staged body only if it is the one that the master named",
        lambda: [(following, "_is_body_of", lambda *_: True)],
        "I5",
        "CUTS",
    ),
    "entry-stays": _mutation(
        "a writer stays in producer tables while it has a decided publication",
        lambda: [(ProducerTable, "touch", nothing)],
        "I9",
        "CUTS",
        "WHOLE",
        profile="late-publications",
    ),
    "followers-keep": _mutation(
        "slaves, too, keep a writer in their tables while it has a decided publication",
        _followers_forget,
        "I9",
        "CUTS",
        "WHOLE",
        profile="late-publications",
    ),
    "as-the-writer": _mutation(
        "published batches have the writer's producer id, the publication's sequence and the row's number",
        _rows_as_staged,
        "PUB",
    ),
    "ends-with-the-segment": _mutation(
        "nothing is carried out in a segment that was fenced",
        lambda: [(carrying, "_led", lambda partition: partition.open_log())],
        "I6",
        "CORE",
    ),
    "passes-over-what-is-lost": _mutation(
        "a publication continues without staged data that was declared lost", _what_is_gone_is_waited_for, "I13"
    ),
    "says-what-is-lost": _mutation(
        "the program that published is told if rows were lost",
        lambda: [(writers, "check_loss", nothing)],
        "DONE",
    ),
    "only-masters-publish": _mutation(
        "a client's batch that looks like a published one is refused",
        lambda: [(appending, "_stage_refusal", nothing)],
        "PUB",
        "CUTS",
    ),
    "decided-first": _mutation(
        "masters are asked only for publications that were read as DECIDED",
        lambda: [(staged, "is_read_again", lambda: False)],
        "PUB",
    ),
    "each-answers": _mutation(
        "a publication is done only when every master has said so",
        lambda: [(staged, "may_be_done", lambda _: True)],
        "DONE",
    ),
    "asks-members": _mutation(
        "a publication is decided only if all its staged data can be read",
        lambda: [(staged, "is_there", lambda *_: True)],
        "KEPT-STAGE",
    ),
    "above-floors": _mutation(
        "a publication is decided only if all its staged data is above the floors",
        _floors_are_not_looked_at,
        "KEPT-STAGE",
    ),
    "owners": _mutation("a writer publishes for its first owner only", _owners_are_not_compared, "OWNER"),
    "epochs-grow": _mutation(
        "an epoch of a writer never comes twice, even if the writer is deleted", _epochs_count, "FENCE"
    ),
    "one-count": _mutation(
        "all rows of a publication are spread over the same number of partitions",
        _chunks_for_any_count,
        "SPREAD",
    ),
    "chunks-in-order": _mutation(
        "rows are in the order of the chunks that were named", _chunks_in_another_order, "CUTS"
    ),
    "finish-first": _mutation(
        "a publication is decided only when the one before is done", _next_is_decided_at_once, "NEXT"
    ),
    "fences": _mutation("only the program that opened the writer last publishes", _epochs_are_not_compared, "FENCE"),
    "only-the-last-is-ok": _mutation(
        "a sequence below the last one is never ok", _earlier_ones_are_ok, "PUB", "FENCE", "DONE"
    ),
    "digests": _mutation("the last publication is ok only with its digest", _digests_are_not_compared, "PUB"),
    "repeats-as-decided": _mutation(
        "the last publication is compared in the layout in which it was decided",
        _repeats_are_compared_as_they_are_staged,
        "REPEAT",
    ),
    "compares-record": _mutation(
        "a decision compares the record that it was made from",
        lambda: [(deciding, "of_record", lambda *_: [])],
        "ONE",
        "NEXT",
        "FENCE",
        layer="runtime",
    ),
    "compares-floors": _mutation(
        "a decision compares the floors of staged data",
        lambda: [(deciding, "of_floors", lambda *_: [])],
        "KEPT-STAGE",
        layer="runtime",
    ),
    "floor-first": _mutation(
        "retention raises the floor of staged data before it looks at records",
        lambda: [(StageFloors, "_raise", _says(True))],
        "KEPT-STAGE",
        layer="runtime",
    ),
    "waits-for-decided": _mutation(
        "retention waits for publications that are decided",
        lambda: [(StageFloors, "_is_needed", _says(False))],
        "KEPT-STAGE",
        layer="runtime",
    ),
    "taken-up": _mutation(
        "the controller finishes a publication that its publisher does not finish",
        lambda: [(taking_up, "is_to_finish", lambda *_: False)],
        "I13",
        layer="runtime",
    ),
}
"""By name."""
