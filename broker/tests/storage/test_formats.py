"""What older code would read wrongly has a number by which it refuses (docs/contributing/formats.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from seriatim_api.errors import NewerFormatError, OlderFormatError
from seriatim_api.v1 import storage_pb2
from seriatim_broker.adapters import identity_file
from seriatim_broker.adapters.crc import crc32c
from seriatim_broker.adapters.rocks import codec, keys
from seriatim_broker.core.values import ledger_rows as rows
from seriatim_broker.core.values.delayed import Span
from seriatim_broker.core.values.keyed import ConsumerGroupSettings, ConsumerMode, Exhausted, KeyPhase, RetryPolicy
from seriatim_broker.core.values.log import CursorState, DueRow, HandOverId, HandOverState, StoredVolley, TailCopy
from seriatim_broker.core.values.producers import Entry, IdleBlock, pack_window
from seriatim_broker.interfaces import forms

from .build import ATTEMPT, SegmentBuilder, preparation, segment_record
from .described_forms import described

HEADER_BYTES = 12  # magic and checksum, since the first version
FORMATS = Path(__file__).parent / "formats"
PARKS = ConsumerGroupSettings(
    ConsumerMode.KEY_ORDERED, RetryPolicy(3, delays_ms=(100, 1_000), exhausted=Exhausted.PARK_KEY)
)


def _samples() -> Iterator[tuple[str, bytes]]:
    """A row of each kind, as this code writes it."""
    batch = SegmentBuilder(1).batch(4, 2)
    window = pack_window((Entry(1, 0, 2, 10), Entry(1, 2, 1, 12)), 1_000)
    for number, part in enumerate(codec.batch_parts(batch, 1, 3)):
        yield f"batch part {number}", bytes(part)
    yield "window", codec.write_window(window)
    yield "idle block", IdleBlock.of([(b"q" * 16, window)]).data
    yield "segment", codec.write(segment_record(2, sealed_len=9))
    yield "preparation", codec.write(preparation(2))
    cursor = CursorState(2, "g", 3, 7, 9, 5, 4, 6, settings=PARKS, term_base=8, serial=11)
    yield "control record", codec.write(cursor)
    yield "extent", codec.write(codec.Extent(1_000))
    yield "tail copy", codec.write(TailCopy(2, 4, 6, (batch,)))
    row = (rows.key_name(b"k"), b"v")
    delayed = DueRow(1_000, 3, 2, 196)
    yield "delayed batch by due time", keys.due_key(1, 2, 1_000, 3) + codec.write_sizes(delayed)
    yield "delayed batch by index", keys.row_key(keys.DELAYED, 1, 2, 3) + codec.write_due(1_000)
    volley = StoredVolley(3, b"q" * 16, 7, (Span(9, 2), Span(20, 1)), is_list=True)
    moved = delayed._replace(origin=77)
    yield "moved batch by due time", keys.due_key(1, 2, 1_000, 3) + codec.write_sizes(moved)
    move = StoredVolley(3, b"q" * 16, 7, (Span(9, 2),), is_moved=True)
    yield "volley of moved messages", codec.write_stored_volley(move)
    yield "volley of delayed messages", keys.row_key(keys.VOLLEY, 1, 2, 3) + codec.write_stored_volley(volley)
    yield "hand-over", codec.write(HandOverState(2, "g", 3, HandOverId(5, 1), (row,)))
    yield "ledger block", b"".join(rows.write_block(1, 0b1011))
    yield (
        "ledger key",
        rows.key_name(b"k") + rows.write_key(rows.KeyRecord(KeyPhase.RETRY, 1, 2, 1_000, 3, 4, 5, "broken")),
    )
    yield "ledger list", rows.aside_name(b"k", 1) + rows.write_aside((7, 9, 300))
    yield "ledger grant", b"".join(rows.write_grant(rows.CarriedGrant(1, b"k", "c", 2, 50, is_started=True)))
    yield "ledger forwarder", b"".join(rows.write_forwarder(6))
    yield "key of a batch", keys.batch_key(1, 2, 3)
    yield "key of a preparation", keys.meta_key(1, keys.PREPARATION, 2, ATTEMPT)
    yield "key of a control record", keys.cursor_key(1, 2, "g")
    yield "key of a ledger row", keys.ledger_key(1, 2, "g", b"n")
    yield "key of a hand-over", keys.handoff_key(1, 2, "g")


def _written() -> str:
    lines = [line for kind in codec.KINDS for line in described(forms.way_of(kind).wire)]
    lines += [f"{name}: {value.hex()}" for name, value in _samples()]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def test_rows_on_the_disk_are_as_their_format_says() -> None:
    path, written = FORMATS / f"{identity_file.FORMAT_VERSION}.txt", _written()
    if os.environ.get("REWRITE_FORMATS") == "1":
        path.write_text(written, encoding="utf-8")
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    assert written == known, (
        "what brokers write on disks has changed: read docs/contributing/formats.md, raise FORMAT_VERSION if older "
        "code would read it wrongly, and run this test with REWRITE_FORMATS=1"
    )


def test_each_format_since_the_third_has_its_rows() -> None:
    found = sorted(int(path.stem) for path in FORMATS.glob("*.txt"))
    assert found == list(range(3, identity_file.FORMAT_VERSION + 1))


@pytest.mark.parametrize("known", range(1, identity_file.FORMAT_VERSION))
def test_code_of_an_older_format_refuses_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    """It was started and ended cleanly: nothing but the number in the identity file can tell."""
    directory = identity_file.open_directory(tmp_path, "g0-0", "c", crc32c)
    directory.create("c", "g0-0")
    directory.raise_run()
    directory.mark_clean()
    directory.release()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert storage_pb2.StoredPassport.FromString(before["passport"][HEADER_BYTES:]).format_version > known
    monkeypatch.setattr(identity_file, "FORMAT_VERSION", known)
    monkeypatch.setattr(identity_file, "FORMAT_VERSION_MIN", 1)
    with pytest.raises(NewerFormatError):
        identity_file.open_directory(tmp_path, "g0-0", "c", crc32c)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing was changed"


OF_FORMAT_3 = bytes.fromhex(
    "5351504153533031fa7feac308031201631a0467302d30222037303038343761633563626534313633393366306665653764303564306666662801322434353237363865352d633265342d343530372d396439612d66643535666662373231363438014801"
)
"""The identity file of a directory that commit 189e0b5f made, started and ended cleanly. Format 3 was the last."""


def test_directory_of_format_3_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "passport").write_bytes(OF_FORMAT_3)
    with pytest.raises(OlderFormatError, match="start the version that wrote it, or make a new cluster") as caught:
        identity_file.open_directory(tmp_path, "g0-0", "c", crc32c)
    assert (caught.value.number, caught.value.details) == (709, {"found": "3", "known": "4"})
    assert (tmp_path / "passport").read_bytes() == OF_FORMAT_3
