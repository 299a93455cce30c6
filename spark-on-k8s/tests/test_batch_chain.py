"""Which micro-batches a directory takes, and from which driver."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow.fs as pafs
import pytest
from seriatim_spark.directories import batch_chain
from seriatim_spark.directories.batch_chain import (
    FOLDER,
    KEPT,
    ChainError,
    Link,
    OvertakenError,
    append,
    is_repeat,
    newest,
)
from seriatim_spark.directories.files import DirectoryError
from seriatim_spark.pipelines import micro_batches
from seriatim_spark.pipelines.archive import begin_batch
from seriatim_spark.pipelines.micro_batches import check_seen


def at(offset: int) -> dict[str, Any]:
    return {"v": 1, "t": {"orders": {"id": "a", "p": {"0": f"1:{offset}"}}}}


def link(serial: int, batch: int = 0, query: str = "q") -> Link:
    return Link(serial, query, batch, at(batch), {"n": serial})


def test_the_newest_link_counts_and_old_ones_go(tmp_path: Path) -> None:
    assert newest(str(tmp_path)) is None
    for serial in range(KEPT + 5):
        append(str(tmp_path), link(serial))
        assert newest(str(tmp_path)) == link(serial)
    assert len(list((tmp_path / FOLDER).iterdir())) == KEPT
    assert not list((tmp_path / "_aside").iterdir())


@pytest.mark.parametrize("behind", [0, 1, KEPT + 3])
def test_a_link_of_a_driver_that_was_overtaken_is_refused(tmp_path: Path, behind: int) -> None:
    """Also when the number is free again, because its link is long gone."""
    for serial in range(KEPT + 5):
        append(str(tmp_path), link(serial))
    with pytest.raises(OvertakenError, match="another driver has taken"):
        append(str(tmp_path), link(KEPT + 4 - behind, query="zombie"))
    assert newest(str(tmp_path)) == link(KEPT + 4)


def test_of_drivers_that_begin_at_once_one_gets_the_directory(tmp_path: Path) -> None:
    drivers = 8
    together = Barrier(drivers)

    def begin(number: int) -> str:
        together.wait()
        try:
            begin_batch(str(tmp_path), f"query-{number}", 0, None, at(10), 100)
        except ChainError as exc:
            return str(exc)
        return ""

    with ThreadPoolExecutor(drivers) as pool:
        told = list(pool.map(begin, range(drivers)))
    assert told.count("") == 1
    winner = newest(str(tmp_path))
    assert winner is not None
    assert winner.query == f"query-{told.index('')}"
    assert all(f"belongs to the query {winner.query}" in text for text in told if text)


def test_only_the_next_micro_batch_and_a_repeat_are_taken() -> None:
    last = Link(7, "q", 3, at(30))

    def repeat(batch: int, start: int, end: int, query: str = "q") -> bool:
        return is_repeat("/data", last, query, batch, at(start), at(end))

    assert repeat(3, 20, 30)
    assert not repeat(4, 30, 44)
    for batch, start, end, why in (
        (3, 20, 35, "the checkpoint is an older copy"),
        (2, 10, 20, "the checkpoint is an older copy"),
        (4, 35, 44, "different offsets"),
        (6, 50, 60, "the directory is an older copy"),
    ):
        with pytest.raises(ChainError, match=why):
            repeat(batch, start, end)
    with pytest.raises(ChainError, match="belongs to the query q"):
        repeat(4, 30, 44, "other")
    assert not is_repeat("/data", None, "q", 0, None, at(1))
    assert not is_repeat("/data", Link(0, "q", batch_chain.NONE_YET, None), "q", 0, None, at(1))
    for none in (None, Link(0, "q", batch_chain.NONE_YET, None)):
        with pytest.raises(ChainError, match="has no micro-batch, and this is micro-batch 1"):
            is_repeat("/data", none, "q", 1, at(0), at(1))


def test_an_archive_is_refused_with_other_rows_a_file(tmp_path: Path) -> None:
    begin_batch(str(tmp_path), "q", 0, None, at(10), 100)
    begin_batch(str(tmp_path), "q", 0, None, at(10), 100)
    begin_batch(str(tmp_path), "q", 1, at(10), at(20), 100)
    with pytest.raises(DirectoryError, match="--file-rows 100"):
        begin_batch(str(tmp_path), "q", 2, at(20), at(30), 99)
    found = newest(str(tmp_path))
    assert found is not None
    assert (found.batch, found.ends) == (1, at(20))


def test_a_crash_leaves_no_half_of_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(str(tmp_path), link(0))

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="the disk is gone"):
            append(str(tmp_path), link(1))
    assert newest(str(tmp_path)) == link(0), "what was not flushed has no name yet"
    append(str(tmp_path), link(1))
    path = tmp_path / FOLDER / f"{1:020}.json"
    path.write_text("")
    with pytest.raises(ChainError, match="cannot be read"):
        newest(str(tmp_path))


def test_a_file_system_without_hard_links_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    with pytest.raises(ChainError, match="hard links, such as"):
        append(str(tmp_path), link(0))


def test_a_store_without_links_still_refuses_what_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    store = pafs._MockFileSystem()  # type: ignore[attr-defined]
    monkeypatch.setattr(batch_chain, "file_system", lambda _: (store, "archive"))
    begin_batch("mock://archive", "q", 0, None, at(10), 100)
    begin_batch("mock://archive", "q", 1, at(10), at(20), 100)
    with pytest.raises(OvertakenError):
        append("mock://archive", link(1))
    with pytest.raises(ChainError, match="older copy"):
        begin_batch("mock://archive", "q", 0, None, at(9), 100)


def test_files_that_the_driver_does_not_see_are_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "SEEN_WITHIN_S", 0)
    (tmp_path / "a.parquet").write_text("")
    check_seen(str(tmp_path), ["a.parquet"])
    check_seen(str(tmp_path), [])
    with pytest.raises(DirectoryError, match=r"2 files .* such as b\.parquet.*the same one for the driver"):
        check_seen(str(tmp_path), ["a.parquet", "b.parquet", "c.parquet"])
