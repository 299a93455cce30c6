"""Archives of images: kept for nodes to come, imported once."""

from __future__ import annotations

import os
from pathlib import Path

from tools.kubernetes.images import import_into, keep, kept
from tools.kubernetes.layout import Layout


def archive(tmp_path: Path, content: str, time_ns: int) -> Path:
    path = tmp_path / "broker.tar"
    path.write_text(content)
    os.utime(path, ns=(time_ns, time_ns))
    return path


def test_a_newer_archive_replaces_the_kept_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state", tmp_path)
    keep(layout, archive(tmp_path, "old", 1))
    keep(layout, archive(tmp_path, "new", 2))
    (found,) = kept(layout)
    assert found.read_text() == "new"
    assert [path.name for path in layout.images.iterdir()] == ["broker.tar"]


def test_an_archive_that_its_maker_writes_over_does_not_change_what_is_kept(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state", tmp_path)
    path = archive(tmp_path, "whole", 1)
    keep(layout, path)
    with path.open("r+") as file:
        file.write("HALF-")
    assert kept(layout)[0].read_text() == "whole"


def test_a_node_imports_each_content_once(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state", tmp_path)
    node = layout.node(1)
    imported: list[str] = []

    def ctr(*arguments: str | Path) -> str:
        imported.append(Path(arguments[-1]).read_text())
        return ""

    for content, time_ns in (("old", 1), ("old", 1), ("new", 2), ("new", 2)):
        import_into(node, ctr, keep(layout, archive(tmp_path, content, time_ns)))
    assert imported == ["old", "new"]
