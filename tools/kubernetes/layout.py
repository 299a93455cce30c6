"""Where everything of the cluster is: files, addresses, names. Nothing here touches the machine."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
"""The checkout."""

NODE_COUNT: Final = 3
DISKS_PER_NODE: Final = 8

CONTROL_ADDRESS: Final = "10.88.0.1"
DNS_ADDRESS: Final = "10.88.0.10"
CONTROL_INTERFACE: Final = "seri0"
POD_RANGE: Final = "10.88.0.0/16"
SERVICE_RANGE: Final = "10.96.0.0/16"
KUBERNETES_SERVICE_ADDRESS: Final = "10.96.0.1"
API_PORT: Final = 6443
ETCD_URL: Final = "http://127.0.0.1:12379"
ETCD_PEER_URL: Final = "http://127.0.0.1:12380"
CLUSTER_DOMAIN: Final = "cluster.local"

BASE_IMAGE: Final = "localhost/seriatim-base:12"
STORAGE_CLASS: Final = "local-nvme"


def cache_directory() -> Path:
    """What is built once for all checkouts of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "seriatim" / "e2e"


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """One node: its name, addresses and folders.

    Attributes:
        number: From 1.
        root: What survives the node's loss of power: containerd's images, the kubelet's pods, the disks.
    """

    number: int
    root: Path

    @property
    def name(self) -> str:
        """The Node object's name."""
        return f"node{self.number}"

    @property
    def interface(self) -> str:
        """The interface that holds the node's address."""
        return f"seri{self.number}"

    @property
    def address(self) -> str:
        """The node's InternalIP, and the gateway of its pods."""
        return f"10.88.{self.number}.1"

    @property
    def subnet(self) -> str:
        """Its pods' addresses."""
        return f"10.88.{self.number}.0/24"

    @property
    def cgroup(self) -> str:
        """Its cgroup, in every hierarchy."""
        return f"seriatim-{self.name}"

    @property
    def kubelet_root(self) -> Path:
        """What its kubelet keeps; inside the node it is /var/lib/kubelet."""
        return self.root / "kubelet"

    @property
    def disks(self) -> Path:
        """One directory for each disk."""
        return self.root / "disks"


@dataclass(frozen=True, slots=True)
class Layout:
    """The cluster of one checkout.

    Attributes:
        state: Everything of this cluster; removed by `down`.
        cache: Programs and images, shared by all checkouts.
    """

    state: Path
    cache: Path

    @property
    def bin(self) -> Path:
        """The programs of Kubernetes."""
        return self.cache / "bin"

    @property
    def images(self) -> Path:
        """Copies of the archives that every node has, also one that comes back empty."""
        return self.state / "images"

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.state / "pki"

    @property
    def log(self) -> Path:
        """One log for each process."""
        return self.state / "log"

    @property
    def processes(self) -> Path:
        """One record for each process."""
        return self.state / "processes"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.state / "admin.kubeconfig"

    @property
    def mount_points(self) -> Path:
        """Remembers which of the host's directories were made for nodes to mount on."""
        return self.state / "mount-points"

    def kubeconfig_of(self, user: str) -> Path:
        """The kubeconfig of one of the cluster's own programs."""
        return self.state / f"{user}.kubeconfig"

    def node(self, number: int) -> NodeLayout:
        """Node `number`, from 1."""
        assert 1 <= number < 255
        return NodeLayout(number, self.state / "nodes" / f"node{number}")

    @property
    def nodes(self) -> list[NodeLayout]:
        """All nodes."""
        return [self.node(number) for number in range(1, NODE_COUNT + 1)]


def default_layout() -> Layout:
    """The layout of this checkout."""
    return Layout(ROOT / ".local" / "e2e-cluster", cache_directory())


def stamp_of(*parts: bytes | str) -> str:
    """A short fingerprint of what something was made from: equal parts, equal stamp."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]
