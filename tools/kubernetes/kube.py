"""kubectl, as the administrator."""

from __future__ import annotations

from pathlib import Path

from tools.kubernetes.layout import Layout
from tools.kubernetes.running import run


def kubectl(layout: Layout, *arguments: str, stdin: str | None = None, timeout_s: float = 60) -> str:
    """Run kubectl; its output.

    Raises:
        ClusterError: It failed.
    """
    argv: list[str | Path] = [layout.bin / "kubectl", f"--kubeconfig={layout.kubeconfig}", *arguments]
    return run(argv, stdin=stdin, timeout_s=timeout_s)
