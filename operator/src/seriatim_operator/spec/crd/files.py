"""Writes the definitions as files, and compares the files with the models."""

from __future__ import annotations

from pathlib import Path

from .. import KINDS
from .definition import definition_text, file_name


def definitions() -> dict[str, str]:
    """The text of each definition, by file name."""
    return {file_name(kind): definition_text(kind) for kind in KINDS}


def write_definitions(directory: Path) -> list[Path]:
    """Write all definitions into the directory, which is made if it is missing. Returns the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in definitions().items():
        (directory / name).write_text(text, encoding="utf-8")
        written.append(directory / name)
    return written


def stale_definitions(directory: Path) -> list[str]:
    """The names of files that are missing, that differ from the models, or that belong to no kind."""
    wanted = definitions()
    found = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.yaml")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
