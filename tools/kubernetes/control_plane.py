"""The control plane: etcd, API server, controllers, scheduler, kube-proxy and the cluster's DNS, as host processes.

They are ended in the reverse order, because an API server without its etcd would wait for it for ever.
"""

from __future__ import annotations

from typing import Final

from tools.kubernetes import configs
from tools.kubernetes.dns import resolve, resolver_path, resolver_text
from tools.kubernetes.errors import EndedError
from tools.kubernetes.kube import kubectl
from tools.kubernetes.layout import CLUSTER_DOMAIN, STORAGE_CLASS, Layout
from tools.kubernetes.processes import Processes
from tools.kubernetes.programs import etcd
from tools.kubernetes.running import run, wait_until

NAMES: Final = ("etcd", "apiserver", "controller-manager", "scheduler", "proxy", "dns")
"""In the order of their start."""

READY_TIMEOUT_S: Final = 120

NICENESS: Final = "-10"
"""Before what else the machine does: a control plane without a processor takes live nodes for lost."""

OBJECTS: Final = f"""
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: system:coredns}}
rules:
- {{apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}}
- {{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: system:coredns}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: system:coredns}}]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {STORAGE_CLASS}}}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Delete
"""
"""What the cluster has from its first moment: what its DNS may look up, and the class of node-local disks."""


class ControlPlane:
    """Starts and ends it."""

    def __init__(self, layout: Layout, processes: Processes) -> None:
        self._layout = layout
        self._processes = processes

    def start_api(self) -> None:
        """Start etcd and the API server; returns once the latter is ready."""
        layout = self._layout
        self._start("etcd", configs.etcd_argv(etcd(), layout))
        self._start("apiserver", configs.api_server_argv(layout))
        wait_until("the API server to be ready", self._is_ready, timeout_s=READY_TIMEOUT_S, hint=str(layout.log))
        kubectl(layout, "apply", "--server-side", "-f", "-", stdin=OBJECTS)

    def start_controllers(self) -> None:
        """Start the controllers, the scheduler and the cluster's DNS."""
        layout = self._layout
        (layout.state / "Corefile").write_text(configs.corefile(layout))
        resolver_path(layout).write_text(resolver_text())
        self._start("controller-manager", configs.controller_manager_argv(layout))
        self._start("scheduler", configs.scheduler_argv(layout))
        self._start("dns", configs.dns_argv(layout))
        wait_until("the cluster's DNS to answer", self._resolves, timeout_s=60, hint=str(layout.log / "dns.log"))

    def start_proxy(self) -> None:
        """Start kube-proxy; it looks for its Node object first, so a node should be there."""
        layout = self._layout
        if not self._processes.is_running("proxy"):  # a running one ends when its file is written, even unchanged
            (layout.state / "kube-proxy.yaml").write_text(configs.proxy_config(layout))
            self._start("proxy", configs.proxy_argv(layout))

    def end(self) -> None:
        """End all of it, and remove kube-proxy's rules."""
        had_proxy = "proxy" in self._processes.names()
        for name in reversed(NAMES):
            self._processes.end(name)
        if had_proxy:
            run([self._layout.bin / "kube-proxy", "--cleanup"], timeout_s=60)

    def _start(self, name: str, argv: list[str]) -> None:
        self._processes.start(name, ["nice", "-n", NICENESS, *argv])

    def _is_ready(self) -> bool:
        if not self._processes.is_running("apiserver"):
            raise EndedError("the API server ended")
        return kubectl(self._layout, "get", "--raw", "/readyz").strip() == "ok"

    def _resolves(self) -> bool:
        if not self._processes.is_running("dns"):
            raise EndedError("CoreDNS ended")
        return resolve(self._layout, f"kubernetes.default.svc.{CLUSTER_DOMAIN}") != []
