"""Whether this machine can run the cluster at all, and the Debian packages it needs for that."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.kubernetes.cgroups import MOUNTS, hierarchies
from tools.kubernetes.errors import ClusterError, MachineError
from tools.kubernetes.layout import Layout
from tools.kubernetes.programs import ALL, etcd, is_built
from tools.kubernetes.running import run, succeeds

TOOLS: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "socat": "socat",
    "conntrack": "conntrack",
    "unshare": "util-linux",
    "getent": "libc-bin",
}
"""Programs of the host, each with the Debian package that brings it."""

CNI_DIRECTORIES: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PACKAGE: Final = "containernetworking-plugins"
CNI_PLUGIN: Final = "ptp"


def check_machine(layout: Layout) -> None:
    """Refuse a machine that cannot.

    Raises:
        MachineError: With the reason, and what would help.
    """
    if sys.platform != "linux":
        raise MachineError("the cluster's nodes are cgroups and network namespaces of Linux; use KUBECONFIG here")
    if os.geteuid() != 0:
        raise MachineError("nodes need root (network, mounts, cgroups): run as root, or use KUBECONFIG")
    cgroups = hierarchies(MOUNTS.read_text())
    if not cgroups or not all(os.access(path, os.W_OK) for path in cgroups):
        raise MachineError(
            "cgroups are not mounted below /sys/fs/cgroup, or cannot be made there (a container that is"
            " not privileged?)"
        )
    if shutil.which("unshare") is not None and not succeeds(["unshare", "--mount", "--", "true"]):
        raise MachineError("mount namespaces cannot be made here (a container that is not privileged?)")
    if shutil.which("unshare") is not None and not _overlays_work(layout.state):
        raise MachineError(
            f"no overlay can be mounted over {layout.state.parent}, which containers' images need: "
            "put the checkout on a file system of its own (a container's root is an overlay already)"
        )
    if shutil.which("iptables") is not None:  # else it is installed first
        check_network()
    unbuilt = [module.name for module in ALL if not is_built(module, layout.bin)]
    if not etcd().is_file():
        unbuilt.append("etcd")
    if unbuilt and shutil.which("go") is None:
        raise MachineError(f"to build {', '.join(unbuilt)}, Go (1.26 or newer) is needed: https://go.dev/dl/")


def check_network() -> None:
    """Refuse a kernel in which Services cannot work.

    Raises:
        MachineError: iptables has no `nat` or `raw` table.
    """
    for table in ("nat", "raw"):
        try:
            run(["iptables", "-w", "-t", table, "-n", "-L"])
        except ClusterError as error:
            raise MachineError(f"iptables has no {table} table, which Services and faults need: {error}") from error


def missing_packages() -> list[str]:
    """The Debian packages that are still to be installed."""
    packages = {package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if cni_directory() is None:
        packages.add(CNI_PACKAGE)
    return sorted(packages)


def cni_directory() -> Path | None:
    """Where the CNI plugins are."""
    return next((path for path in CNI_DIRECTORIES if (path / CNI_PLUGIN).exists()), None)


def install_packages(say: Callable[[str], None]) -> None:
    """Install what is missing.

    Raises:
        MachineError: There is no apt-get, or it cannot.
    """
    missing = missing_packages()
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise MachineError(f"these must be installed, and there is no apt-get: {', '.join(missing)}")
    say(f"installing {', '.join(missing)}")
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(["apt-get", "update", "-q"], environment=environment, timeout_s=600)
        argv = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]
        run(argv, environment=environment, timeout_s=1200)
    except ClusterError as error:
        raise MachineError(f"the Debian packages {', '.join(missing)} cannot be installed: {error}") from error


def _overlays_work(state: Path) -> bool:
    """Whether a directory of the file system that will hold the nodes can be the upper one of an overlay."""
    parent = next(path for path in state.parents if path.exists())
    with tempfile.TemporaryDirectory(dir=parent, prefix=".overlay-") as scratch:
        lower, upper, work, merged = (Path(scratch) / name for name in ("lower", "upper", "work", "merged"))
        for path in (lower, upper, work, merged):
            path.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        return succeeds(["unshare", "--mount", "--", "mount", "-t", "overlay", "overlay", "-o", options, merged])
