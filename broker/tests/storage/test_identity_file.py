"""Whose disk it is: every wrong disk is refused with its own number, and says what to do."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from seriatim_api.errors import (
    CorruptionError,
    ForeignDiskError,
    NewerFormatError,
    OldDiskError,
    StorageError,
    WipedDiskError,
)
from seriatim_api.v1 import storage_pb2
from seriatim_broker.adapters import identity_file as module
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.identity_file import DataDirectory, KnownMember, check_cluster, judge, open_directory


def _open(path: Path, broker: str = "g0-0", cluster: str | None = "c1") -> DataDirectory:
    return open_directory(path, broker, cluster, crc32c)


def _made(path: Path) -> None:
    directory = _open(path)
    directory.create("c1", "g0-0")
    directory.release()


def test_a_new_directory_has_no_identity_file_until_it_is_given_one(tmp_path: Path) -> None:
    directory = _open(tmp_path / "deep" / "data")
    assert directory.identity_file is None
    made = directory.create("c1", "g0-0")
    directory.release()
    again = _open(tmp_path / "deep" / "data")
    assert again.identity_file == made
    assert made.run == 0
    assert len(made.incarnation) == 32
    again.release()


def test_each_start_raises_the_run(tmp_path: Path) -> None:
    _made(tmp_path)
    for run in (1, 2, 3):
        directory = _open(tmp_path)
        assert directory.raise_run() == run
        directory.release()


def test_only_one_process_holds_a_directory(tmp_path: Path) -> None:
    directory = _open(tmp_path)
    with pytest.raises(StorageError, match="another process") as caught:
        _open(tmp_path)
    assert caught.value.number == 710
    directory.release()
    _open(tmp_path).release()


def test_another_brokers_directory_is_refused(tmp_path: Path) -> None:
    _made(tmp_path)
    before = (tmp_path / "passport").read_bytes()
    with pytest.raises(ForeignDiskError, match="g0-0, not to g0-1") as caught:
        _open(tmp_path, broker="g0-1")
    assert caught.value.number == 700
    assert (tmp_path / "passport").read_bytes() == before
    _open(tmp_path).release()  # the lock was let go


def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    _made(tmp_path)
    with pytest.raises(ForeignDiskError, match="cluster c1, not to c2"):
        _open(tmp_path, cluster="c2")
    directory = _open(tmp_path, cluster=None)
    assert directory.identity_file is not None
    with pytest.raises(ForeignDiskError):
        check_cluster(directory.identity_file, "c2")
    directory.release()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    _made(tmp_path)
    stored = storage_pb2.StoredPassport.FromString((tmp_path / "passport").read_bytes()[12:])
    stored.format_version = module.FORMAT_VERSION + 1
    message = stored.SerializeToString()
    (tmp_path / "passport").write_bytes(struct.pack("<8sI", b"SQPASS01", crc32c(0, message)) + message)
    with pytest.raises(NewerFormatError, match="newer version") as caught:
        _open(tmp_path)
    assert caught.value.number == 701


def test_a_damaged_identity_file_is_refused(tmp_path: Path) -> None:
    _made(tmp_path)
    data = (tmp_path / "passport").read_bytes()
    for at in range(len(data)):
        (tmp_path / "passport").write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(CorruptionError):
            _open(tmp_path)
    for length in range(len(data)):
        (tmp_path / "passport").write_bytes(data[:length])
        with pytest.raises(CorruptionError):
            _open(tmp_path)


def test_data_without_an_identity_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(CorruptionError, match="no identity file"):
        _open(tmp_path)


def test_a_write_that_did_not_finish_leaves_the_old_identity_file(tmp_path: Path) -> None:
    _made(tmp_path)
    (tmp_path / "passport.new").write_bytes(b"half")
    directory = _open(tmp_path)
    assert directory.raise_run() == 1
    directory.release()


def test_a_run_that_did_not_end_in_order_makes_those_before_the_next_one_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was its process or its machine: what it had not flushed was in its memory."""
    _made(tmp_path)
    first = _open(tmp_path)
    assert not first.ended_badly
    first.raise_run()
    first.mark_clean()
    first.release()
    in_good_order = _open(tmp_path)
    assert not in_good_order.ended_badly
    in_good_order.raise_run()
    assert in_good_order.identity_file is not None
    assert in_good_order.identity_file.suspect_before_run == 0
    in_good_order.release()
    process_died = _open(tmp_path)
    assert process_died.ended_badly
    run = process_died.raise_run()
    process_died.mark_clean()
    process_died.release()
    restarted = _open(tmp_path)
    assert not restarted.ended_badly
    assert restarted.raise_run() == run + 1
    assert restarted.identity_file is not None
    assert restarted.identity_file.suspect_before_run == run, "what the process took with it is still missing"
    restarted.release()
    monkeypatch.setattr(module, "boot_id", lambda: "another boot")
    rebooted = _open(tmp_path)
    assert rebooted.ended_badly
    assert rebooted.raise_run() == run + 2
    assert rebooted.identity_file is not None
    assert rebooted.identity_file.suspect_before_run == run + 2
    rebooted.release()


def test_a_disk_is_judged_by_what_the_cluster_knows(tmp_path: Path) -> None:
    _made(tmp_path)
    directory = _open(tmp_path)
    identity_file = directory.identity_file
    directory.release()
    assert identity_file is not None
    identity_file = replace(identity_file, run=5)
    judge(None, None)
    judge(identity_file, None)
    judge(identity_file, KnownMember(identity_file.incarnation, 5))
    judge(identity_file, KnownMember(identity_file.incarnation, 4))  # raised here, before the cluster heard of it
    with pytest.raises(OldDiskError, match="last run is 5, the cluster knows run 6"):
        judge(identity_file, KnownMember(identity_file.incarnation, 6))
    with pytest.raises(WipedDiskError, match="empty"):
        judge(None, KnownMember(identity_file.incarnation, 1))
    with pytest.raises(ForeignDiskError, match="slot belongs to"):
        judge(identity_file, KnownMember("f" * 32, 1))


# ---- while a broker runs --------------------------------------------------------------------------------


def _deleted(path: Path) -> None:
    shutil.rmtree(path)


def _emptied(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def _without_data(path: Path) -> None:
    (path / "000001.log").unlink()


def _replaced(path: Path) -> None:
    """Another directory under the same name, with a copy of everything."""
    path.rename(path.with_name("away"))
    shutil.copytree(path.with_name("away"), path)


def _begun_anew(path: Path) -> None:
    """Another process has raised the run, past the lock: on another machine, say."""
    lock = path / "lock"
    lock.rename(path / "lock.away")
    directory = _open(path)
    directory.raise_run()
    directory.release()
    (path / "lock.away").rename(lock)


LOST = {
    "gone, or was emptied": (_deleted, _emptied),
    "is gone while": (_without_data,),
    "was replaced": (_replaced,),
    "run 2; this process is run 1": (_begun_anew,),
}


@pytest.mark.parametrize(("words", "lose"), [(words, lose) for words, many in LOST.items() for lose in many])
def test_a_running_broker_can_tell_that_its_directory_is_lost(
    words: str, lose: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "data"
    _made(path)
    directory = _open(path)
    run = directory.raise_run()
    (path / "000001.log").write_bytes(b"batches")
    assert directory.problem(run) == ""
    directory.mark_clean()
    assert directory.problem(run) == "", "an identity file that this process wrote is no news"
    lose(path)
    assert words in directory.problem(run)
    directory.release()


# ---- whether the storage must be there ------------------------------------------------------------------


def test_a_start_that_ended_before_it_made_the_storage_expects_none(tmp_path: Path) -> None:
    _made(tmp_path)
    directory = _open(tmp_path)
    directory.raise_run()
    directory.release()
    again = _open(tmp_path)
    assert not again.has_storage
    again.release()


def test_a_start_that_made_the_storage_is_remembered_over_a_bad_end(tmp_path: Path) -> None:
    _made(tmp_path)
    directory = _open(tmp_path)
    directory.raise_run()
    directory.note_storage()
    directory.release()
    again = _open(tmp_path)
    assert again.has_storage
    again.release()
