"""The flags and configuration files of the cluster's programs, as pure functions of the layout.

Times are shorter than Kubernetes' defaults, so that a lost node is noticed while a test waits. Each time is here with
its default. docs/operating/kubernetes-on-one-machine.md lists them for humans.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import yaml

from tools.kubernetes.layout import (
    API_PORT,
    BASE_IMAGE,
    CLUSTER_DOMAIN,
    CONTROL_ADDRESS,
    DNS_ADDRESS,
    ETCD_PEER_URL,
    ETCD_URL,
    POD_RANGE,
    SERVICE_RANGE,
    Layout,
    NodeLayout,
)
from tools.kubernetes.private_mounts import KUBELET_ROOT

NODE_STATUS_FREQUENCY_S: Final = 2  # default 10
NODE_LEASE_DURATION_S: Final = 8  # default 40; a kubelet renews it four times in this time
NODE_MONITOR_GRACE_S: Final = 12  # default 50; five missed renewals and the slack of a busy machine
NODE_MONITOR_PERIOD_S: Final = 1  # default 5
TOLERATION_S: Final = 30  # default 300; how long pods stay bound to a node that is gone
SYNC_FREQUENCY_S: Final = 10  # default 60; how late a pod sees its changed Secret or ConfigMap
RESTART_BACKOFF_MAX_S: Final = 10  # default 300; tests kill containers often

CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
"""The same path in every node: each has its own mounts (see `private_mounts`)."""

KUBELET_PORT: Final = 10250
KUBELET_HEALTH_PORT: Final = 10248

HARD_EVICTION: Final = {"memory.available": "100Mi", "nodefs.available": "2%", "imagefs.available": "2%"}


def etcd_argv(etcd: Path, layout: Layout) -> list[str]:
    """etcd with Kubernetes' objects: one member, on loopback, gone with `down`, so it need not wait for the disk."""
    flags = {
        "name": "kubernetes",
        "data-dir": layout.state / "etcd",
        "listen-client-urls": ETCD_URL,
        "advertise-client-urls": ETCD_URL,
        "listen-peer-urls": ETCD_PEER_URL,
        "initial-advertise-peer-urls": ETCD_PEER_URL,
        "initial-cluster": f"kubernetes={ETCD_PEER_URL}",
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    }
    return [str(etcd), *_flags(flags)]


def api_server_argv(layout: Layout) -> list[str]:
    """The API server, with the authorizers and admission that a real cluster has."""
    pki = layout.pki
    flags = {
        "etcd-servers": ETCD_URL,
        "bind-address": CONTROL_ADDRESS,
        "advertise-address": CONTROL_ADDRESS,
        "secure-port": API_PORT,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-client-certificate": pki / "apiserver-kubelet.crt",
        "kubelet-client-key": pki / "apiserver-kubelet.key",
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-key-file": pki / "service-accounts.pub",
        "service-account-signing-key-file": pki / "service-accounts.key",
        "service-account-issuer": f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction,PodSecurity",
        "service-cluster-ip-range": SERVICE_RANGE,
        "allow-privileged": "true",
        "default-not-ready-toleration-seconds": TOLERATION_S,
        "default-unreachable-toleration-seconds": TOLERATION_S,
    }
    return [str(layout.bin / "kube-apiserver"), *_flags(flags)]


def controller_manager_argv(layout: Layout) -> list[str]:
    """The controllers; each acts under its own ServiceAccount."""
    flags = {
        "kubeconfig": layout.kubeconfig_of("controller-manager"),
        "service-account-private-key-file": layout.pki / "service-accounts.key",
        "root-ca-file": layout.pki / "ca.crt",
        "use-service-account-credentials": "true",
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "node-monitor-grace-period": f"{NODE_MONITOR_GRACE_S}s",
        "node-monitor-period": f"{NODE_MONITOR_PERIOD_S}s",
    }
    return [str(layout.bin / "kube-controller-manager"), *_flags(flags)]


def scheduler_argv(layout: Layout) -> list[str]:
    """The scheduler."""
    flags = {
        "kubeconfig": layout.kubeconfig_of("scheduler"),
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
    }
    return [str(layout.bin / "kube-scheduler"), *_flags(flags)]


def proxy_argv(layout: Layout) -> list[str]:
    """One kube-proxy for all nodes: they share the host's network, where it makes Services' addresses work."""
    return [str(layout.bin / "kube-proxy"), f"--config={layout.state / 'kube-proxy.yaml'}"]


def proxy_config(layout: Layout) -> str:
    """Its configuration; every change of a Service's endpoints is applied at once."""
    return _yaml(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "hostnameOverride": layout.node(1).name,
            "bindAddress": CONTROL_ADDRESS,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "nodePortAddresses": [POD_RANGE],  # the nodes' own addresses; unset, all of the host's would serve
            "clientConnection": {"kubeconfig": str(layout.kubeconfig_of("proxy"))},
            "clusterCIDR": POD_RANGE,
            # 0 would mean the default of one second.
            "iptables": {"minSyncPeriod": "1ms", "syncPeriod": "30s"},
            # The host's connection tracking is not ours to tune.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
    )


def corefile(layout: Layout) -> str:
    """CoreDNS: the cluster's names from the API server; there are no others.

    Nothing in the cluster asks for names of the outside, and yet every look at a broker's name does: it has no IPv6
    address, so resolvers go through the search list to its end. Handed on to the host's resolvers, which may answer
    late or never, that held up connections by two seconds.
    """
    return f"""\
{CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
    bind {DNS_ADDRESS}
    errors
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {layout.kubeconfig_of("dns")} seriatim-e2e
        ttl 1
    }}
}}
.:53 {{
    bind {DNS_ADDRESS}
    errors
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def dns_argv(layout: Layout) -> list[str]:
    """CoreDNS as a process of the host."""
    return [str(layout.bin / "coredns"), "-conf", str(layout.state / "Corefile")]


def containerd_config(node: NodeLayout, cni_directory: Path) -> str:
    """One node's containerd."""
    runtime = "plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc"
    return f"""\
version = 2
root = "{node.root / "containerd"}"
state = "/run/containerd"

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.grpc.v1.cri']
  sandbox_image = "{BASE_IMAGE}"
  # Without CAP_SYS_RESOURCE a container's OOM score cannot be lowered, and runc would fail.
  restrict_oom_score_adj = true

[plugins.'io.containerd.grpc.v1.cri'.cni]
  bin_dir = "{cni_directory}"
  conf_dir = "{node.root / "cni"}"

[plugins.'io.containerd.grpc.v1.cri'.containerd]
  snapshotter = "overlayfs"

[{runtime}]
  runtime_type = "io.containerd.runc.v2"

[{runtime}.options]
  SystemdCgroup = false
"""


def cni_config(node: NodeLayout) -> str:
    """How one node's pods are joined to the network (see `network`).

    The plugin notes used addresses on the node's disk, so a node that comes back continues with the next address. By
    default the notes are in /var/lib/cni, which ends with the node's mounts. Then:
    1. A new pod gets the address of a pod that was killed.
    2. The host route of the old pod is still there, and is taken for the new one.
    3. The route goes with the interface of the old pod: no other pod can reach the new one.
    """
    plugin = {
        "type": "ptp",
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": str(node.root / "addresses"),
            "ranges": [[{"subnet": node.subnet, "rangeStart": f"10.88.{node.number}.10"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "0.4.0", "name": node.interface, "plugins": [plugin]}, indent=2)


def kubelet_config(layout: Layout, node: NodeLayout) -> str:
    """One node's kubelet; it shares the host with others, so every folder and address is its own."""
    return _yaml(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "port": KUBELET_PORT,
            "healthzBindAddress": node.address,
            "healthzPort": KUBELET_HEALTH_PORT,
            "readOnlyPort": 0,
            "tlsCertFile": str(layout.pki / f"{node.name}.crt"),
            "tlsPrivateKeyFile": str(layout.pki / f"{node.name}.key"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": str(layout.state / "resolv.conf"),
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "imageServiceEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(node.root / "pod-logs"),
            "volumePluginDir": str(KUBELET_ROOT / "volume-plugins"),
            "evictionHard": HARD_EVICTION,
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": f"{NODE_STATUS_FREQUENCY_S}s",
            "nodeStatusReportFrequency": "60s",
            "nodeLeaseDurationSeconds": NODE_LEASE_DURATION_S,
            "syncFrequency": f"{SYNC_FREQUENCY_S}s",
            "crashLoopBackOff": {"maxContainerRestartPeriod": f"{RESTART_BACKOFF_MAX_S}s"},
            "shutdownGracePeriod": "0s",
            "serializeImagePulls": False,
            "maxPods": 60,
        }
    )


def kubelet_argv(layout: Layout, node: NodeLayout) -> list[str]:
    """One node's kubelet."""
    flags = {
        "config": node.root / "kubelet.yaml",
        "kubeconfig": layout.kubeconfig_of(node.name),
        "hostname-override": node.name,
        "node-ip": node.address,
        "root-dir": KUBELET_ROOT,
        "cert-dir": KUBELET_ROOT / "pki",
        "node-labels": f"topology.kubernetes.io/zone=zone{node.number}",
        "v": 1,
    }
    return [str(layout.bin / "kubelet"), *_flags(flags)]


def _flags(flags: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def _yaml(value: dict[str, object]) -> str:
    return str(yaml.safe_dump(value, sort_keys=False))
