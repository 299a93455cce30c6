"""Rules about publications, removed one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seriatim_broker.core.outbox import Outbox
from seriatim_broker.core.partition import Partition
from seriatim_broker.core.producers import Entry, ProducerTable
from seriatim_broker.core.publications import carrying, writers
from seriatim_broker.core.publications.plan import Stand
from seriatim_broker.core.publications.writers import Publication, Verdict, WriterRecord, WriterState

from .. import publishing
from .mutation import Mutation, Patch, nothing

_JUDGE = writers.judge


def _record_is_not_read() -> list[Patch]:
    def ask(outbox: Outbox, partition: Partition, known: carrying.Carrying) -> None:
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


def _mutation(rule: str, patches: Any, *breaks: str, profile: str = "publications") -> Mutation:
    return Mutation(rule, patches, breaks, profile)


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
        "a master goes on with a publication where its own table says", _table_is_not_asked, "I9", "CUTS", "GAP", "CORE"
    ),
    "answers-committed": _mutation(
        "a master answers when all rows are committed",
        lambda: [(carrying, "_is_committed", lambda *_: True)],
        "DONE",
        "I12",
    ),
    "checks-staged": _mutation(
        "a staged batch is appended only if it is the one that the manifest names",
        lambda: [(carrying, "is_as_staged", lambda *_: True)],
        "CUTS",
    ),
    "entry-stays": _mutation(
        "a writer stays in producer tables while it has something decided",
        lambda: [(ProducerTable, "touch", nothing)],
        "I9",
        "CUTS",
        "WHOLE",
        profile="late-publications",
    ),
    "finish-first": _mutation(
        "nothing is decided before the publication before is done", _next_is_decided_at_once, "NEXT"
    ),
    "fences": _mutation("only who opened the writer last publishes", _epochs_are_not_compared, "FENCE"),
    "only-the-last-is-ok": _mutation(
        "a sequence below the last one is never ok", _earlier_ones_are_ok, "PUB", "FENCE", "DONE"
    ),
    "digests": _mutation("the last publication is ok with its digest only", _digests_are_not_compared, "PUB"),
    "compares-record": _mutation(
        "a decision compares the record that it was made from",
        lambda: [(publishing, "record_is", lambda *_: True)],
        "ONE",
        "NEXT",
        "FENCE",
    ),
    "compares-floors": _mutation(
        "a decision compares the floors of staged data",
        lambda: [(publishing, "floors_are", lambda *_: True)],
        "KEPT-STAGE",
    ),
    "floor-first": _mutation(
        "retention raises the floor of staged data before it looks at records",
        lambda: [(publishing, "floor_first", nothing)],
        "KEPT-STAGE",
    ),
    "waits-for-decided": _mutation(
        "retention waits for records that are decided",
        lambda: [(publishing, "is_waited_for", lambda *_: False)],
        "KEPT-STAGE",
    ),
    "taken-up": _mutation(
        "the controller finishes what nobody else does",
        lambda: [(publishing, "is_taken_up", lambda *_: False)],
        "I13",
    ),
}
"""By name."""
