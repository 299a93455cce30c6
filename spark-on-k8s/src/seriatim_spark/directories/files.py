"""Files in a directory, on a disk of this machine or in a store.

They are put in place at one moment, read, and listed.
"""

from __future__ import annotations

import json
import os
import uuid
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

ASIDE: Final = "_aside"


class DirectoryError(Exception):
    """The directory of a pipeline, or a file in it, cannot be read or is not what it should be.

    The directory may be an archive, a table, or a place for notes; the text names it.
    """


def file_system(url: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a directory, and the directory in it.

    Raises:
        DirectoryError: The text is neither a path nor a URL that pyarrow knows.
    """
    try:
        if "://" in url or url.startswith("file:/"):
            found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(url)
            return found
        return pafs.LocalFileSystem(), os.path.abspath(url)
    except (pa.ArrowException, OSError, ValueError) as exc:
        raise DirectoryError(f"{url} cannot be opened as a directory: {exc}") from exc


def names_in(files: pafs.FileSystem, path: str) -> list[str]:
    """Return the names of the files in a directory; none if the directory does not exist."""
    selector = pafs.FileSelector(path, allow_not_found=True)
    try:
        infos = files.get_file_info(selector)
    except FileNotFoundError:
        # pyarrow lists the directory, and if that fails it asks whether the directory exists. Between these two steps
        # another program may have made it.
        infos = files.get_file_info(selector)
    return [info.base_name for info in infos]


def flush_path(files: pafs.FileSystem, path: str) -> None:
    """Flush a file or directory if it is on a disk of this machine, because Spark does not read its rows again after
    its next checkpoint.
    """
    if not isinstance(files, pafs.LocalFileSystem):
        return
    found = os.open(path, os.O_RDONLY)
    try:
        os.fsync(found)
    finally:
        os.close(found)


def write_json(directory: str, name: str, value: Any) -> None:
    """Replace a JSON file by a new one, at one moment."""
    files, root = file_system(directory)
    files.create_dir(f"{root}/{ASIDE}", recursive=True)
    aside = f"{root}/{ASIDE}/{uuid.uuid4().hex}.json"
    with files.open_output_stream(aside) as sink:
        sink.write(json.dumps(value, sort_keys=True).encode())
    flush_path(files, aside)
    files.move(aside, f"{root}/{name}")
    flush_path(files, root)


def read_json(directory: str, name: str) -> Any:
    """Read a JSON file; None if it was never written.

    Raises:
        DirectoryError: The file cannot be read.
    """
    files, root = file_system(directory)
    path = f"{root}/{name}"
    if files.get_file_info(path).type == pafs.FileType.NotFound:
        return None
    try:
        with files.open_input_stream(path) as source:
            return json.loads(source.read())
    except (ValueError, OSError) as exc:
        raise DirectoryError(f"{path} cannot be read: {exc}") from exc


def remove_aside(directory: str) -> None:
    """Remove unfinished files that failed attempts left. Only the query that writes here may do it, between batches."""
    files, root = file_system(directory)
    if files.get_file_info(f"{root}/{ASIDE}").type == pafs.FileType.Directory:
        files.delete_dir_contents(f"{root}/{ASIDE}")
