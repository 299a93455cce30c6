"""One node: its containerd and kubelet, how it dies, and how it comes back with the disks it had."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from e2e.cluster import configs, images, network
from e2e.cluster.cgroups import Cgroup
from e2e.cluster.errors import ClusterError
from e2e.cluster.host import cni_directory
from e2e.cluster.kube import kubectl
from e2e.cluster.layout import Layout, NodeLayout
from e2e.cluster.mounts import unmount_below
from e2e.cluster.processes import Processes
from e2e.cluster.running import succeeds, wait_until

CONTAINERD_TIMEOUT_S: Final = 60
READY_TIMEOUT_S: Final = 120
CONTAINER_LOG_LINKS: Final = Path("/var/log/containers")
"""Where every kubelet of a machine puts links to containers' logs; the path is fixed in its code."""


class Node:
    """Node `number` of the cluster."""

    def __init__(self, layout: Layout, number: int, processes: Processes) -> None:
        self._cluster = layout
        self._processes = processes
        self.layout: NodeLayout = layout.node(number)
        self.cgroup = Cgroup(self.layout.cgroup)

    @property
    def name(self) -> str:
        """The Node object's name."""
        return self.layout.name

    @property
    def is_running(self) -> bool:
        """Whether its kubelet and its containerd run."""
        return all(self._processes.is_running(name) for name in self._process_names)

    def start(self) -> None:
        """Start what does not run: containerd with the kept images, then the kubelet. Does not wait for Ready."""
        node = self.layout
        for directory in (node.root / "cni", node.disks, node.runtime, node.kubelet_root):
            directory.mkdir(parents=True, exist_ok=True)
        network.add_node_interface(node)
        network.reconnect(node)
        self.cgroup.create()
        self._write_configs()
        containerd, kubelet = self._process_names
        self._processes.start(containerd, ["containerd", "--config", node.root / "containerd.toml"], cgroup=self.cgroup)
        wait_until(
            f"containerd of {node.name} to answer",
            lambda: succeeds(["ctr", f"--address={node.socket}", "version"]),
            timeout_s=CONTAINERD_TIMEOUT_S,
            hint=str(self._processes.log_path(containerd)),
        )
        for archive in images.kept(self._cluster):
            images.import_into(node, archive)
        self._processes.start(kubelet, configs.kubelet_argv(self._cluster, node), cgroup=self.cgroup)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until Kubernetes says it is Ready.

        Raises:
            ClusterError: It is not, in time.
        """
        log = str(self._processes.log_path(self._process_names[1]))
        wait_until(f"{self.name} to be Ready", self._is_ready, timeout_s=timeout_s, interval_s=0.3, hint=log)

    def kill(self) -> None:
        """Cut the power: its network falls silent, then everything in it dies at one instant. Its disks stay."""
        network.cut_off(self.layout)
        self.cgroup.kill()
        for name in self._process_names:
            self._processes.end(name, grace_s=0)

    def clean_after_death(self) -> None:
        """Remove what a power cut would have removed: mounts, sockets, pods' networks. Nothing of it may run."""
        node = self.layout
        assert not self.cgroup.pids(), f"something of {node.name} still runs"
        network.remove_pod_network(node)
        unmount_below(node.runtime)
        unmount_below(node.root)
        if node.runtime.exists():
            shutil.rmtree(node.runtime)

    def restart(self) -> None:
        """Bring a dead node back: the same disks, the same images, no running container."""
        if not self.is_running:
            self.kill()
            self.clean_after_death()
        self.start()

    def forget_object(self) -> None:
        """Delete the Node object, as an administrator does with a machine that will not come back."""
        kubectl(self._cluster, "delete", "node", self.name, "--ignore-not-found")

    def wipe(self) -> None:
        """Destroy everything it has on disk, its disks included. Nothing of it may run."""
        self.clean_after_death()
        if self.layout.root.exists():
            shutil.rmtree(self.layout.root)

    def remove(self) -> None:
        """Remove every trace of it from the host."""
        self.kill()
        self.wipe()
        self.cgroup.remove()
        network.remove_interface(self.layout.interface)
        for link in CONTAINER_LOG_LINKS.glob("*.log"):
            if link.is_symlink() and str(link.readlink()).startswith(f"{self.layout.root}/"):
                link.unlink()

    @property
    def _process_names(self) -> tuple[str, str]:
        return f"containerd-{self.name}", f"kubelet-{self.name}"

    def _is_ready(self) -> bool:
        if not self.is_running:
            raise ClusterError("its kubelet or containerd ended")
        status = '{.status.conditions[?(@.type=="Ready")].status}'
        return kubectl(self._cluster, "get", "node", self.name, f"-o=jsonpath={status}") == "True"

    def _write_configs(self) -> None:
        node = self.layout
        plugins = cni_directory()
        assert plugins is not None, "the packages were installed first"
        (node.root / "containerd.toml").write_text(configs.containerd_config(node, plugins))
        (node.root / "cni" / "10-seriatim.conflist").write_text(configs.cni_config(node))
        (node.root / "kubelet.yaml").write_text(configs.kubelet_config(self._cluster, node))
