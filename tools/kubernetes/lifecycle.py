"""`up` and `down`: the steps in their order. A step whose work is done does nothing, so both can be run again."""

from __future__ import annotations

import fcntl
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.kubernetes import base_image, host, images, network, pki, private_mounts, programs
from tools.kubernetes.control_plane import ControlPlane
from tools.kubernetes.disks import LABEL
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.kube import kubectl
from tools.kubernetes.layout import DISKS_PER_NODE, ROOT, Layout
from tools.kubernetes.node import Node
from tools.kubernetes.processes import Processes
from tools.kubernetes.running import wait_until

KEEPER: Final = "keeper"
DISKS_TIMEOUT_S: Final = 60
OWNER: Final = Path("/run/seriatim-e2e.owner")
"""Holds the state directory of the cluster that uses this machine's addresses; there can be one."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of `up`: what users read, and what is done."""

    title: str
    act: Callable[[], object]


class Lifecycle:
    """Makes and unmakes the cluster of one checkout."""

    def __init__(self, layout: Layout, say: Say) -> None:
        self._layout = layout
        self._say = say
        self.processes = Processes(layout)
        self.control_plane = ControlPlane(layout, self.processes)
        self.nodes = [Node(layout, node.number, self.processes) for node in layout.nodes]

    def steps(self) -> list[Step]:
        """What `up` does, in order."""
        layout = self._layout
        return [
            Step("this machine", lambda: host.check_machine(layout)),
            Step("Debian packages", lambda: host.install_packages(self._say)),
            Step("programs of Kubernetes", lambda: programs.build_all(layout.bin, self._say)),
            Step("base image", lambda: base_image.ensure_base_image(layout.cache)),
            Step("network", self._prepare_network),
            Step("certificates", lambda: pki.create(layout)),
            Step("etcd and API server", self.control_plane.start_api),
            Step("controllers, scheduler, DNS", self.control_plane.start_controllers),
            Step("nodes", self._start_nodes),
            Step("Services", self.control_plane.start_proxy),
            Step("disks", self._start_disks),
        ]

    def up(self) -> None:
        """Bring the cluster up, or what of it is down.

        Raises:
            MachineError: This machine cannot.
            ClusterError: A step failed; `down` cleans up, `up` tries again.
        """
        with self.locked():
            began = time.monotonic()
            for step in self.steps():
                started = time.monotonic()
                step.act()
                self._say(f"{step.title}: {time.monotonic() - started:.1f} s")
            self._say(f"up after {time.monotonic() - began:.0f} s; export KUBECONFIG={self._layout.kubeconfig}")

    def down(self) -> None:
        """End and remove everything that `up` made, also after one that failed half-way. The caches stay."""
        if not self._layout.state.exists():
            return
        with self.locked():
            self._remove()

    def remove_if_dead(self) -> bool:
        """Do what `down` does if no process of the cluster runs and no command works on it. Returns whether it did.

        If a machine went down under its cluster, a state directory is left, perhaps with interfaces and rules.
        """
        with ExitStack() as held:
            try:
                held.enter_context(self.locked(wait=False))
            except BlockingIOError:
                return False
            if self.is_alive:
                return False
            self._remove()
        return True

    @property
    def is_alive(self) -> bool:
        """Whether any process of it runs, in a container or not."""
        return any(self.processes.alive()) or any(node.cgroup.pids() for node in self.nodes)

    def check(self) -> None:
        """Whether this machine can run the cluster, as far as can be seen without doing anything.

        Raises:
            MachineError: It cannot.
        """
        host.check_machine(self._layout)

    def make_base_image(self) -> None:
        """Make the base image without a cluster, for those who build images on it."""
        self.check()
        host.install_packages(self._say)
        base_image.ensure_base_image(self._layout.cache)

    def node(self, number: int) -> Node:
        """Node `number`, from 1.

        Raises:
            ClusterError: The cluster has no node of that number.
        """
        if not 1 <= number <= len(self.nodes):
            raise ClusterError(f"there is no node {number}: nodes are 1 to {len(self.nodes)}")
        return self.nodes[number - 1]

    def on_nodes(self, act: Callable[[Node], None]) -> None:
        """Do something with every node, beside each other; the first error is raised when all are done."""
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            done = [threads.submit(act, node) for node in self.nodes]
        for future in done:
            future.result()

    def _prepare_network(self) -> None:
        host.check_network()
        self._claim_machine()
        network.prepare_host(self._layout)
        network.add_control_interface()
        shutil.copyfile("/etc/resolv.conf", self._layout.state / "resolv.conf")

    def _start_nodes(self) -> None:
        images.keep(self._layout, base_image.archive_path(self._layout.cache))
        self.on_nodes(Node.start)
        for node in self.nodes:
            node.wait_ready()

    def _start_disks(self) -> None:
        argv: list[str | Path] = [sys.executable, "-m", "tools.kubernetes.keeper", self._layout.state]
        self.processes.start(KEEPER, argv, environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"})
        wanted = DISKS_PER_NODE * len(self.nodes)

        def offered() -> bool:
            volumes = kubectl(self._layout, "get", "persistentvolumes", f"--selector={LABEL}", "-o=name")
            return len(volumes.split()) >= wanted

        hint = str(self.processes.log_path(KEEPER))
        wait_until("all disks to be on offer", offered, timeout_s=DISKS_TIMEOUT_S, interval_s=0.3, hint=hint)

    def _claim_machine(self) -> None:
        self._layout.state.mkdir(parents=True, exist_ok=True)
        if OWNER.exists() and not self._owns_machine() and (state := Path(OWNER.read_text())).exists():
            if not Lifecycle(Layout(state, self._layout.cache), self._say).remove_if_dead():
                raise ClusterError(f"the cluster of {state} uses this machine: run its `down` first")
            self._say(f"removed what was left of the cluster of {state}, of which nothing ran any more")
        OWNER.write_text(str(self._layout.state))

    def _remove(self) -> None:
        self.processes.end(KEEPER)
        self.on_nodes(Node.remove)
        self.control_plane.end()
        if self._owns_machine():
            network.restore_host(self._layout)
            private_mounts.remove_mount_points(self._layout.mount_points)
            OWNER.unlink()
        shutil.rmtree(self._layout.state)

    def _owns_machine(self) -> bool:
        return OWNER.exists() and OWNER.read_text() == str(self._layout.state)

    @contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[None]:
        """One `up`, `down` or change of a node at a time.

        Raises:
            BlockingIOError: Another is at it, and `wait` is false.
        """
        self._layout.state.mkdir(parents=True, exist_ok=True)
        with (self._layout.state / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
