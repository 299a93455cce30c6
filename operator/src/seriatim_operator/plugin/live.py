"""The brokers of a cluster, reached from outside: through a port-forward to one of their pods."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ..cluster.brokers import Brokers, Credentials
from ..cluster.connection import Connection
from ..cluster.kinds import POD, SECRET
from ..cluster.kube import Kube, KubeError
from ..cluster.port_forward import ForwardFailedError, forward
from ..plan.observed import PodView, pod_view
from ..resources.names import BROKER_PORT, selector_labels, selector_text, tls_secret_name
from ..resources.secrets import secret_files
from ..spec.cluster import BrokerCluster
from .errors import PluginError

PODS_TRIED_MAX = 3


@contextlib.asynccontextmanager
async def reach_brokers(connection: Connection, kube: Kube, cluster: BrokerCluster) -> AsyncIterator[Brokers]:
    """A client of the brokers, for as long as the block lasts. Any broker answers for all.

    Raises:
        PluginError: No broker runs, or none is let through, or the client certificate may not be read.
    """
    pods = await _candidates(kube, cluster)
    credentials = await client_credentials(kube, cluster)
    async with contextlib.AsyncExitStack() as stack:
        address = await _first_way(stack, connection, cluster, pods)
        brokers = Brokers(cluster.name, None)
        stack.push_async_callback(brokers.close)
        brokers.reach([address], credentials)
        yield brokers


async def _first_way(
    stack: contextlib.AsyncExitStack, connection: Connection, cluster: BrokerCluster, pods: list[PodView]
) -> str:
    problems: list[str] = []
    for pod in pods[:PODS_TRIED_MAX]:
        way = forward(connection.configuration, cluster.namespace, pod.name, BROKER_PORT)
        try:
            return await stack.enter_async_context(way)
        except ForwardFailedError as exc:
            problems.append(str(exc))
    raise PluginError("; ".join(problems))


async def _candidates(kube: Kube, cluster: BrokerCluster) -> list[PodView]:
    """Pods that run, those that serve first."""
    try:
        manifests = await kube.list(POD, cluster.namespace, selector_text(selector_labels(cluster.name)))
    except KubeError as exc:
        raise PluginError(f"the brokers' pods cannot be read: {exc}") from exc
    running = [view for view in map(pod_view, manifests) if view.is_running and not view.is_deleting]
    if not running:
        raise PluginError(f"no broker of {cluster.name} runs. Remedy: kubectl seriatim doctor {cluster.name}")
    return sorted(running, key=lambda view: (not view.is_ready, view.name))


async def client_credentials(kube: Kube, cluster: BrokerCluster) -> Credentials | None:
    """With which a client reaches the brokers; None: in plain text.

    Raises:
        PluginError: They may not be read, or are not there.
    """
    if not cluster.spec.tls.enabled:
        return None
    name = tls_secret_name(cluster.name, "client")
    try:
        secret = await kube.get(SECRET, cluster.namespace, name)
    except KubeError as exc:
        raise PluginError(
            f"the client certificate in Secret {name} cannot be read: {exc}. Remedy: a role that may get this Secret"
        ) from exc
    if secret is None:
        raise PluginError(f"there is no Secret {name}: the operator has not made the certificates yet")
    return credentials_in(cluster, name, secret)


def credentials_in(cluster: BrokerCluster, name: str, secret: Mapping[str, Any]) -> Credentials:
    """A client's certificate, as the Secret has it.

    Raises:
        PluginError: A file is missing.
    """
    files = secret_files(secret)
    missing = [file for file in ("ca.crt", "tls.crt", "tls.key") if not files.get(file)]
    if missing:
        raise PluginError(f"Secret {name} has no {', '.join(missing)}. Remedy: delete it; the operator makes it anew")
    server_name = f"{cluster.name}.{cluster.namespace}.svc"
    return Credentials(files["ca.crt"], files["tls.crt"], files["tls.key"], server_name)
