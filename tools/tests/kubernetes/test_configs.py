"""What the cluster's programs are configured with: nodes that share a host must share nothing else."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.kubernetes import configs
from tools.kubernetes.layout import CONTROL_ADDRESS, DNS_ADDRESS, Layout

LAYOUT = Layout(Path("/state"), Path("/cache"))


def leaves(value: Any) -> Iterator[str]:
    """All texts in a nested value."""
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, str):
        yield value


def paths(value: Any) -> set[str]:
    return {text for text in leaves(value) if "/" in text and not text.endswith("kubelet.config.k8s.io/v1beta1")}


def test_kubelets_of_two_nodes_share_only_what_the_cluster_has_once() -> None:
    first, second = (paths(yaml.safe_load(configs.kubelet_config(LAYOUT, LAYOUT.node(n)))) for n in (1, 2))
    assert first & second == {
        "/state/pki/ca.crt",
        "/state/resolv.conf",
        "unix:///run/containerd/containerd.sock",  # these two: the same path, in a mount namespace of its own
        "/var/lib/kubelet/volume-plugins",
    }


def test_a_kubelet_listens_on_its_nodes_own_address_only() -> None:
    for node in LAYOUT.nodes:
        config = yaml.safe_load(configs.kubelet_config(LAYOUT, node))
        assert config["address"] == config["healthzBindAddress"] == node.address
        assert config["clusterDNS"] == [DNS_ADDRESS]
        assert config["cgroupRoot"] == f"/{node.cgroup}"


def test_a_live_node_is_not_taken_for_lost_when_it_misses_one_renewal() -> None:
    renewal_s = configs.NODE_LEASE_DURATION_S / 4  # as the kubelet does
    assert 4 * renewal_s <= configs.NODE_MONITOR_GRACE_S
    assert configs.NODE_MONITOR_GRACE_S > configs.NODE_STATUS_FREQUENCY_S


def test_containerds_keep_their_images_apart() -> None:
    parsed = [tomllib.loads(configs.containerd_config(node, Path("/cni"))) for node in LAYOUT.nodes]
    assert len({config["root"] for config in parsed}) == len(parsed)
    cri = parsed[0]["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["cni"] == {"bin_dir": "/cni", "conf_dir": "/state/nodes/node1/cni"}
    assert cri["containerd"]["runtimes"]["runc"]["options"] == {"SystemdCgroup": False}


def test_pods_get_addresses_of_their_nodes_subnet_beside_the_nodes_own() -> None:
    for node in LAYOUT.nodes:
        (plugin,) = json.loads(configs.cni_config(node))["plugins"]
        ((addresses,),) = plugin["ipam"]["ranges"]
        assert addresses["subnet"] == node.subnet
        assert addresses["rangeStart"] > node.address
        assert plugin["ipam"]["dataDir"].startswith(str(node.root)), "they are not given again when the node is back"


def test_the_api_server_authorizes_and_admits_as_a_real_one_and_serves_no_other_interface() -> None:
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in configs.api_server_argv(LAYOUT)[1:])
    assert flags["authorization-mode"] == "Node,RBAC"
    assert {"NodeRestriction", "PodSecurity"} <= set(flags["enable-admission-plugins"].split(","))
    assert flags["bind-address"] == flags["advertise-address"] == CONTROL_ADDRESS
    assert flags["kubelet-certificate-authority"] == "/state/pki/ca.crt"


def test_the_proxy_applies_changes_at_once() -> None:
    config = yaml.safe_load(configs.proxy_config(LAYOUT))
    assert config["iptables"]["minSyncPeriod"] == "1ms"  # a 0 would be taken for "not set", which means 1 s
    assert config["hostnameOverride"] == "node1"


def test_dns_answers_on_its_own_address_and_forgets_fast() -> None:
    text = configs.corefile(LAYOUT)
    assert f"bind {DNS_ADDRESS}" in text
    assert "ttl 1" in text
    assert "kubeconfig /state/dns.kubeconfig" in text
