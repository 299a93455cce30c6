"""`seriatim coordinator keep-snapshot` and `get-snapshot`: snapshots of etcd, stored under their times, and got again.

etcd's own tools take a snapshot and restore it. This stores one where it outlives the machine: in a directory, which is
a volume as a rule, or in an S3 bucket. Other files there are left alone.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

_NAME: Final = re.compile(r"etcd-\d{8}T\d{6}Z\.db")
_PARTIAL: Final = ".partial"
_S3: Final = "s3://"
COPY_BYTES: Final = 8 << 20


class Store(Protocol):
    """Where snapshots are kept."""

    def names(self) -> Iterable[str]:
        """The names of all files there."""

    def put(self, file: Path, name: str) -> None:
        """Store a file: whole, or not at all."""

    def get(self, name: str, file: Path) -> None:
        """Write a file from there to `file`."""

    def remove(self, name: str) -> None:
        """Remove a file."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that exists."""

    path: Path

    def names(self) -> Iterable[str]:
        """See `Store`."""
        return [entry.name for entry in self.path.iterdir()]

    def put(self, file: Path, name: str) -> None:
        """See `Store`."""
        partial = self.path / f"{name}{_PARTIAL}"
        with file.open("rb") as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target, COPY_BYTES)
            target.flush()
            os.fsync(target.fileno())
        partial.rename(self.path / name)
        directory = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def get(self, name: str, file: Path) -> None:
        """See `Store`."""
        shutil.copyfile(self.path / name, file)

    def remove(self, name: str) -> None:
        """See `Store`."""
        (self.path / name).unlink()


class Bucket:
    """A prefix of an S3 bucket. A file is there when its upload is complete.

    Args:
        uri: `s3://BUCKET/PREFIX`.
        environment: AWS_ENDPOINT_URL and AWS_REGION; the S3 client reads the credentials itself.
    """

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        from pyarrow.fs import S3FileSystem

        scheme, _, host = environment.get("AWS_ENDPOINT_URL", "").rpartition("://")
        options: dict[str, Any] = {"region": environment.get("AWS_REGION") or "us-east-1"}
        if host:
            options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
        self._files = S3FileSystem(**options)
        self._root = uri.removeprefix(_S3).strip("/")

    def names(self) -> Iterable[str]:
        """See `Store`."""
        from pyarrow.fs import FileSelector

        found = self._files.get_file_info(FileSelector(self._root, allow_not_found=True))
        return [info.base_name for info in found]

    def put(self, file: Path, name: str) -> None:
        """See `Store`."""
        with file.open("rb") as source, self._files.open_output_stream(f"{self._root}/{name}") as target:
            while piece := source.read(COPY_BYTES):
                target.write(piece)

    def get(self, name: str, file: Path) -> None:
        """See `Store`."""
        with self._files.open_input_stream(f"{self._root}/{name}") as source, file.open("wb") as target:
            while piece := source.read(COPY_BYTES):
                target.write(piece)

    def remove(self, name: str) -> None:
        """See `Store`."""
        self._files.delete_file(f"{self._root}/{name}")


def store_of(to: str) -> Store:
    """The store that `--to` names."""
    return Bucket(to, os.environ) if to.startswith(_S3) else Directory(Path(to))


def keep(file: Path, store: Store, count: int, now: datetime) -> tuple[str, list[str]]:
    """Store a snapshot, and then remove those beyond the newest `count`, and halves of copies that broke off.

    Returns:
        Its name there, and the names that were removed.

    Raises:
        OSError: It could not be stored. Nothing was removed then.
    """
    assert count >= 1, "the one that was just stored stays"
    name = f"etcd-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}.db"
    store.put(file, name)
    there = list(store.names())
    snapshots = sorted(other for other in there if _NAME.fullmatch(other))
    if name not in snapshots:
        raise OSError(f"{name} was written, and is not there")
    halves = [other for other in there if other.endswith(_PARTIAL) and _NAME.fullmatch(other.removesuffix(_PARTIAL))]
    old = [other for other in snapshots[:-count] if other != name]
    for other in (*old, *halves):
        store.remove(other)
    return name, [*old, *halves]


def get(store: Store, name: str, file: Path, set_aside: Path | None, now: datetime) -> tuple[str, Path | None]:
    """Get a snapshot, and then give a directory another name, in whose place it is to be restored.

    Args:
        store: Where it is.
        name: Its name; empty: the newest.
        file: Where to write it.
        set_aside: The directory, which need not exist; None: there is none.
        now: The time, for the directory's new name.

    Returns:
        The name of the snapshot, and the directory's new name if there was one.

    Raises:
        OSError: It is not there, or could not be read or written. The directory has its name then.
    """
    name = name or max((other for other in store.names() if _NAME.fullmatch(other)), default="")
    if not name:
        raise FileNotFoundError("there is no snapshot")
    store.get(name, file)
    if set_aside is None or not set_aside.exists():
        return name, None
    aside = set_aside.with_name(f"{set_aside.name}-before-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}")
    set_aside.rename(aside)
    return name, aside
