"""One node: its containerd and kubelet, how it dies, and how it comes back with the disks it had."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.kubernetes import configs, images, network, private_mounts
from tools.kubernetes.cgroups import Cgroup
from tools.kubernetes.errors import EndedError
from tools.kubernetes.host import cni_directory
from tools.kubernetes.kube import kubectl
from tools.kubernetes.layout import Layout, NodeLayout
from tools.kubernetes.processes import Processes
from tools.kubernetes.running import run, wait_until

CONTAINERD_TIMEOUT_S: Final = 60
IMPORT_TIMEOUT_S: Final = 300
READY_TIMEOUT_S: Final = 120


class Node:
    """Node `number` of the cluster."""

    def __init__(self, layout: Layout, number: int, processes: Processes) -> None:
        self._cluster = layout
        self._processes = processes
        self._started_at = ""
        self.layout: NodeLayout = layout.node(number)
        self.cgroup = Cgroup(self.layout.cgroup)
        self._holder, self._containerd, self._kubelet = self._process_names = tuple(
            f"{program}-{self.name}" for program in ("mounts", "containerd", "kubelet")
        )

    @property
    def name(self) -> str:
        """The Node object's name."""
        return self.layout.name

    @property
    def is_running(self) -> bool:
        """Whether its kubelet and its containerd run."""
        return all(self._processes.is_running(name) for name in self._process_names)

    def start(self) -> None:
        """Bring it up with the disks and images it has, no container running. Does not wait until it is Ready.

        What is left of it, if it died only in part, dies first.
        """
        if self.is_running:
            return
        self.kill()
        node = self.layout
        for directory in (node.root / "cni", node.disks, node.kubelet_root):
            directory.mkdir(parents=True, exist_ok=True)
        self._write_configs()
        network.add_node_interface(node)
        network.reconnect(node)
        private_mounts.make_mount_points(self._cluster.mount_points)
        self.cgroup.create()
        self._start_containerd()
        for archive in images.kept(self._cluster):
            self.import_image(archive)
        self._started_at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._start(self._kubelet, configs.kubelet_argv(self._cluster, node))

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until its kubelet has said that it is Ready, since the `start` of this object if there was one.

        Raises:
            ClusterError: It is not, in time, or one of its processes ended.
        """
        hint = str(self._processes.log_path(self._kubelet))
        wait_until(f"{self.name} to be Ready", self._is_ready, timeout_s=timeout_s, interval_s=0.3, hint=hint)

    def kill(self) -> None:
        """Cut the power: its network falls silent, then everything in it dies at one instant. Its disks stay."""
        network.cut_off(self.layout)
        self.cgroup.kill()
        for name in self._process_names:
            self._processes.end(name, grace_s=0)

    def import_image(self, archive: Path) -> None:
        """Give an image archive to its containerd."""
        images.import_into(self.layout, self._ctr, archive)

    def tag_image(self, reference: str, other: str) -> None:
        """Give an image that it has a second name."""
        self._ctr("-n", images.NAMESPACE, "images", "tag", "--force", reference, other)

    def delete_object(self) -> None:
        """Delete the Node object, as an administrator does with a machine that will not come back."""
        kubectl(self._cluster, "delete", "node", self.name, "--ignore-not-found")

    def wipe(self) -> None:
        """Destroy everything it has on disk, its disks included. Nothing of it may run.

        The notes of used addresses go too, so its next pods have the addresses of those that were killed. So the routes
        to these go before (see `configs.cni_config`).
        """
        assert not self.cgroup.pids(), f"something of {self.name} still runs"
        network.remove_pod_interfaces(self.layout)
        if self.layout.root.exists():
            shutil.rmtree(self.layout.root)

    def remove(self) -> None:
        """Remove every trace of it from the host."""
        self.kill()
        self.wipe()
        self.cgroup.remove()
        network.remove_interface(self.layout.interface)

    def _start_containerd(self) -> None:
        self._processes.start(self._holder, private_mounts.holder_argv(self.layout.kubelet_root), cgroup=self.cgroup)
        hint = str(self._processes.log_path(self._holder))
        wait_until(f"mounts of {self.name}", self._has_mounts, timeout_s=CONTAINERD_TIMEOUT_S, hint=hint)
        self._start(self._containerd, ["containerd", "--config", self.layout.root / "containerd.toml"])
        hint = str(self._processes.log_path(self._containerd))
        wait_until(f"containerd of {self.name}", self._answers, timeout_s=CONTAINERD_TIMEOUT_S, hint=hint)

    def _start(self, name: str, argv: Sequence[str | Path]) -> None:
        self._processes.start(name, private_mounts.inside(self._holder_pid(), argv), cgroup=self.cgroup)

    def _ctr(self, *arguments: str | Path) -> str:
        argv = ["ctr", f"--address={configs.CONTAINERD_SOCKET}", *arguments]
        return run(private_mounts.inside(self._holder_pid(), argv), timeout_s=IMPORT_TIMEOUT_S)

    def _holder_pid(self) -> int:
        pid = self._processes.pid(self._holder)
        if pid is None:
            raise EndedError(f"{self.name} is down")
        return pid

    def _has_mounts(self) -> bool:
        return Path(f"/proc/{self._holder_pid()}/root/run/containerd/ready").exists()

    def _answers(self) -> bool:
        if not self._processes.is_running(self._containerd):
            raise EndedError("it ended")
        return bool(self._ctr("version"))

    def _is_ready(self) -> bool:
        if not self.is_running:
            if not self._processes.is_running(self._containerd):
                raise EndedError("its containerd ended")
            # As an init system does it. A kubelet ends if containerd serves `ctr` already, and not the kubelet yet.
            self._processes.end(self._kubelet, grace_s=0)
            self._start(self._kubelet, configs.kubelet_argv(self._cluster, self.layout))
            return False
        node = json.loads(kubectl(self._cluster, "get", "node", self.name, "-o=json"))
        return any(
            condition["type"] == "Ready"
            and condition["status"] == "True"
            and condition["lastHeartbeatTime"] >= self._started_at  # else it is what was said before it died
            for condition in node["status"].get("conditions", [])
        )

    def _write_configs(self) -> None:
        node = self.layout
        plugins = cni_directory()
        assert plugins is not None, "the packages were installed first"
        (node.root / "containerd.toml").write_text(configs.containerd_config(node, plugins))
        (node.root / "cni" / "10-seriatim.conflist").write_text(configs.cni_config(node))
        (node.root / "kubelet.yaml").write_text(configs.kubelet_config(self._cluster, node))
