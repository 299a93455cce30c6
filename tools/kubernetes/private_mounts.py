"""A mount namespace for each node, in which its containerd and its kubelet live.

containerd and kubelet have fixed paths in their code, which all of their kind on a machine would share. Here each node
has these paths for itself, in memory. All that a node mounts (containers' root directories, volumes, network
namespaces) is gone when its last process ends. So nothing has to be unmounted after a kill, as after a loss of power.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

KUBELET_ROOT: Final = Path("/var/lib/kubelet")
"""The node's own folder is mounted here. Sockets are made below: their paths may have 108 characters, and a checkout's
path would use them up; and some are at this path whatever the kubelet is configured with."""

IN_MEMORY: Final = (
    Path("/run/containerd"),  # containerd's socket and state, the shims' sockets, runc's records
    Path("/run/netns"),  # the pods' network namespaces
    Path("/var/lib/cni"),  # addresses given to pods
    Path("/var/log/containers"),  # links to containers' logs
)
"""Directories that a node must not share: memory of its own is mounted there, and lost with it."""

PRIVATE: Final = (*IN_MEMORY, KUBELET_ROOT)

SCRIPT: Final = """
set -eu
mount --make-rshared /
mount --bind "$1" "$2"
shift 2
for directory in "$@"; do mount -t tmpfs -o mode=0755 seriatim-e2e "$directory"; done
touch /run/containerd/ready
exec sleep infinity
"""


def holder_argv(kubelet_root: Path) -> list[str]:
    """A process that makes the namespace and keeps it: what the host mounts later is seen inside, not the reverse.

    Args:
        kubelet_root: The node's folder for its kubelet.
    """
    command = ["unshare", "--mount", "--propagation", "slave", "--", "sh", "-c", SCRIPT, "node"]
    return [*command, *(str(path) for path in (kubelet_root, KUBELET_ROOT, *IN_MEMORY))]


def inside(pid: int, argv: Sequence[str | Path]) -> list[str]:
    """The argument vector that runs `argv` in the namespace of the process `pid`; it stays one process."""
    return ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--", *(str(part) for part in argv)]


def make_mount_points(memory: Path) -> None:
    """Make the directories that are not there.

    Args:
        memory: A file that remembers which were made.
    """
    made = [path for path in PRIVATE if not path.exists()]
    for path in made:
        memory.parent.mkdir(parents=True, exist_ok=True)
        with memory.open("a") as lines:
            lines.write(f"{path}\n")
        path.mkdir(parents=True, exist_ok=True)  # another node may start at the same time


def remove_mount_points(memory: Path) -> None:
    """Remove those that were made; no others: what is mounted on a removed directory elsewhere is gone there too."""
    if not memory.exists():
        return
    for line in memory.read_text().splitlines():
        with contextlib.suppress(OSError):  # the directory has content now, so it stays
            Path(line).rmdir()
    memory.unlink()
