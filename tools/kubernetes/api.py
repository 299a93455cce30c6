"""The interface for tests: a cluster to install into, and nodes to strike.

There are two kinds of clusters: ours, whose nodes tests may kill, and one that KUBECONFIG names, whose nodes they may
not kill.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.kubernetes import dns, images
from tools.kubernetes.disks import volume_name
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import Layout, default_layout
from tools.kubernetes.lifecycle import Lifecycle
from tools.kubernetes.node import Node
from tools.kubernetes.running import run


@dataclass(frozen=True, slots=True)
class Disk:
    """One disk of a node: its directory on this host, its volume, and the claim (`namespace/name`) that has it."""

    path: Path
    volume: str
    claim: str | None


class Cluster:
    """A running cluster.

    Args:
        layout: Where its state is, if it is ours; None if it is not.
        kubeconfig: Whose else it is.
    """

    def __init__(self, layout: Layout | None, kubeconfig: Path | None = None) -> None:
        assert (layout is None) != (kubeconfig is None)
        self._layout = layout
        self._kubeconfig = kubeconfig

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Cluster:
        """The cluster that KUBECONFIG names, or ours.

        Raises:
            ClusterError: There is neither.
        """
        layout = default_layout()
        named = environment.get("KUBECONFIG")
        if named and Path(named).resolve() != layout.kubeconfig.resolve():
            return cls(None, Path(named))
        if not layout.kubeconfig.exists():
            raise ClusterError("no cluster: run `make e2e-cluster`, or set KUBECONFIG to one that exists")
        return cls(layout)

    @property
    def is_ours(self) -> bool:
        """Whether its nodes can be killed here."""
        return self._layout is not None

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        if self._layout is not None:
            return self._layout.kubeconfig
        assert self._kubeconfig is not None
        return self._kubeconfig

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Run kubectl; its output.

        Raises:
            ClusterError: It failed; the text has its output.
        """
        return self._tool("kubectl", *arguments, stdin=stdin, timeout_s=timeout_s)

    def helm(self, *arguments: str | Path, timeout_s: float = 600) -> str:
        """Run Helm; its output.

        Raises:
            ClusterError: It failed; the text has its output.
        """
        return self._tool("helm", *arguments, stdin=None, timeout_s=timeout_s)

    def get(self, *arguments: str) -> Any:
        """`kubectl get … -o json`, parsed."""
        return json.loads(self.kubectl("get", *arguments, "-o=json"))

    @property
    def nodes(self) -> list[str]:
        """The names of the Node objects."""
        return sorted(item["metadata"]["name"] for item in self.get("nodes")["items"])

    def kill_node(self, node: int | str) -> None:
        """Cut a node's power: its pods fall silent at one instant and die. Its Node object and its disks stay."""
        with self._lifecycle().locked():
            self._node(node).kill()

    def start_node(self, node: int | str) -> None:
        """Bring a killed or deleted node back, and wait until it is Ready; a killed one has the disks it had."""
        with self._lifecycle().locked():
            found = self._node(node)
            found.start()
            found.wait_ready()

    def delete_node(self, node: int | str) -> None:
        """Lose a node for good: kill it, destroy its disks and delete its Node object."""
        with self._lifecycle().locked():
            found = self._node(node)
            found.kill()
            found.wipe()
            found.delete_object()

    def is_node_running(self, node: int | str) -> bool:
        """Whether a node has power."""
        return self._node(node).is_running

    def disks_of(self, node: int | str) -> list[Disk]:
        """The disks of a node, where they are on this host and who has them."""
        layout = self._node(node).layout
        volumes = {item["metadata"]["name"]: item for item in self.get("persistentvolumes")["items"]}
        found = []
        for path in sorted(layout.disks.glob("disk-*")):
            name = volume_name(layout.name, path.name)
            claim = volumes.get(name, {}).get("spec", {}).get("claimRef")
            found.append(Disk(path, name, f"{claim['namespace']}/{claim['name']}" if claim else None))
        return found

    def load_image(self, archive: Path) -> None:
        """Give an image archive (OCI or Docker) to every node, now and when it comes back.

        Raises:
            ClusterError: The cluster is not ours: load it with the cluster's own tool.
        """
        lifecycle = self._lifecycle()
        assert self._layout is not None
        with lifecycle.locked():
            kept = images.keep(self._layout, archive)
            lifecycle.on_nodes(lambda node: node.import_image(kept) if node.is_running else None)

    def tag_image(self, reference: str, other: str) -> None:
        """Give an image a second name on every node that runs; a node that is recreated does not have it."""
        lifecycle = self._lifecycle()
        with lifecycle.locked():
            lifecycle.on_nodes(lambda node: node.tag_image(reference, other) if node.is_running else None)

    def resolve(self, name: str) -> list[str]:
        """The addresses that the cluster's DNS has for a name, such as `orders.shop.svc`."""
        return dns.resolve(self._ours(), name)

    def inside_dns(self, argv: Sequence[str | Path]) -> list[str]:
        """The argument vector that runs `argv` on this host with the cluster's names."""
        return dns.inside_dns(self._ours(), argv)

    def run(self, argv: Sequence[str]) -> int:
        """Run a command on this host with the cluster's names, KUBECONFIG, kubectl and helm; its exit status."""
        command = list(argv[1:] if argv[:1] == ["--"] else argv)
        if not command:
            raise ClusterError("nothing to run")
        return subprocess.run(
            self.inside_dns(command), env={**os.environ, **self.environment()}, check=False
        ).returncode

    def environment(self) -> dict[str, str]:
        """Variables for a program that uses the cluster."""
        variables = {"KUBECONFIG": str(self.kubeconfig)}
        if self._layout is not None:
            variables["PATH"] = f"{self._layout.bin}{os.pathsep}{os.environ.get('PATH', '')}"
        return variables

    def describe(self) -> str:
        """Processes, nodes and volumes, for humans."""
        lines = []
        if self._layout is not None:
            records = sorted(self._lifecycle().processes.alive(), key=lambda record: record.name)
            lines = [f"{record.name:28} pid {record.pid}" for record in records]
            if not records:
                return "down"
        objects = self.kubectl("get", "nodes,persistentvolumes", "-o=wide")
        return "\n".join([*lines, "", objects])

    def _tool(self, program: str, *arguments: str | Path, stdin: str | None, timeout_s: float) -> str:
        layout = self._layout or default_layout()
        executable = layout.bin / program if self._layout is not None else shutil.which(program) or layout.bin / program
        environment = {"KUBECONFIG": str(self.kubeconfig)}
        return run([executable, *arguments], environment=environment, stdin=stdin, timeout_s=timeout_s)

    def _ours(self) -> Layout:
        if self._layout is None:
            raise ClusterError(f"the cluster of KUBECONFIG={self._kubeconfig} is not ours: its nodes cannot be struck")
        return self._layout

    def _lifecycle(self) -> Lifecycle:
        return Lifecycle(self._ours(), lambda _: None)

    def _node(self, node: int | str) -> Node:
        return self._lifecycle().node(int(_name(node).removeprefix("node")))


def _name(node: int | str) -> str:
    return node if isinstance(node, str) else f"node{node}"
