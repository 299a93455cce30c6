"""A table of the newest value of each key: however often and late a message is merged."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from seriatim_spark import applying
from seriatim_spark.applying import SCHEMA, ApplyError, TableState, merge, newest, next_state, with_settings
from seriatim_spark.directories import batch_chain
from seriatim_spark.directories.batch_chain import ChainError, Link

NEVER = -(1 << 62)


def changes(*rows: tuple[bytes, bytes | None, int]) -> pa.Table:
    """Key, value (None deletes) and offset; append times are as offsets."""
    return pa.Table.from_pylist(
        [
            {
                "key": key, "value": value, "deleted": value is None, "partition": 0, "offset": offset,
                "append_time": offset,
            }
            for key, value, offset in rows
        ],
        schema=SCHEMA.set(5, pa.field("append_time", pa.int64())),
    ).cast(SCHEMA)  # fmt: skip


def values(table: pa.Table) -> dict[bytes, bytes | None]:
    return dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))


def test_the_highest_offset_of_a_key_is_its_value() -> None:
    table = merge(None, changes((b"a", b"1", 1), (b"b", b"2", 2), (b"a", b"3", 3)), "offset", NEVER)
    assert values(table) == {b"a": b"3", b"b": b"2"}
    table = merge(table, changes((b"b", None, 4), (b"a", b"old", 1)), "offset", NEVER)
    assert values(table) == {b"a": b"3", b"b": None}
    table = merge(table, changes((b"b", b"2", 2)), "offset", NEVER)
    assert values(table) == {b"a": b"3", b"b": None}, "what was deleted does not come back"


def test_any_order_and_any_repeats_make_the_same_table() -> None:
    chance = random.Random(7)
    all_changes = [
        (b"k%d" % chance.randrange(20), None if chance.random() < 0.2 else b"v%d" % offset, offset)
        for offset in range(300)
    ]
    expected = {key: value for key, value, _ in all_changes}
    for _ in range(5):
        table = None
        chance.shuffle(all_changes)
        for at in range(0, 300, 50):
            part = [*all_changes[at : at + 50], *all_changes[: at // 2]]
            table = merge(table, changes(*part), "offset", NEVER)
        assert table is not None
        assert values(table) == expected


def test_tombstones_go_when_they_are_old() -> None:
    table = merge(None, changes((b"a", None, 5), (b"b", None, 50), (b"c", b"1", 1)), "offset", 20)
    assert values(table) == {b"b": None, b"c": b"1"}


def test_a_key_in_two_partitions_stops_unless_times_decide() -> None:
    table = changes((b"a", b"1", 100))
    moved = changes((b"a", b"2", 7)).set_column(3, "partition", pa.array([1], pa.int32()))
    moved = moved.set_column(5, "append_time", pa.array([200], pa.timestamp("us", "UTC")))
    with pytest.raises(ApplyError, match=r"key a stands in partitions 0 and 1|key a stands in partitions 1 and 0"):
        newest(pa.concat_tables([table, moved]), "offset")
    assert values(newest(pa.concat_tables([table, moved]), "append_time")) == {b"a": b"2"}


def test_a_table_changes_at_one_moment_and_old_files_go_later(tmp_path: Path) -> None:
    directory = str(tmp_path)
    state = TableState("orders", "id", 4)

    def write(state: TableState, batch: int) -> None:
        batch_chain.append(directory, Link(batch, "query", batch, {}, asdict(state)))

    first = applying.write_bucket(directory, 2, changes((b"a", b"1", 1)))
    state, gone = next_state(state, {2: (first, 1)}, 1000.0)
    write(state, 0)
    assert gone == []
    assert values(applying.read_table(directory)) == {b"a": b"1"}
    second = applying.write_bucket(directory, 2, changes((b"a", b"2", 2), (b"b", None, 3)))
    assert values(applying.read_table(directory)) == {b"a": b"1"}, "no table names the new file yet"
    state, gone = next_state(state, {2: (second, 2)}, 2000.0)
    assert gone == [], "a reader may still read it"
    write(state, 1)
    assert applying.read_state(directory) == state
    assert values(applying.read_table(directory)) == {b"a": b"2"}
    later, gone = next_state(state, {}, 2000.0 + applying.KEPT_S - 1)
    assert (gone, set(later.before)) == ([], {first}), "the reader may not be done"
    left = applying.write_bucket(directory, 3, changes((b"x", b"9", 9)))
    assert applying.remove_unnamed(directory, state) == 1
    assert not (tmp_path / left).exists()
    state, gone = next_state(state, {}, 2000.0 + applying.KEPT_S + 1)
    assert gone == [first]
    applying.remove(directory, gone)
    assert not (tmp_path / first).exists()
    assert applying.paths_of(directory) == [f"{tmp_path}/{second}"]


def test_a_table_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    assert applying.read_state(str(tmp_path)) is None
    with pytest.raises(ApplyError, match="there is no table"):
        applying.read_table(str(tmp_path))
    batch_chain.append(str(tmp_path), Link(0, "query", 0, {}, {"file_rows": 7}))
    with pytest.raises(ApplyError, match="does not hold a table"):
        applying.read_state(str(tmp_path))
    next((tmp_path / batch_chain.FOLDER).iterdir()).write_text("{}")
    with pytest.raises(ChainError, match="cannot be read"):
        applying.read_state(str(tmp_path))


def test_settings_that_a_table_cannot_change_are_refused() -> None:
    state = TableState("orders", "id", 4)
    assert with_settings(state, "orders", None, None) == with_settings(state, "orders", 4, "offset") == state
    with pytest.raises(ApplyError, match="--buckets 4"):
        with_settings(state, "orders", 8, None)
    with pytest.raises(ApplyError, match="topic orders, not bills"):
        with_settings(state, "bills", None, None)
    timed = with_settings(state, "orders", None, "append_time")
    assert timed.order_by == "append_time"
    assert with_settings(timed, "orders", None, None) == timed
    with pytest.raises(ApplyError, match="--order-by append_time"):
        with_settings(timed, "orders", None, "offset")
