"""The watermark: a small file beside the database, which says up to which sequence number the log is durable.

RocksDB mostly knows a record that was cut off at the end of its log from a damaged one. It does not in two cases: the
damage makes a record claim to be longer than the rest of the file, or a whole file is gone. Then acknowledged batches
would be missing, and RocksDB would report no error. So after each flush the storage notes the sequence number that the
flush covered. A start refuses a log that ends before the note.

A start makes the file under another name, with a note in it, and renames it. So a start that is killed leaves either no
file or one with a note. A missing or empty file is accepted only if nothing was ever written. The note
itself is not flushed. It survives the end of the process. After a loss of power the file may have an earlier note,
which is still a lower bound.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from seriatim_api.batch import Checksum
from seriatim_api.errors import CorruptionError

from .floor import REMEDY

_NOTE: Final = struct.Struct("<8sQI")
_MAGIC: Final = b"SQMARK01"
_FILE: Final = "watermark"
_TEMPORARY: Final = "watermark.new"


class Watermark:
    """The watermark's file.

    Args:
        directory: The data directory.
        checksum: CRC-32C.
        is_expected: Whether an earlier start made the file. Then a missing file is an error.
    """

    def __init__(self, directory: Path, checksum: Checksum, *, is_expected: bool = False) -> None:
        self._is_expected = is_expected
        self._path = directory / _FILE
        self._checksum = checksum
        self._fd = -1

    def check(self, sequence: int) -> None:
        """Compare the note with the newest sequence number of the database that was just opened.

        Raises:
            CorruptionError: The database ends before writes that were durable, or the note is missing or damaged.
        """
        data = self._path.read_bytes() if self._path.exists() else b""
        if not data:
            if self._is_expected or sequence:
                raise CorruptionError(
                    f"{self._path} is missing or empty, but a broker has written to this directory: it is not known "
                    f"whether the end of the write-ahead log is missing too. {REMEDY}"
                )
            return
        known = self._parse(data)
        if known is None:
            raise CorruptionError(f"{self._path} is damaged. {REMEDY}")
        if sequence < known:
            raise CorruptionError(
                f"the write-ahead log ends at {sequence}, but {known} was durable: a part of it is missing or damaged. "
                f"{REMEDY}"
            )

    def noted(self) -> int:
        """The note, a lower bound; 0 if there is none that can be read. Blocks."""
        data = self._path.read_bytes() if self._path.exists() else b""
        return self._parse(data) or 0

    def open(self, sequence: int) -> None:
        """Make the file and write the first note, durably. Blocks."""
        made = self._path.with_name(_TEMPORARY)
        self._fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        self.note(sequence)
        os.fsync(self._fd)
        made.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def note(self, sequence: int) -> None:
        """Note that all writes up to `sequence` are durable. It is one small write, without a flush."""
        prefix = _NOTE.pack(_MAGIC, sequence, 0)[:-4]
        os.pwrite(self._fd, prefix + struct.pack("<I", self._checksum(0, prefix)), 0)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _parse(self, data: bytes) -> int | None:
        if len(data) != _NOTE.size:
            return None
        magic, sequence, checksum = _NOTE.unpack(data)
        if magic != _MAGIC or self._checksum(0, data[:-4]) != checksum:
            return None
        number: int = sequence
        return number
