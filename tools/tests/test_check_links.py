"""What `tools.check_links` finds in pages about code."""

from __future__ import annotations

import pytest

from tools.check_links import Repository

FILES = {
    "a/src/rooms/__init__.py": "",
    "a/src/rooms/doors.py": "# Rule `open-first`.\ndef knock_twice() -> None: ...\nclass FrontDoor: ...\n",
    "docs/page.md": "`old_name`\n",
    "values.yaml": "maxDoors: 3\n",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    root = tmp_path_factory.mktemp("repository")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Repository(root, FILES)


HERE = ["rooms/doors.py", "doors.py (knock_twice)", "rooms/doors", "rooms/", "rooms.doors", "rooms.doors.FrontDoor"]
HERE += [
    "FrontDoor",
    "knock_twice",
    "open-first",
    "FrontDoor.open",
    "values.yaml",
    "out/report.json",
    "door",
    "spec.old",
]
GONE = ["rooms/walls.py", "doors.py (knock_once)", "rooms/walls", "rooms.walls", "rooms.doors.BackDoor"]
GONE += ["BackDoor", "old_name", "open-last", "BackDoor.open", "walls.py"]


@pytest.mark.parametrize("text", HERE)
def test_names_that_the_code_has_are_accepted(repository: Repository, text: str) -> None:
    span, _, inside = text.removesuffix(")").partition(" (")
    assert repository.has(span, inside)


@pytest.mark.parametrize("text", GONE)
def test_names_that_the_code_lacks_are_found(repository: Repository, text: str) -> None:
    span, _, inside = text.removesuffix(")").partition(" (")
    assert not repository.has(span, inside)
