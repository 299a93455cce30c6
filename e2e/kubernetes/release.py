"""The chart in a namespace of its own: its installation, changes and removal."""

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
"""How long a Node must be gone before its disks are given up."""

HELM_S: Final = 300.0
GONE_S: Final = 120.0
DEFINITIONS: Final = "brokerclusters.seriatim.dev"
NAMESPACE_PREFIX: Final = "e2e-"

RESTRICTED: Final = {"pod-security.kubernetes.io/enforce": "restricted"}
"""Every pod of the suite's namespace passes the strictest of Kubernetes' own standards, or is refused."""


@dataclass(frozen=True, slots=True)
class Images:
    """What is installed.

    Attributes:
        tag: Of our images, which are on all nodes.
        etcd: The reference of etcd's image.
        chart: The chart that goes with them.
        spark: The reference of Spark's image; empty if no case needs it.
    """

    tag: str
    etcd: str
    chart: Path = ROOT
    spark: str = ""


@dataclass
class Release:
    """One installation.

    Attributes:
        place: Its namespace.
        images: What it runs.
        values: Of the chart, beside those that `install` sets.
    """

    place: Place
    images: Images
    values: dict[str, Any] = field(default_factory=dict)

    def all_values(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The values of the chart."""
        base: dict[str, Any] = {
            "images": {
                "tag": self.images.tag,
                "etcd": self.images.etcd,
                **({"spark": self.images.spark} if self.images.spark else {}),
            },
            "crds": {"install": False},
            "watchNamespaces": [self.place.namespace],
            "etcd": {"members": 3, "storage": {"storageClassName": STORAGE_CLASS, "size": "1Gi"}},
            "cluster": {
                "create": True,
                "name": CLUSTER,
                "spec": {
                    "groups": GROUPS,
                    "nodeLossTimeoutSeconds": NODE_LOSS_S,
                    "storage": {"storageClassName": STORAGE_CLASS, "size": "5Gi"},
                    # What asks for nothing gets nothing beside what asks, on a machine that is full.
                    "podTemplate": {"resources": {"requests": {"cpu": "200m", "memory": "192Mi"}}},
                },
            },
        }
        return merged(merged(base, self.values), more or {})

    async def prepare(self) -> None:
        """The namespace, and the definitions of this checkout: they belong to no release, so any number may come."""
        manifest = {
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": self.place.namespace, "labels": RESTRICTED},
        }  # fmt: skip
        await self.place.apply(manifest)
        await self.place.kubectl("apply", "--server-side", "--force-conflicts", "-f", self.images.chart / "crds")

    async def install(self, directory: Path, more: Mapping[str, Any] | None = None) -> None:
        """`helm install`.

        Args:
            directory: Where the values are written down.
            more: Values for this time.
        """
        await self._helm("install", directory, more)

    async def upgrade(self, directory: Path, more: Mapping[str, Any]) -> None:
        """`helm upgrade` to these values, kept from now on."""
        self.values = merged(self.values, more)
        await self._helm("upgrade", directory, None)

    async def helm(self, *arguments: str | Path) -> str:
        """Run Helm in the namespace; its output."""
        whole = (*arguments, f"--namespace={self.place.namespace}")
        return await asyncio.to_thread(self.place.cluster.helm, *whole, timeout_s=HELM_S)

    async def _helm(self, verb: str, directory: Path, more: Mapping[str, Any] | None) -> None:
        path = directory / f"values-{verb}.json"
        path.write_text(json.dumps(self.all_values(more), indent=1))
        await self.helm(verb, RELEASE, self.images.chart, f"--values={path}")

    async def remove(self) -> None:
        """Take everything away, whatever state it is in.

        Raises:
            ClusterError, StillNotError: Something stays.
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
        """Take finalizers off, because the operator that would remove them has gone with the release."""
        for plural in ("topics", "consumergroups", "brokers", "brokergroups", "brokerclusters"):
            for item in await self.place.list(plural):
                if item["metadata"].get("finalizers"):
                    await self.place.patch(plural, item["metadata"]["name"], {"metadata": {"finalizers": None}})

    async def _is_gone(self) -> bool:
        return await self.place.read(f"/api/v1/namespaces/{self.place.namespace}") is None


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `more` over it, objects merged name by name."""
    result = dict(base)
    for name, value in more.items():
        before = result.get(name)
        result[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return result


def free_namespace(taken: Sequence[str]) -> str:
    """A name that no namespace has."""
    number = 1
    while f"{NAMESPACE_PREFIX}{number}" in taken:
        number += 1
    return f"{NAMESPACE_PREFIX}{number}"


def namespaces(cluster: Cluster) -> list[str]:
    """All namespaces that there are."""
    return [item["metadata"]["name"] for item in cluster.get("namespaces")["items"]]


def operators_of_all(cluster: Cluster) -> list[str]:
    """Operators that look after all namespaces, so this suite's too: two would act on one cluster."""
    selector = "app.kubernetes.io/name=seriatim,app.kubernetes.io/component=operator"
    found = []
    for item in cluster.get("deployments", "--all-namespaces", f"--selector={selector}")["items"]:
        container = item["spec"]["template"]["spec"]["containers"][0]
        environment = {entry["name"]: entry.get("value", "") for entry in container.get("env") or ()}
        if not environment.get("SERIATIM_OPERATOR_WATCH_NAMESPACES") and item["spec"].get("replicas"):
            found.append(f"{item['metadata']['namespace']}/{item['metadata']['name']}")
    return found


def topic_manifest(namespace: str, name: str, partitions: int, **spec: Any) -> Manifest:
    """A Topic."""
    return {
        "apiVersion": "seriatim.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"cluster": CLUSTER, "partitions": partitions, **spec},
    }
