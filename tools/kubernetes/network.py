"""Interfaces, routes and kernel settings of the cluster, made by `up` and undone by `down`.

A node's address is held by a bridge without ports; its pods are joined to the host one by one (CNI's `ptp`), so
traffic between two pods of one node passes the kernel's routing like any other and kube-proxy's rules see it.
The host is the router of all nodes: it reaches every pod, and every pod reaches it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import (
    CONTROL_ADDRESS,
    CONTROL_INTERFACE,
    DNS_ADDRESS,
    POD_RANGE,
    SERVICE_RANGE,
    Layout,
    NodeLayout,
)
from tools.kubernetes.running import run, succeeds

SYSCTLS: Final = {
    "net/ipv4/ip_forward": 1,
    # Three kubelets and three containerds watch many files; the usual 128 instances a user are used up.
    "fs/inotify/max_user_instances": 2048,
    "fs/inotify/max_user_watches": 262144,
}
"""Settings that must have at least this value; `down` puts the old ones back."""

CUT_CHAIN: Final = "SERIATIM-CUT"
"""Our chain in iptables' `raw` table: what is cut off is dropped before anything else sees it."""

CUT_HOOKS: Final = ("PREROUTING", "OUTPUT")

EDGE_CHAIN: Final = "SERIATIM-EDGE"
"""Our chain in the `mangle` table, after all translation: it drops packets for a pod that is gone.

Without it, the host's default route carries packets for such a pod, or for an unknown Service, out of this machine.
There another host might answer."""

EDGE_HOOKS: Final = ("POSTROUTING",)

FIREWALL_CHAIN: Final = "KUBE-FIREWALL"
"""What every kube-proxy makes and leaves behind, even when told to clean up."""


def prepare_host(layout: Layout) -> None:
    """Raise the kernel's settings that are too low; remember what the host was like before, once."""
    path = _memory(layout)
    if not path.exists():
        sysctls = {name: int((Path("/proc/sys") / name).read_text()) for name in SYSCTLS}
        path.write_text(json.dumps({"sysctls": sysctls, "firewall": _has_chain(FIREWALL_CHAIN, "filter")}))
    for name, least in SYSCTLS.items():
        setting = Path("/proc/sys") / name
        if int(setting.read_text()) < least:
            setting.write_text(str(least))
    _make_chain(CUT_CHAIN, "raw", CUT_HOOKS)
    _make_edge()


def restore_host(layout: Layout) -> None:
    """Make the host what it was before: our rules and kube-proxy's last chain go, settings get their old values."""
    _remove_chain(CUT_CHAIN, "raw", CUT_HOOKS)
    _remove_chain(EDGE_CHAIN, "mangle", EDGE_HOOKS)
    remove_interface(CONTROL_INTERFACE)
    path = _memory(layout)
    if not path.exists():
        return
    before = json.loads(path.read_text())
    if not before["firewall"]:
        _remove_chain(FIREWALL_CHAIN, "filter", ("INPUT", "OUTPUT"))
    for name, value in before["sysctls"].items():
        (Path("/proc/sys") / name).write_text(str(value))
    path.unlink()


def add_control_interface() -> None:
    """The address of the API server and the one of the cluster's DNS."""
    _add_interface(CONTROL_INTERFACE, CONTROL_ADDRESS, DNS_ADDRESS)


def add_node_interface(node: NodeLayout) -> None:
    """The node's own address."""
    _add_interface(node.interface, node.address)


def remove_interface(name: str) -> None:
    """Remove an interface of ours if it is there."""
    show = ["ip", "link", "show", name]
    # It is looked for once more, because the kernel may remove it at the same moment.
    if succeeds(show) and not succeeds(["ip", "link", "delete", name]) and succeeds(show):
        raise ClusterError(f"the interface {name} cannot be removed")


def remove_pod_interfaces(node: NodeLayout) -> None:
    """The host's ends of killed pods: the kernel takes its time with them, and their routes are in the way."""
    for route in json.loads(run(["ip", "-json", "route", "show", "root", node.subnet]) or "[]"):
        if route.get("dev", "").startswith("veth"):
            remove_interface(route["dev"])


def cut_off(node: NodeLayout) -> None:
    """Drop everything from and to the node's pods: the peers of a machine without power hear nothing, no reset."""
    _make_chain(CUT_CHAIN, "raw", CUT_HOOKS)
    for rule in _cut_rules(node):
        if not _has_rule("raw", *rule):
            _iptables("raw", "-A", *rule)


def reconnect(node: NodeLayout) -> None:
    """Take back `cut_off`."""
    for rule in _cut_rules(node):
        while _has_rule("raw", *rule):
            _iptables("raw", "-D", *rule)


def _make_edge() -> None:
    """Addresses of the cluster that no pod and no node has, and no Service translates, lead nowhere."""
    _make_chain(EDGE_CHAIN, "mangle", EDGE_HOOKS)
    for addresses in (POD_RANGE, SERVICE_RANGE):
        rule = (EDGE_CHAIN, "-d", addresses, "!", "-o", "veth+", "-m", "addrtype", "!", "--dst-type", "LOCAL")
        if not _has_rule("mangle", *rule, "-j", "DROP"):
            _iptables("mangle", "-A", *rule, "-j", "DROP")


def _make_chain(chain: str, table: str, hooks: tuple[str, ...]) -> None:
    if not _has_chain(chain, table):
        _iptables(table, "-N", chain)
        for hook in hooks:
            _iptables(table, "-I", hook, "-j", chain)


def _cut_rules(node: NodeLayout) -> list[tuple[str, ...]]:
    return [(CUT_CHAIN, direction, node.subnet, "-j", "DROP") for direction in ("-s", "-d")]


def _remove_chain(chain: str, table: str, hooks: tuple[str, ...]) -> None:
    for hook in hooks:
        while _has_rule(table, hook, "-j", chain):
            _iptables(table, "-D", hook, "-j", chain)
    if _has_chain(chain, table):
        _iptables(table, "-F", chain)
        _iptables(table, "-X", chain)


def _has_chain(chain: str, table: str) -> bool:
    return succeeds(["iptables", "-w", "-t", table, "-n", "-L", chain])


def _has_rule(table: str, *rule: str) -> bool:
    return succeeds(["iptables", "-w", "-t", table, "-C", *rule])


def _iptables(table: str, *arguments: str) -> None:
    run(["iptables", "-w", "-t", table, *arguments])


def _memory(layout: Layout) -> Path:
    return layout.state / "host-before.json"


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
