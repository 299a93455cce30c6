"""Images of the nodes. There is no registry: every node is given the archives, and gets them again when it is new."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from e2e.cluster.layout import Layout, NodeLayout, stamp_of
from e2e.cluster.running import run

NAMESPACE = "k8s.io"
"""Where containerd keeps what the kubelet may use."""


def keep(layout: Layout, archive: Path) -> Path:
    """Keep an archive for nodes to come, under its file name; a later one of the same name replaces it."""
    layout.images.mkdir(parents=True, exist_ok=True)
    kept = layout.images / archive.name
    fresh = kept.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    try:
        os.link(archive, fresh)
    except OSError:  # another file system
        shutil.copyfile(archive, fresh)
    fresh.rename(kept)
    return kept


def kept(layout: Layout) -> list[Path]:
    """All kept archives."""
    return sorted(layout.images.glob("*.tar"))


def import_into(node: NodeLayout, archive: Path) -> bool:
    """Import an archive into one node's containerd unless it has it; whether it had to."""
    marker = node.root / "images" / f"{archive.name}.stamp"
    state = archive.stat()
    stamp = stamp_of(str(state.st_size), str(state.st_mtime_ns), str(state.st_ino))
    if marker.exists() and marker.read_text() == stamp:
        return False
    run(["ctr", f"--address={node.socket}", "-n", NAMESPACE, "images", "import", archive], timeout_s=300)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(stamp)
    return True
