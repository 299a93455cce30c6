"""The cluster's names for programs of the host.

A program sees them when it runs in a mount namespace in which /etc/resolv.conf names the cluster's DNS. So a client
started through `inside_dns` follows brokers' advertised addresses as a pod does, and nothing of the host is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import CLUSTER_DOMAIN, DNS_ADDRESS, Layout
from tools.kubernetes.running import run

ENTER: Final = 'mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"'


def resolver_text() -> str:
    """The resolv.conf."""
    return f"nameserver {DNS_ADDRESS}\nsearch svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}\noptions ndots:5 timeout:1\n"


def resolver_path(layout: Layout) -> Path:
    """Where it is kept."""
    return layout.state / "cluster-resolv.conf"


def inside_dns(layout: Layout, argv: Sequence[str | Path]) -> list[str]:
    """The argument vector that runs `argv` with the cluster's names; needs root."""
    command = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", ENTER, str(resolver_path(layout))]
    return [*command, *(str(part) for part in argv)]


def resolve(layout: Layout, name: str) -> list[str]:
    """The IPv4 addresses of a name of the cluster, such as `orders.shop.svc`; none if it has none."""
    try:
        answer = run(inside_dns(layout, ["getent", "ahostsv4", name]), timeout_s=30)
    except ClusterError:
        return []
    return sorted({line.split()[0] for line in answer.splitlines() if line.strip()})
