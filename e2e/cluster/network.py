"""Interfaces, routes and kernel settings of the cluster, made by `up` and undone by `down`.

A node's address is held by a bridge without ports; its pods are joined to the host one by one (CNI's `ptp`), so
traffic between two pods of one node passes the kernel's routing like any other and kube-proxy's rules see it.
The host is the router of all nodes: it reaches every pod, and every pod reaches it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import CONTROL_ADDRESS, CONTROL_INTERFACE, DNS_ADDRESS, Layout, NodeLayout
from e2e.cluster.running import run, succeeds

SYSCTLS: Final = {
    "net/ipv4/ip_forward": 1,
    # Three kubelets and three containerds watch many files; the usual 128 instances a user are used up.
    "fs/inotify/max_user_instances": 2048,
    "fs/inotify/max_user_watches": 262144,
}
"""Settings that must have at least this value; `down` puts the old ones back."""

CHAIN: Final = "SERIATIM-CUT"
"""Our chain in iptables' `raw` table: what is cut off is dropped before anything else sees it."""


def set_kernel(layout: Layout) -> None:
    """Raise what is too low, and remember what it was."""
    path = layout.state / "sysctls.json"
    before: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    for name, least in SYSCTLS.items():
        setting = Path("/proc/sys") / name
        value = int(setting.read_text())
        if value < least:
            before.setdefault(name, value)
            path.write_text(json.dumps(before))
            setting.write_text(str(least))


def restore_kernel(layout: Layout) -> None:
    """Put back what `set_kernel` changed."""
    path = layout.state / "sysctls.json"
    if path.exists():
        for name, value in json.loads(path.read_text()).items():
            (Path("/proc/sys") / name).write_text(str(value))
        path.unlink()


def add_control_interface() -> None:
    """The address of the API server and the one of the cluster's DNS."""
    _add_interface(CONTROL_INTERFACE, CONTROL_ADDRESS, DNS_ADDRESS)


def add_node_interface(node: NodeLayout) -> None:
    """The node's own address."""
    _add_interface(node.interface, node.address)


def remove_control_interface() -> None:
    """Take back `add_control_interface`."""
    remove_interface(CONTROL_INTERFACE)


def remove_interface(name: str) -> None:
    """Remove an interface of ours if it is there."""
    if succeeds(["ip", "link", "show", name]):
        run(["ip", "link", "delete", name])


def cut_off(node: NodeLayout) -> None:
    """Drop everything from and to the node's pods: the peers of a machine without power hear nothing, no reset."""
    if not succeeds(["iptables", "-w", "-t", "raw", "-n", "-L", CHAIN]):
        run(["iptables", "-w", "-t", "raw", "-N", CHAIN])
        for hook in ("PREROUTING", "OUTPUT"):
            run(["iptables", "-w", "-t", "raw", "-I", hook, "-j", CHAIN])
    for direction in ("-s", "-d"):
        rule = [CHAIN, direction, node.subnet, "-j", "DROP"]
        if not succeeds(["iptables", "-w", "-t", "raw", "-C", *rule]):
            run(["iptables", "-w", "-t", "raw", "-A", *rule])


def reconnect(node: NodeLayout) -> None:
    """Take back `cut_off`."""
    for direction in ("-s", "-d"):
        rule = [CHAIN, direction, node.subnet, "-j", "DROP"]
        while succeeds(["iptables", "-w", "-t", "raw", "-C", *rule]):
            run(["iptables", "-w", "-t", "raw", "-D", *rule])


def remove_rules() -> None:
    """Remove our chain from iptables."""
    for hook in ("PREROUTING", "OUTPUT"):
        while succeeds(["iptables", "-w", "-t", "raw", "-C", hook, "-j", CHAIN]):
            run(["iptables", "-w", "-t", "raw", "-D", hook, "-j", CHAIN])
    if succeeds(["iptables", "-w", "-t", "raw", "-n", "-L", CHAIN]):
        run(["iptables", "-w", "-t", "raw", "-F", CHAIN])
        run(["iptables", "-w", "-t", "raw", "-X", CHAIN])


def remove_pod_network(node: NodeLayout) -> None:
    """Remove the namespaces and interfaces that a dead node's pods left."""
    for route in run(["ip", "-4", "route", "show", "root", node.subnet]).splitlines():
        fields = route.split()
        if "dev" in fields and fields[fields.index("dev") + 1].startswith("veth"):
            remove_interface(fields[fields.index("dev") + 1])


def _add_interface(name: str, *addresses: str) -> None:
    if not succeeds(["ip", "link", "show", name]):
        try:
            run(["ip", "link", "add", name, "type", "bridge"])
        except ClusterError as error:
            raise ClusterError(f"this kernel makes no bridge {name}: {error}") from error
    present = run(["ip", "-4", "-o", "address", "show", "dev", name])
    for address in addresses:
        if f" {address}/" not in present:
            run(["ip", "address", "add", f"{address}/32", "dev", name])
    run(["ip", "link", "set", name, "up"])
