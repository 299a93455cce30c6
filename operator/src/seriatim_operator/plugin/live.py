"""Reaches the brokers of a cluster from outside of Kubernetes, through a port-forward to one of their pods."""

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
from .certificate_checks import remedy_unreadable
from .errors import PluginError

PODS_TRIED_MAX = 3


@contextlib.asynccontextmanager
async def reach_brokers(connection: Connection, kube: Kube, cluster: BrokerCluster) -> AsyncIterator[Brokers]:
    """A client of the brokers, open until the end of the block. It asks one broker, which answers for the cluster.

    Raises:
        PluginError: No broker runs, no port-forward to one opens, or the client certificate cannot be read.
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
    """Pods whose container runs, those that are ready first.

    Raises:
        PluginError: The pods cannot be read, or none runs.
    """
    try:
        manifests = await kube.list(POD, cluster.namespace, selector_text(selector_labels(cluster.name)))
    except KubeError as exc:
        raise PluginError(f"the brokers' pods cannot be read: {exc}") from exc
    running = [view for view in map(pod_view, manifests) if view.is_running and not view.is_deleting]
    if not running:
        raise PluginError(f"no broker of {cluster.name} runs. Remedy: kubectl seriatim doctor {cluster.name}")
    return sorted(running, key=lambda view: (not view.is_ready, view.name))


async def client_credentials(kube: Kube, cluster: BrokerCluster) -> Credentials | None:
    """The certificates with which a client reaches the brokers; None if the cluster does not use TLS.

    Raises:
        PluginError: The Secret cannot be read, does not exist, or lacks a file.
    """
    if not cluster.spec.tls.enabled:
        return None
    name = tls_secret_name(cluster.name, "client")
    try:
        secret = await kube.get(SECRET, cluster.namespace, name)
    except KubeError as exc:
        raise PluginError(
            f"the client certificate in Secret {name} cannot be read: {exc}. Remedy: give your account a role "
            "that may get this Secret"
        ) from exc
    if secret is None:
        raise PluginError(f"there is no Secret {name}: the operator has not made the certificates yet")
    return credentials_in(cluster, name, secret)


def credentials_in(cluster: BrokerCluster, name: str, secret: Mapping[str, Any]) -> Credentials:
    """The certificates in a Secret.

    Raises:
        PluginError: The Secret lacks `ca.crt`, `tls.crt` or `tls.key`.
    """
    files = secret_files(secret)
    missing = [file for file in ("ca.crt", "tls.crt", "tls.key") if not files.get(file)]
    if missing:
        remedy = remedy_unreadable(cluster, secret)
        raise PluginError(f"Secret {name} has no {', '.join(missing)}. Remedy: {remedy}")
    server_name = f"{cluster.name}.{cluster.namespace}.svc"
    return Credentials(files["ca.crt"], files["tls.crt"], files["tls.key"], server_name)
