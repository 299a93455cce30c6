"""How far the log was known to be durable: a small file beside the database.

RocksDB tells a record cut off at the end of its log from a damaged one, except where the damage makes a record claim
to be longer than the rest of the file, or where a whole file is gone: then acknowledged batches would vanish without
a word. So after each flush the sequence number that it covered is noted here, and a start whose log ends before that
is refused. The file is made whole, under another name, and renamed, so that a start that is killed leaves either none
or one with a note. Missing or empty it is accepted only if nothing was ever written: a start before this rule could
leave an empty one. The note itself is not synced: it survives the process, and after a power failure it is some
earlier one, which is still a lower bound.
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
    """The open file.

    Args:
        directory: The data directory.
        checksum: CRC-32C.
        is_expected: Whether an earlier start made the file: then it must be there.
    """

    def __init__(self, directory: Path, checksum: Checksum, *, is_expected: bool = False) -> None:
        self._is_expected = is_expected
        self._path = directory / _FILE
        self._checksum = checksum
        self._fd = -1

    def check(self, sequence: int) -> None:
        """Compare with the sequence number that the database came back with.

        Raises:
            CorruptionError: The database ends before what was durable, or the note cannot be read.
        """
        data = self._path.read_bytes() if self._path.exists() else b""
        if not data:
            if self._is_expected or sequence:
                raise CorruptionError(
                    f"{self._path} is missing or empty, but a broker has written to this directory: it cannot be told "
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
        """All up to `sequence` is durable. One small write, without a sync."""
        head = _NOTE.pack(_MAGIC, sequence, 0)[:-4]
        os.pwrite(self._fd, head + struct.pack("<I", self._checksum(0, head)), 0)

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
