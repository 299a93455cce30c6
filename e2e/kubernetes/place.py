"""One namespace of a cluster, and the suite's requests to its API. They share one connection, because they are
frequent.

Calls that block run in a thread. Meanwhile the suite can read the clients' lines.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import kubernetes
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from tools.kubernetes.api import Cluster
from tools.kubernetes.errors import ClusterError

POLL_S: Final = 0.2
REQUEST_S: Final = 10.0
NOT_FOUND: Final = 404

OURS: Final = "/apis/seriatim.dev/v1alpha1"
CORE: Final = "/api/v1"
GROUPS_OF_KINDS: Final = {
    "brokerclusters": OURS, "brokergroups": OURS, "brokers": OURS, "topics": OURS, "consumergroups": OURS,
    "pods": CORE, "persistentvolumeclaims": CORE, "secrets": CORE, "events": CORE, "services": CORE,
    "configmaps": CORE, "deployments": "/apis/apps/v1", "poddisruptionbudgets": "/apis/policy/v1",
    "leases": "/apis/coordination.k8s.io/v1", "resourcequotas": CORE,
}  # fmt: skip
"""The API path of each kind of object that the suite reads."""

Manifest = dict[str, Any]


class StillNotError(Exception):
    """A state did not come in time. The text says which state, and what was seen last."""


class Place:
    """A namespace.

    Args:
        cluster: The cluster.
        namespace: The name of the namespace.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        configuration = kubernetes.client.Configuration()
        load: Any = kubernetes.config.load_kube_config
        load(str(cluster.kubeconfig), client_configuration=configuration)
        self._api: Any = kubernetes.client.ApiClient(configuration)

    async def kubectl(self, *arguments: str | Path, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Run kubectl in this namespace. Return its output.

        Raises:
            ClusterError: kubectl failed.
        """
        whole = (f"--namespace={self.namespace}", *arguments)
        return await asyncio.to_thread(self.cluster.kubectl, *whole, stdin=stdin, timeout_s=timeout_s)

    async def apply(self, *manifests: Manifest) -> None:
        """Apply these objects with `kubectl apply`, as a user does.

        Raises:
            ClusterError: The API refuses them.
        """
        text = "\n---\n".join(json.dumps(manifest) for manifest in manifests)
        await self.kubectl("apply", "-f", "-", stdin=text)

    async def patch(self, plural: str, name: str, patch: Manifest) -> None:
        """Merge a patch into an object.

        Raises:
            ClusterError: The API refuses it.
        """
        await self.kubectl("patch", f"{plural}/{name}", "--type=merge", f"--patch={json.dumps(patch)}")

    async def read(self, path: str, query: Mapping[str, str] | None = None) -> Manifest | None:
        """Read what the API has at a path; None if it has nothing.

        Raises:
            ClusterError: The API does not answer.
        """
        return await asyncio.to_thread(self._read, path, dict(query or {}))

    def _read(self, path: str, query: dict[str, str]) -> Manifest | None:
        try:
            answer = self._api.call_api(
                *self._api.param_serialize(
                    "GET",
                    path,
                    query_params=list(query.items()),
                    header_params={"Accept": "application/json"},
                    auth_settings=["BearerToken"],
                ),
                _request_timeout=REQUEST_S,
            )
            answer.read()
            if answer.status == NOT_FOUND:
                return None
            if answer.status >= 400:
                raise ClusterError(f"GET {path}: {answer.status} {answer.data[:300]!r}")
            found: Manifest = json.loads(answer.data)
        except ApiException as error:
            if error.status == NOT_FOUND:
                return None
            raise ClusterError(f"GET {path}: {error.status} {error.reason}") from error
        except HTTPError as error:
            raise ClusterError(f"GET {path}: {error}") from error
        return found

    async def get(self, plural: str, name: str) -> Manifest | None:
        """Read an object of this namespace; None if the namespace has no such object."""
        return await self.read(f"{self._path(plural)}/{name}")

    async def list(self, plural: str, selector: str = "") -> list[Manifest]:
        """Read the objects of a kind in this namespace."""
        query = {"labelSelector": selector} if selector else {}
        found = await self.read(self._path(plural), query)
        return [] if found is None else list(found["items"])

    async def wait_until(
        self, what: str, holds: Callable[[], Awaitable[bool]], deadline_s: float, saying: Callable[[], str] = lambda: ""
    ) -> float:
        """Look again and again until `holds` is true. Return how many seconds it took.

        Args:
            what: The state, for the error.
            holds: If it raises `ClusterError`, the state has not come yet.
            deadline_s: The seconds after which to give up.
            saying: Says what was seen last, for the error.

        Raises:
            StillNotError: It was not true in time.
        """
        began = time.monotonic()
        last = ""
        while True:
            try:
                if await holds():
                    return time.monotonic() - began
                last = saying()
            except ClusterError as error:
                last = str(error)
            if time.monotonic() - began > deadline_s:
                raise StillNotError(
                    f"waited {deadline_s:g} s until {what}, without success{f': {last}' if last else ''}"
                )
            await asyncio.sleep(POLL_S)

    def _path(self, plural: str) -> str:
        return f"{GROUPS_OF_KINDS[plural]}/namespaces/{self.namespace}/{plural}"


def condition(manifest: Manifest | None, type_: str) -> Manifest:
    """Return a condition of an object; empty if it has none."""
    if manifest is None:
        return {}
    found = (manifest.get("status") or {}).get("conditions") or ()
    return next((dict(entry) for entry in found if entry["type"] == type_), {})


def is_true(manifest: Manifest | None, type_: str, *, current: bool = True) -> bool:
    """Whether a condition is True. With `current`, it must also be about the newest generation."""
    found = condition(manifest, type_)
    if manifest is None or found.get("status") != "True":
        return False
    return not current or int(found.get("observedGeneration") or 0) >= int(manifest["metadata"].get("generation") or 0)
