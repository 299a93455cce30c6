"""The cluster itself, on the machine that made it: the tests of the product depend on it.

These tests kill nodes, so they are skipped while the cluster holds any namespace that is not its own.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Final

import pytest

from tools.kubernetes.api import Cluster
from tools.kubernetes.configs import NODE_MONITOR_GRACE_S, TOLERATION_S
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import BASE_IMAGE, DISKS_PER_NODE, STORAGE_CLASS
from tools.kubernetes.running import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

PORT: Final = 8080
ROLLOUT_S: Final = 60
WEB: Final = f"""
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: {PORT}}}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: web}}
spec:
  serviceName: web
  replicas: 2
  podManagementPolicy: Parallel
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {{topologyKey: kubernetes.io/hostname, labelSelector: {{matchLabels: {{app: web}}}}}}
      securityContext:
        {{runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {{type: RuntimeDefault}}}}
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: {BASE_IMAGE}
        command:
        - sh
        - -c
        - |
          echo started >> /data/starts
          hostname > /data/index.html
          hostname > /dev/termination-log
          cd /data && exec python3 -m http.server {PORT}
        securityContext:
          {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}
        readinessProbe: {{httpGet: {{port: {PORT}}}, periodSeconds: 1}}
        volumeMounts: [{{name: data, mountPath: /data}}]
  volumeClaimTemplates:
  - metadata: {{name: data}}
    spec: {{accessModes: [ReadWriteOnce], storageClassName: {STORAGE_CLASS}, resources: {{requests: {{storage: 1Gi}}}}}}
"""


class Web:
    """Two pods that each serve their name from a disk, on two nodes, in a namespace with the restricted policy."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    def wait(self) -> None:
        self.kubectl("rollout", "status", "statefulset/web", f"--timeout={ROLLOUT_S}s")

    def node_of(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "-o=jsonpath={.spec.nodeName}")

    def address_of(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "-o=jsonpath={.status.podIP}")

    def starts_of(self, pod: str) -> int:
        return self.kubectl("exec", pod, "--", "cat", "/data/starts").count("started")

    def volume_of(self, pod: str) -> str:
        return self.kubectl("get", "persistentvolumeclaim", f"data-{pod}", "-o=jsonpath={.spec.volumeName}")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    try:
        found = Cluster.find()
    except ClusterError as error:
        pytest.skip(str(error))
    if not found.is_ours:
        pytest.skip("KUBECONFIG names a cluster whose nodes are not ours to kill")
    names = {item["metadata"]["name"] for item in found.get("namespaces")["items"]}
    in_use = sorted(name for name in names if name != "default" and not name.startswith("kube-"))
    if in_use:
        pytest.skip(f"the cluster is in use, and this test kills nodes: {', '.join(in_use)}")
    return found


@pytest.fixture
def web(cluster: Cluster) -> Iterator[Web]:
    name = f"web-{secrets.token_hex(3)}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    found = Web(cluster, name)
    try:
        found.kubectl("apply", "-f", "-", stdin=WEB)
        found.wait()
        yield found
    finally:
        for node in (1, 2, 3):
            if not cluster.is_node_running(node):
                cluster.start_node(node)
        cluster.kubectl("delete", "namespace", name, f"--timeout={ROLLOUT_S}s")


def test_pods_have_disks_of_two_nodes_and_are_found_by_name_from_pods_and_from_the_host(web: Web) -> None:
    assert web.node_of("web-0") != web.node_of("web-1")
    for pod in ("web-0", "web-1"):
        assert web.volume_of(pod).startswith(web.node_of(pod))
    service = f"web.{web.namespace}.svc"
    ask = f"import urllib.request as u; print(u.urlopen('http://{{}}:{PORT}', timeout=10).read().decode())"
    answers = {web.kubectl("exec", "web-0", "--", "python3", "-c", ask.format(service)).strip() for _ in range(20)}
    assert answers == {"web-0", "web-1"}, "a Service reaches both, also the pod beside or in which the client is"
    from_host = web.cluster.inside_dns(["python3", "-c", ask.format(f"web-1.{service}")])
    assert subprocess.run(from_host, capture_output=True, text=True, check=True).stdout.strip() == "web-1"
    assert web.cluster.resolve(f"web-1.{service}") == [web.address_of("web-1")]
    assert web.cluster.resolve(f"no-pod.{service}") == []


def test_a_killed_node_falls_silent_and_comes_back_with_its_disk(web: Web) -> None:
    node = web.node_of("web-1")
    volume = web.volume_of("web-1")
    with socket.create_connection((web.address_of("web-1"), PORT), timeout=2) as connection:
        web.cluster.kill_node(node)
        assert not web.cluster.is_node_running(node)
        with pytest.raises(TimeoutError):  # a machine that lost power says nothing more: no end, no reset
            connection.recv(1)
    killed_at = time.monotonic()
    ready = '{.status.conditions[?(@.type=="Ready")].status}'
    wait_until(
        "the node to be taken for lost",
        lambda: web.kubectl("get", "node", node, f"-o=jsonpath={ready}") == "Unknown",
        timeout_s=NODE_MONITOR_GRACE_S + 10,
    )
    assert time.monotonic() - killed_at < TOLERATION_S, "its pods are evicted before the test could look"
    web.cluster.start_node(node)
    wait_until("its pod to start again", lambda: web.starts_of("web-1") == 2, timeout_s=ROLLOUT_S)
    assert web.node_of("web-1") == node
    assert web.volume_of("web-1") == volume
    last = web.kubectl("get", "pod", "web-1", "-o=jsonpath={.status.containerStatuses[0].lastState.terminated.message}")
    assert last.strip() == "web-1", "what the container wrote about itself outlives the loss of power"


def test_a_deleted_node_comes_back_empty(web: Web) -> None:
    node = web.node_of("web-1")
    lost = {disk.volume for disk in web.cluster.disks_of(node)}
    web.cluster.delete_node(node)
    assert node not in web.cluster.nodes
    web.kubectl("delete", "statefulset/web", "persistentvolumeclaim/data-web-1", "--wait=false")
    web.cluster.start_node(node)
    assert node in web.cluster.nodes

    def offered() -> bool:
        disks = {disk.volume for disk in web.cluster.disks_of(node)}
        volumes = {item["metadata"]["name"] for item in web.cluster.get("persistentvolumes")["items"]}
        return len(disks) == DISKS_PER_NODE and disks <= volumes and not volumes & lost

    wait_until("new disks and no old ones on offer", offered, timeout_s=ROLLOUT_S)


def test_a_disk_that_is_given_back_is_destroyed(web: Web) -> None:
    node = web.node_of("web-0")
    (disk,) = (disk for disk in web.cluster.disks_of(node) if disk.claim == f"{web.namespace}/data-web-0")
    assert (disk.path / "starts").read_text() == "started\n"
    web.kubectl("delete", "statefulset/web", "persistentvolumeclaim/data-web-0")
    wait_until("the disk to be wiped", lambda: not disk.path.exists(), timeout_s=ROLLOUT_S)
    wait_until("another in its place", lambda: len(web.cluster.disks_of(node)) == DISKS_PER_NODE, timeout_s=ROLLOUT_S)
