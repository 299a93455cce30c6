"""Images of the nodes. There is no registry: every node gets the archives, and a new node gets them again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tools.kubernetes.layout import Layout, NodeLayout, stamp_of

NAMESPACE = "k8s.io"
"""Where containerd keeps what the kubelet may use."""


def keep(layout: Layout, archive: Path) -> Path:
    """Keep a copy of an archive for nodes to come, under its file name; a later one of the same name replaces it."""
    layout.images.mkdir(parents=True, exist_ok=True)
    kept = layout.images / archive.name
    if not kept.exists() or _stamp(kept) != _stamp(archive):
        fresh = kept.with_suffix(".new")
        shutil.copy2(archive, fresh)
        fresh.rename(kept)
    return kept


def kept(layout: Layout) -> list[Path]:
    """All kept archives."""
    return sorted(layout.images.glob("*.tar"))


def import_into(node: NodeLayout, ctr: Callable[..., str], archive: Path) -> bool:
    """Import an archive into one node's containerd (whose `ctr` is given) unless it has it; whether it had to."""
    marker = node.root / "images" / f"{archive.name}.stamp"
    stamp = _stamp(archive)
    if marker.exists() and marker.read_text() == stamp:
        return False
    ctr("-n", NAMESPACE, "images", "import", archive)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(stamp)
    return True


def _stamp(archive: Path) -> str:
    state = archive.stat()
    return stamp_of(str(state.st_size), str(state.st_mtime_ns))
