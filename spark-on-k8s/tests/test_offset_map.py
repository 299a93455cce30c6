"""The map of offsets that a mirror keeps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from seriatim_spark.directories import offset_map
from seriatim_spark.directories.offset_map import Entry, MirrorError, OffsetMap, entry_of, load
from seriatim_spark.errors import UnsettledError
from seriatim_spark.options import Target
from seriatim_spark.pipelines import mirror
from seriatim_spark.reading.brokers import Place, TopicAt
from seriatim_spark.writing.sink_options import SinkOptions


def entry(batch: int, position: int = 0) -> Entry:
    return Entry(batch, {"0": 100 + batch, "1": 0}, {"0": 7 + batch, "1": 0}, {"0": position, "1": 0})


def test_a_map_is_kept_and_belongs_to_two_topics(tmp_path: Path) -> None:
    directory = str(tmp_path / "map")
    found = load(directory, "ab", "cd")
    assert found == OffsetMap(directory, "ab", "cd")
    found.note(entry(0))
    found.note(entry(1))
    assert load(directory, "ab", "cd") == found
    assert (found.batches, found.last) == ([0, 1], entry(1))
    for source, target in (("ab", "ef"), ("ef", "cd")):
        with pytest.raises(MirrorError, match="made again"):
            load(directory, source, target)


def test_a_micro_batch_writes_its_own_entry_only(tmp_path: Path) -> None:
    """However many there are: with a thousand partitions all of them take a minute to write."""
    found = load(str(tmp_path), "ab", "cd")
    for batch in range(5):
        found.note(entry(batch))
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "entries").iterdir()}
    found.note(entry(5))
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "entries").iterdir()}
    assert len(after) == 6
    assert {name: after[name] for name in before} == before
    assert not (tmp_path / "offsets.json").exists()


def test_a_batch_that_runs_again_is_noted_anew(tmp_path: Path) -> None:
    found = load(str(tmp_path), "ab", "cd")
    for one in (entry(0), entry(1, 5), entry(1, 6)):
        found.note(one)
    assert found.batches == [0, 1]
    assert load(str(tmp_path), "ab", "cd").last == entry(1, 6)
    assert (found.before(1), found.before(2), found.before(0)) == (entry(0), entry(1, 6), None)


def test_one_file_of_all_entries_is_taken_apart(tmp_path: Path) -> None:
    said = {"version": 1, "source": "ab", "target": "cd", "entries": [asdict(entry(0)), asdict(entry(7, 3))]}
    (tmp_path / "offsets.json").write_text(json.dumps(said))
    with pytest.raises(MirrorError, match="made again"):
        load(str(tmp_path), "ab", "ef")
    found = load(str(tmp_path), "ab", "cd")
    assert (found.batches, found.last) == ([0, 7], entry(7, 3))
    assert load(str(tmp_path), "ab", "cd") == found


def test_old_entries_get_further_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(offset_map, "ENTRIES_MAX", 10)
    monkeypatch.setattr("seriatim_spark.directories.files.flush_path", lambda *_: None)
    found = OffsetMap(str(tmp_path), "ab", "cd")
    for batch in range(200):
        found.note(entry(batch))
        assert len(found.batches) <= 10
        assert len(list((tmp_path / "entries").iterdir())) == len(found.batches)
    assert found.batches == sorted(set(found.batches))
    assert found.batches[0] == 0
    assert found.batches[-3:] == [197, 198, 199]
    assert entry_of(str(tmp_path), 198) == entry(198)


def test_messages_of_others_are_noticed(tmp_path: Path) -> None:
    found = OffsetMap(str(tmp_path), "ab", "cd")
    found.check_alone({"0": 0, "1": 0})
    with pytest.raises(MirrorError, match="partition 0 of the target has 3 messages"):
        found.check_alone({"0": 3, "1": 0})
    found.note(entry(0, 50))
    found.check_alone({"0": 50, "1": 0})
    with pytest.raises(MirrorError, match="partition 1 of the target has 2 messages"):
        found.check_alone({"0": 50, "1": 2})


def test_an_end_that_is_not_settled_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers say 0 messages as long as no reader can read the first segment, and 150 when it is back."""
    now = 0.0
    back_at = 20.0

    def ends(_target: Target, _topic: str) -> TopicAt:
        return TopicAt("cd", {0: Place(1 << 40, 0, 0, blocked=True) if now < back_at else Place(2 << 40, 150, 0)})

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(mirror, "ends_of", ends)
    sink = SinkOptions(Target("h:1"), "there", write_timeout_s=30.0)
    assert mirror.settled_ends(sink, lambda: now, sleep).places[0].position == 150
    now, back_at = 0.0, 100.0
    with pytest.raises(UnsettledError, match="partition 0"):
        mirror.settled_ends(sink, lambda: now, sleep)
