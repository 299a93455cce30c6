"""Nodes and containers that cases kill, freeze or delete.

The suite runs in a mount namespace with the cluster's DNS. A process that it starts would be in this namespace too. So
commands that start or end nodes run outside, in the namespace from which the suite was started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import ROOT, default_layout
from tools.kubernetes.running import run

OUTSIDE_VARIABLE: Final = "SERIATIM_E2E_OUTSIDE"
"""Has the pid of the process that started the suite. Its mount namespace is the host's."""

COMMAND_S: Final = 300
PROCESSES: Final = Path("/proc")


class Machines:
    """The nodes of the cluster of this checkout."""

    def __init__(self) -> None:
        self._outside = int(os.environ[OUTSIDE_VARIABLE])
        self._dead: set[str] = set()
        self._silent: dict[str, int] = {}

    async def kill(self, node: str) -> None:
        """Cut a node's power. Its disks stay."""
        self._dead.add(node)
        await self._strike("node-kill", node)

    async def delete(self, node: str) -> None:
        """Delete a node with its disks and its Node object."""
        self._dead.add(node)
        await self._strike("node-delete", node)

    async def start(self, node: str) -> None:
        """Bring a node back, and wait until it is Ready."""
        await self._strike("node-start", node)
        self._dead.discard(node)

    async def tag_image(self, reference: str, other: str) -> None:
        """Give an image a second name on all nodes."""
        await self._command("image-tag", reference, other)

    async def heal(self) -> None:
        """Bring back all nodes that this suite has killed or deleted, and all kubelets that it has stopped."""
        for node in sorted(self._silent):
            self._wake_kubelet(node)
        for node in sorted(self._dead):
            await self.start(node)

    @asynccontextmanager
    async def silent_kubelet(self, node: str) -> AsyncIterator[None]:
        """Stop a node's kubelet for as long as the block lasts. Its containers run on."""
        pid = kubelet_pid(str(default_layout().kubeconfig_of(node)))
        os.kill(pid, signal.SIGSTOP)
        self._silent[node] = pid
        try:
            yield
        finally:
            self._wake_kubelet(node)

    def _wake_kubelet(self, node: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._silent.pop(node), signal.SIGCONT)

    @asynccontextmanager
    async def down(self, node: str) -> AsyncIterator[None]:
        """Cut a node's power for as long as the block lasts."""
        await self.kill(node)
        try:
            yield
        finally:
            await self.start(node)

    async def _strike(self, command: str, node: str) -> None:
        await self._command(command, node.removeprefix("node"))

    async def _command(self, command: str, *arguments: str) -> None:
        inside = [sys.executable, "-m", "tools.kubernetes", command, *arguments]
        argv = ["nsenter", f"--target={self._outside}", "--mount", "--", *inside]
        await asyncio.to_thread(run, argv, environment={"PYTHONPATH": str(ROOT)}, timeout_s=COMMAND_S)


def kubelet_pid(kubeconfig: str, processes: Path = PROCESSES) -> int:
    """Find the kubelet on this host that was started with that kubeconfig. Each node of each checkout has its own file.

    Raises:
        ClusterError: No such kubelet runs on this host.
    """
    for entry in processes.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if words[0].endswith("/kubelet") and f"--kubeconfig={kubeconfig}" in words:
            return int(entry.name)
    raise ClusterError(f"no kubelet runs with {kubeconfig}")


def container_pids(pod: dict[str, Any], processes: Path = PROCESSES) -> list[int]:
    """Find the processes on this host of a pod's first container: their cgroup has its id.

    Raises:
        ClusterError: The host has no such process. The container does not run, or it runs on another host.
    """
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    container = str(statuses[0].get("containerID") or "").rpartition("//")[2]
    if not container:
        raise ClusterError(f"{pod['metadata']['name']} has no container")
    found = []
    for entry in processes.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if container in (entry / "cgroup").read_text():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    if not found:
        raise ClusterError(f"{pod['metadata']['name']}: container {container[:12]} has no process on this machine")
    return sorted(found)


def kill_container(pod: dict[str, Any]) -> None:
    """Send SIGKILL to every process of a pod's container, as an OOM killer does."""
    for pid in container_pids(pod):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
