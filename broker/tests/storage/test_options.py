"""RocksDB takes the options that matter, and is not used if it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from seriatim_api.errors import StorageError
from seriatim_broker.adapters.rocks import RocksSettings, options
from seriatim_broker.adapters.rocks.engine import Engine
from seriatim_broker.adapters.rocks.floor import extent_name

_SETTINGS = RocksSettings(extents=2)


def test_what_matters_is_taken(tmp_path: Path) -> None:
    engine = Engine(tmp_path, _SETTINGS)
    options.check(tmp_path, [extent_name(1), extent_name(2)])
    with pytest.raises(StorageError, match="disable_auto_compactions"):
        options.check(tmp_path, [extent_name(3)])
    engine.close()


@pytest.mark.parametrize(
    ("section", "line"),
    [("DBOptions", "manual_wal_flush=false"), (options.EXTENT, "compaction_style=kCompactionStyleLevel")],
)
def test_an_engine_that_has_it_otherwise_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, line: str
) -> None:
    monkeypatch.setitem(options._VITAL, section, (line,))
    with pytest.raises(StorageError, match=line):
        Engine(tmp_path, _SETTINGS)


def test_a_name_that_rocksdb_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = options._text(_SETTINGS)
    monkeypatch.setattr(options, "_text", lambda _settings: text.replace("manual_wal_flush", "manual_wal_rinse"))
    with pytest.raises(StorageError, match="manual_wal_rinse"):
        Engine(tmp_path, _SETTINGS)
