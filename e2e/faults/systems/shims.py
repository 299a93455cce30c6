"""The libraries of `tools/` that are preloaded into the brokers' processes, and how to control them.

`slowdisk` delays or fails writes to the data directory, `lossydisk` notes which bytes were flushed, `badclock` shifts
the wall clock. Each broker has control files of its own. Without a C compiler, the suite leaves out the faults that
need these libraries, and the report says so.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TOOLS: Final = Path(__file__).resolve().parents[3] / "tools"
_LIBRARIES: Final = (
    "badclock",
    "lossydisk",
    "slowdisk",
)  # the last gets calls first: `lossydisk` notes no failed flush
_COMPILE_DEADLINE_S: Final = 60


def find_compiler() -> str | None:
    """The path of a C compiler; None if PATH has none."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


@dataclass(frozen=True, slots=True)
class Flushed:
    """A flush that the disk reported as done: the file had at least this size when the flush began."""

    inode: int
    size_bytes: int
    began_ns: int


def parse_flushed(text: str) -> list[Flushed]:
    """Read the lines of a log of `lossydisk`, without a torn last one."""
    lines = text.split("\n")[:-1]
    return [Flushed(*map(int, line.split())) for line in lines]


class Shims:
    """The libraries, built in a directory, and the control files of each broker.

    Args:
        directory: A directory outside the brokers' data. It is made if it is missing.
        data: The data directory of each broker, by the broker's name.
    """

    def __init__(self, directory: Path, data: Path) -> None:
        self._directory = directory.resolve()
        self._data = data.resolve()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._built = self._build()

    @property
    def built(self) -> bool:
        """Whether there are libraries to preload."""
        return bool(self._built)

    def _build(self) -> tuple[Path, ...]:
        compiler = find_compiler()
        if compiler is None:
            return ()
        built = []
        for name in _LIBRARIES:
            library = self._directory / f"{name}.so"
            source = _TOOLS / name / f"{name}.c"
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
            subprocess.run(command, check=True, timeout=_COMPILE_DEADLINE_S)
            built.append(library)
        return tuple(reversed(built))

    def environment(self, broker: str) -> dict[str, str]:
        """Return the variables that the broker's process needs in addition."""
        if not self._built:
            return {}
        if not self._clock(broker).exists():
            self.shift_clock(broker, 0)
        prefix = str(self._data / broker)
        return {
            "LD_PRELOAD": ":".join(map(str, self._built)),
            "SLOWDISK_PREFIX": prefix,
            "SLOWDISK_CONTROL": str(self._disk(broker)),
            "LOSSYDISK_PREFIX": prefix,
            "LOSSYDISK_LOG": str(self._log(broker)),
            "BADCLOCK_CONTROL": str(self._clock(broker)),
        }

    def set_disk(self, broker: str, settings: str) -> None:
        """Let the broker's disk behave so from now on (see `tools/slowdisk`); empty: normally."""
        self._disk(broker).write_text(settings)

    def shift_clock(self, broker: str, shift_s: float) -> None:
        """Set the broker's wall clock `shift_s` seconds off the true time."""
        path = self._clock(broker)
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:  # the process has this file mapped, so it must stay the same file
            file.write(struct.pack("=q", int(shift_s * 1e9)))

    def flushed(self, broker: str) -> list[Flushed]:
        """Return every flush of the broker's files so far, in order."""
        try:
            return parse_flushed(self._log(broker).read_text())
        except FileNotFoundError:
            return []

    def lose_unsynced(self, broker: str) -> int:
        """Cut the files of a stopped broker to their flushed part. Return how many bytes that removed.

        RocksDB never flushes its own log and lock files. They are cut to nothing, like all other files.
        """
        flushed = {entry.inode: entry.size_bytes for entry in self.flushed(broker)}
        lost = 0
        for path in sorted((self._data / broker).rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            found = path.stat()
            keep = flushed.get(found.st_ino, 0)
            if found.st_size > keep:
                lost += found.st_size - keep
                with path.open("r+b") as file:
                    file.truncate(keep)
        return lost

    def _disk(self, broker: str) -> Path:
        return self._directory / f"{broker}.disk"

    def _log(self, broker: str) -> Path:
        return self._directory / f"{broker}.synced"

    def _clock(self, broker: str) -> Path:
        return self._directory / f"{broker}.clock"
