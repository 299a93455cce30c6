"""The chart in a namespace of its own: the suite installs, changes and removes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.kubernetes.place import Manifest, Place
from tools.kubernetes.api import Cluster
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import ROOT, STORAGE_CLASS

RELEASE: Final = "seriatim"
CLUSTER: Final = "orders"
GROUPS: Final = 3
NODE_LOSS_S: Final = 20
"""How long a Node must be gone until its disks are given up."""

SETTLE_S: Final = 60
"""How long the operator lets a changed Secret settle. Kubelets of our own cluster look every 10 s (`SYNC_FREQUENCY_S`).
"""

SPREAD_QUIET_S: Final = 10
"""For how long nothing else must be wrong before the operator mends the spread."""

HELM_S: Final = 300.0
GONE_S: Final = 120.0
NAMESPACE_PREFIX: Final = "e2e-"

RESTRICTED: Final = {"pod-security.kubernetes.io/enforce": "restricted"}
"""In the suite's namespace, Kubernetes refuses every pod that does not meet its strictest standard."""


@dataclass(frozen=True, slots=True)
class Images:
    """The images and the chart of one version.

    Attributes:
        tag: The tag of our images, which are on all nodes.
        etcd: The reference of etcd's image.
        chart: The chart of the same version.
        spark: The reference of Spark's image; empty if no case needs it.
    """

    tag: str
    etcd: str
    chart: Path = ROOT
    spark: str = ""


@dataclass
class Release:
    """One installation of the chart.

    Attributes:
        place: Its namespace.
        images: The images that it runs.
        values: Values of the chart, beside those that `install` sets.
    """

    place: Place
    images: Images
    values: dict[str, Any] = field(default_factory=dict)

    def all_values(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the values of the chart."""
        base: dict[str, Any] = {
            "images": {
                "tag": self.images.tag,
                "etcd": self.images.etcd,
                **({"spark": self.images.spark} if self.images.spark else {}),
            },
            "crds": {"install": False},
            "watchNamespaces": [self.place.namespace],
            "operator": {
                "env": [
                    {"name": "SERIATIM_OPERATOR_CERTIFICATE_SETTLE_S", "value": str(SETTLE_S)},
                    {"name": "SERIATIM_OPERATOR_SPREAD_QUIET_S", "value": str(SPREAD_QUIET_S)},
                ]
            },
            "etcd": {"members": 3, "storage": {"storageClassName": STORAGE_CLASS, "size": "1Gi"}},
            "cluster": {
                "create": True,
                "name": CLUSTER,
                "spec": {
                    "groups": GROUPS,
                    "nodeLossTimeoutSeconds": NODE_LOSS_S,
                    "storage": {"storageClassName": STORAGE_CLASS, "size": "5Gi"},
                    # Brokers request processor time, because a full machine gives none to pods without a request.
                    "podTemplate": {"resources": {"requests": {"cpu": "200m", "memory": "192Mi"}}},
                },
            },
        }
        return merged(merged(base, self.values), more or {})

    async def prepare(self) -> None:
        """Make the namespace, and apply the definitions of this checkout.

        They belong to no release, so several releases can share them.
        """
        manifest = {
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": self.place.namespace, "labels": RESTRICTED},
        }  # fmt: skip
        await self.place.apply(manifest)
        await self.place.kubectl("apply", "--server-side", "--force-conflicts", "-f", self.images.chart / "crds")

    async def install(self, directory: Path, more: Mapping[str, Any] | None = None) -> None:
        """Run `helm install`.

        Args:
            directory: The directory for the file with the values.
            more: More values, for this call only.
        """
        await self._helm("install", directory, more)

    async def upgrade(self, directory: Path, more: Mapping[str, Any]) -> None:
        """Run `helm upgrade` with these values, and keep them for later calls."""
        self.values = merged(self.values, more)
        await self._helm("upgrade", directory, None)

    async def helm(self, *arguments: str | Path) -> str:
        """Run Helm in the namespace. Return its output."""
        whole = (*arguments, f"--namespace={self.place.namespace}")
        return await asyncio.to_thread(self.place.cluster.helm, *whole, timeout_s=HELM_S)

    async def _helm(self, verb: str, directory: Path, more: Mapping[str, Any] | None) -> None:
        path = directory / f"values-{verb}.json"
        path.write_text(json.dumps(self.all_values(more), indent=1))
        await self.helm(verb, RELEASE, self.images.chart, f"--values={path}")

    async def remove(self) -> None:
        """Remove everything, in whatever state it is.

        Raises:
            ClusterError, StillNotError: Something is left.
        """
        try:
            await self.helm("uninstall", RELEASE, "--no-hooks", "--ignore-not-found")
        except ClusterError as error:
            if "not found" not in str(error):
                raise
        await self.let_go()
        await self.place.kubectl("delete", "namespace", self.place.namespace, "--ignore-not-found", "--wait=false")
        await self.place.wait_until(f"namespace {self.place.namespace} is gone", self._is_gone, GONE_S)

    async def let_go(self) -> None:
        """Remove finalizers, because the operator that would remove them has gone with the release."""
        for plural in ("topics", "consumergroups", "brokers", "brokergroups", "brokerclusters"):
            for item in await self.place.list(plural):
                if item["metadata"].get("finalizers"):
                    await self.place.patch(plural, item["metadata"]["name"], {"metadata": {"finalizers": None}})

    async def _is_gone(self) -> bool:
        return await self.place.read(f"/api/v1/namespaces/{self.place.namespace}") is None


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `more` over it. Objects are merged name by name."""
    result = dict(base)
    for name, value in more.items():
        before = result.get(name)
        result[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return result


def free_namespace(taken: Sequence[str]) -> str:
    """Return a name that no namespace has."""
    number = 1
    while f"{NAMESPACE_PREFIX}{number}" in taken:
        number += 1
    return f"{NAMESPACE_PREFIX}{number}"


def namespaces(cluster: Cluster) -> list[str]:
    """Return the names of all namespaces."""
    return [item["metadata"]["name"] for item in cluster.get("namespaces")["items"]]


def operators_of_all(cluster: Cluster) -> list[str]:
    """Return operators that look after all namespaces. They would act on this suite's cluster too."""
    selector = "app.kubernetes.io/name=seriatim,app.kubernetes.io/component=operator"
    found = []
    for item in cluster.get("deployments", "--all-namespaces", f"--selector={selector}")["items"]:
        container = item["spec"]["template"]["spec"]["containers"][0]
        environment = {entry["name"]: entry.get("value", "") for entry in container.get("env") or ()}
        if not environment.get("SERIATIM_OPERATOR_WATCH_NAMESPACES") and item["spec"].get("replicas"):
            found.append(f"{item['metadata']['namespace']}/{item['metadata']['name']}")
    return found


def topic_manifest(namespace: str, name: str, partitions: int, **spec: Any) -> Manifest:
    """Return a Topic."""
    return {
        "apiVersion": "seriatim.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"cluster": CLUSTER, "partitions": partitions, **spec},
    }
