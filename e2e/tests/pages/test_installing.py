"""What pages say about installing: pip finds each package of ours in the clone, because no index has them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = {
    project["name"]: (path.parent.name, project)
    for path in ROOT.glob("*/pyproject.toml")
    for project in [tomllib.loads(path.read_text())["project"]]
}
_COMMAND = re.compile(r"pip install ((?:[\"']?(?:\./)?[A-Za-z][^\s`#)]*[\"']?\s?)+)")


def commands() -> list[tuple[str, list[str]]]:
    """Each `pip install` in a page or in a text of the code, with the words after it."""
    suffixes = (".md", ".py")
    tops = [ROOT / "README.md", ROOT / "docs", *(ROOT / directory for directory, _ in PROJECTS.values())]
    paths = [path for top in tops for path in (top.rglob("*") if top.is_dir() else [top])]
    found = []
    for path in paths:
        if path.suffix in suffixes and "adr" not in path.parts and "tests" not in path.parts:
            for match in _COMMAND.finditer(path.read_text()):
                words = [word.strip("\"'.,") for word in match[1].split()]
                found.append((str(path.relative_to(ROOT)), [word.partition("[")[0] for word in words]))
    return found


def needed(name: str) -> set[str]:
    """The directories of a package of ours and of all of ours that it depends on."""
    directory, project = PROJECTS[name]
    found = {directory}
    for dependency in project["dependencies"]:
        match = re.match(r"[a-z0-9-]+", dependency)
        assert match is not None
        if match[0] in PROJECTS:
            found |= needed(match[0])
    return found


def test_pages_have_such_commands() -> None:
    assert len(commands()) >= 6


@pytest.mark.parametrize(("page", "words"), commands())
def test_pip_is_given_all_directories_and_no_name_that_an_index_lacks(page: str, words: list[str]) -> None:
    assert not set(words) & PROJECTS.keys(), f"{page}: no index has it"
    given = {word.removeprefix("/").removeprefix("./") for word in words}
    by_directory = {directory: name for name, (directory, _) in PROJECTS.items()}
    for directory in given & by_directory.keys():
        assert needed(by_directory[directory]) <= given, f"{page}: pip would look for the rest in an index"
