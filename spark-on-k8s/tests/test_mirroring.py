"""The map of offsets that a mirror keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from seriatim_spark import mirroring
from seriatim_spark.mirroring import Entry, MirrorError, OffsetMap, load, store


def entry(batch: int, position: int = 0) -> Entry:
    return Entry(batch, {"0": 100 + batch, "1": 0}, {"0": 7 + batch, "1": 0}, {"0": position, "1": 0})


def test_a_map_is_kept_and_belongs_to_two_topics(tmp_path: Path) -> None:
    directory = str(tmp_path / "map")
    found = load(directory, "ab", "cd")
    assert found == OffsetMap("ab", "cd")
    found = found.with_entry(entry(0)).with_entry(entry(1))
    store(directory, found)
    assert load(directory, "ab", "cd") == found
    for source, target in (("ab", "ef"), ("ef", "cd")):
        with pytest.raises(MirrorError, match="made again"):
            load(directory, source, target)


def test_a_batch_that_runs_again_is_noted_anew() -> None:
    found = OffsetMap("ab", "cd").with_entry(entry(0)).with_entry(entry(1, 5)).with_entry(entry(1, 6))
    assert [one.batch for one in found.entries] == [0, 1]
    assert found.entries[-1].positions["0"] == 6


def test_old_entries_get_further_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "ENTRIES_MAX", 10)
    found = OffsetMap("ab", "cd")
    for batch in range(1_000):
        found = found.with_entry(entry(batch))
        assert len(found.entries) <= 10
    batches = [one.batch for one in found.entries]
    assert batches == sorted(set(batches))
    assert batches[0] == 0
    assert batches[-3:] == [997, 998, 999]


def test_messages_of_others_are_noticed() -> None:
    new = OffsetMap("ab", "cd")
    new.check_alone({"0": 0, "1": 0})
    with pytest.raises(MirrorError, match="partition 0 of the target has 3 messages"):
        new.check_alone({"0": 3, "1": 0})
    found = new.with_entry(entry(0, 50))
    found.check_alone({"0": 50, "1": 0})
    found.check_alone({"0": 40, "1": 0})  # its end is not settled: nobody can say more
    with pytest.raises(MirrorError, match="partition 1 of the target has 2 messages"):
        found.check_alone({"0": 50, "1": 2})
