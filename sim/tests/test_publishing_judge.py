"""The judge of publications: what excuses a row that is missing, and what does not."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from seriatim._publishing.chunks import Chunk
from seriatim_api.ids import PartitionId, TopicIncarnation, make_offset
from seriatim_api.publications import Manifest, ManifestPart, StagedBatches
from seriatim_broker.core.values.writers import ManifestPlace, WriterRecord, WriterState

from sim.basics.schedule import Schedule, Violation
from sim.publishing.judge import Decided, Plan, PublicationJudge
from sim.publishing.staged import STAGE_PARTITIONS, Stage

P = PartitionId(1)
STAGED_AT = STAGE_PARTITIONS[0]


def done_without_rows() -> tuple[PublicationJudge, Stage]:
    """A publication that is DONE, and nothing of it is in the log of its partition."""
    losses = SimpleNamespace(covers=lambda *_: False)
    seen = SimpleNamespace(placed={}, states=set(), sealed={}, losses=losses)
    rows = SimpleNamespace(replay=lambda _chain, _length: [], seen=seen)
    stage = Stage(Schedule(1), random.Random(1))
    judge = PublicationJudge(cast(Any, rows), stage)
    parts = (ManifestPart(P, 8, StagedBatches([stage.put(STAGED_AT, b"c" * 16, 100, 3)])),)
    plan = Plan("run", [Chunk("topic", "ab" * 16, 1, b"c" * 16, parts)], Manifest(TopicIncarnation("ab" * 16), parts))
    place = ManifestPlace(STAGED_AT, (1,), 1, 1, b"m" * 16)
    record = WriterRecord(b"w" * 16, "topic", 0, "", WriterState.DECIDED, 1, place)
    judge.plans[place.id] = plan
    judge.decisions.append(Decided("w0", record, plan))
    return judge, stage


@pytest.mark.parametrize("dropped", [False, True])
def test_a_row_that_is_missing_is_not_excused_by_what_retention_drops_later(dropped: bool) -> None:
    judge, stage = done_without_rows()
    if dropped:
        stage.drop_below(STAGED_AT, make_offset(2, 0))
    with pytest.raises(Violation, match="DONE"):
        judge.done("w0", judge.decisions[0].record)
    with pytest.raises(Violation, match="WHOLE"):
        judge.final(P, cast(Any, None), 0)


def test_what_was_lost_with_its_disks_is_excused() -> None:
    judge, stage = done_without_rows()
    stage.lose(STAGED_AT)
    stage.drop_below(STAGED_AT, make_offset(2, 0))
    judge.done("w0", judge.decisions[0].record)
    judge.final(P, cast(Any, None), 0)


@pytest.mark.parametrize("safe", [(), (1,), (2,), (1, 2)])
def test_a_row_that_stands_twice_is_committed_at_one_of_its_places(safe: tuple[int, ...]) -> None:
    """A segment was opened over after its master had answered, and the next one carries out again."""
    judge, _ = done_without_rows()
    rows = cast(Any, judge)._judge
    for segment in (1, 2):
        header = SimpleNamespace(producer=b"w" * 16, producer_epoch=1, base_sequence=0, segment=segment, base_index=5)
        rows.seen.placed[P, segment, 5] = SimpleNamespace(header=header)

    def on_two_disks(batch: Any, why: str) -> None:
        if batch.header.segment not in safe:
            raise Violation("I12", why)

    rows.rules = SimpleNamespace(two_copies=SimpleNamespace(on_two_disks=on_two_disks))
    if safe:
        judge.done("w0", judge.decisions[0].record)
    else:
        with pytest.raises(Violation, match="I12"):
            judge.done("w0", judge.decisions[0].record)
