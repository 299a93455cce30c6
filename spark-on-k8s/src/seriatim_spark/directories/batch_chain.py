"""Notes in a directory which micro-batches it holds. So no micro-batch is missing, comes twice, or is of an old driver.

    <directory>/_batches/00000000000000000012.json      the newest link; the newest `KEPT` links stay

A link names the query, its last micro-batch in the directory, and where this micro-batch ends in the topics. It also
has what the pipeline keeps. A driver makes a link by exclusive create, under the number after the newest link that it
has seen. If two drivers try, one makes the link, and the other learns that it was overtaken. A driver that takes a
directory over makes a link too: from then on, earlier drivers can make no link.

Exclusive create is a hard link: the file appears complete or not at all, and never replaces a file. Object stores have
no hard links: there two drivers can both make a link at the same moment. A directory or a checkpoint of another time is
still refused.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow.fs as pafs

from seriatim_spark.directories.files import ASIDE, file_system, flush_path, names_in

FOLDER: Final = "_batches"
KEPT: Final = 20
"""The number of links that stay, because a program may be about to read one."""
VERSION: Final = 1
NONE_YET: Final = -1
"""The micro-batch of a link that was made before the first one."""

_NAME: Final = re.compile(r"(\d{20})\.json")


class ChainError(Exception):
    """A micro-batch does not follow those in the directory, or a link cannot be read or made."""


class OvertakenError(ChainError):
    """Another driver has made the next link."""


@dataclass(frozen=True, slots=True)
class Link:
    """The content of one file of the chain.

    Attributes:
        serial: The number of the link; the next link has the next number.
        query: The query that the directory belongs to.
        batch: The query's last micro-batch in the directory, or `NONE_YET`.
        ends: Where this micro-batch ends in the topics, as in Spark's checkpoint (`offsets.to_json`); None with
            `NONE_YET`.
        content: What the pipeline keeps.
    """

    serial: int
    query: str
    batch: int
    ends: dict[str, Any] | None
    content: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION


def newest(directory: str) -> Link | None:
    """The newest link of the chain, which says what the output is now; None if no link was written yet.

    Raises:
        ChainError: The link cannot be read, or a newer version of this package wrote it.
    """
    files, root = file_system(directory)
    serials = _serials(files, root)
    if not serials:
        return None
    path = _path(root, serials[-1])
    try:
        with files.open_input_stream(path) as source:
            link = Link(**json.loads(source.read()))
    except (TypeError, ValueError) as exc:
        raise ChainError(f"{path} cannot be read: {exc}. Restore it, or begin a new directory") from exc
    if link.version != VERSION:
        raise ChainError(f"{path} is of version {link.version}, which is newer than this one")
    return link


def append(directory: str, link: Link) -> None:
    """Make a link, and remove old ones.

    Raises:
        OvertakenError: Another driver has made a link with this number or a later one. The directory is unchanged.
        ChainError: The file system has no hard links.
    """
    files, root = file_system(directory)
    text = json.dumps(asdict(link), sort_keys=True).encode()
    place = _path(root, link.serial)
    overtaken = OvertakenError(
        f"another driver has taken {directory} over. This driver stops, and has changed nothing. If the other driver "
        "is meant to run, you need not do anything"
    )
    files.create_dir(f"{root}/{FOLDER}", recursive=True)
    if isinstance(files, pafs.LocalFileSystem):
        _create(files, root, place, text, overtaken)
    elif files.get_file_info(place).type != pafs.FileType.NotFound:
        raise overtaken
    else:
        with files.open_output_stream(place) as sink:
            sink.write(text)
    serials = _serials(files, root)
    if serials and serials[-1] > link.serial:  # the link of this number was removed long ago
        raise overtaken
    for serial in serials:
        if serial <= link.serial - KEPT:
            files.delete_file(_path(root, serial))


def _create(files: pafs.FileSystem, root: str, place: str, text: bytes, overtaken: OvertakenError) -> None:
    files.create_dir(f"{root}/{ASIDE}", recursive=True)
    aside = f"{root}/{ASIDE}/{uuid.uuid4().hex}.json"
    with files.open_output_stream(aside) as sink:
        sink.write(text)
    flush_path(files, aside)
    try:
        os.link(aside, place)
    except (FileExistsError, FileNotFoundError):  # not found: another driver took over and removed our file
        raise overtaken from None
    except OSError as exc:
        raise ChainError(
            f"{place} cannot be made as a hard link ({exc.strerror}): without it, two drivers could both write. Use a "
            "directory on a file system that has hard links, such as a local one, NFS or CephFS"
        ) from exc
    finally:
        with suppress(FileNotFoundError):
            os.unlink(aside)
    for path in (f"{root}/{FOLDER}", root):
        flush_path(files, path)


def is_repeat(
    directory: str, last: Link | None, query: str, batch: int, start: dict[str, Any] | None, ends: dict[str, Any]
) -> bool:
    """Whether a micro-batch is a second run of the last one in the directory. If it is not, it must be the next one.

    Args:
        directory: The directory, to name it in errors.
        last: The newest link.
        query, batch: The query that runs, and the number of its micro-batch.
        start, ends: Where the micro-batch before and this one end, by the checkpoint. The first micro-batch has no
            start.

    Raises:
        ChainError: The micro-batch is neither. Directory and checkpoint do not belong together.
    """
    if last is not None and last.query != query:
        raise ChainError(
            f"{directory} belongs to the query {last.query}, and this query is {query}, of another checkpoint. Use "
            "another directory, or the checkpoint that belongs to this directory"
        )
    held = NONE_YET if last is None else last.batch
    held_ends = None if last is None else last.ends
    if batch == held and ends == held_ends:
        return True
    if batch == held + 1 and (batch == 0 or start == held_ends):
        return False
    if batch <= held:
        why = "the checkpoint is an older copy"
    elif batch > held + 1:
        why = "the directory is an older copy, or another one than before"
    else:
        why = "they end at different offsets, so the checkpoint or the directory is an older copy that continued"
    has = "no micro-batch" if held == NONE_YET else f"the micro-batches up to {held}"
    raise ChainError(
        f"{directory} has {has}, and this is micro-batch {batch} of the checkpoint, which does not follow: {why}. "
        "Messages would be missing or come twice, so nothing was written. Use the checkpoint and the directory that "
        "belong together. If one of them is lost, begin a new directory with a new checkpoint"
    )


def _serials(files: pafs.FileSystem, root: str) -> list[int]:
    """Return the numbers of all links, sorted."""
    names = names_in(files, f"{root}/{FOLDER}")
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def _path(root: str, serial: int) -> str:
    return f"{root}/{FOLDER}/{serial:020}.json"
