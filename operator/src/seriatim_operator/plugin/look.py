"""Reads all objects of a cluster from the Kubernetes API once. All pictures and checks use this one look.

An administrator may be allowed to read less than the operator. A kind that the API refuses is noted, and the rest is
shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ..cluster.kinds import (
    BROKER,
    BROKER_CLUSTER,
    BROKER_GROUP,
    BUDGET,
    CLAIM,
    CONSUMER_GROUP,
    LEASE,
    NETWORK_POLICY,
    NODE,
    POD,
    SECRET,
    STORAGE_CLASS,
    TOPIC,
    VOLUME,
    Kind,
)
from ..cluster.kube import Kube, KubeError
from ..cluster.mounting import why_not_mounted
from ..plan.observed import ClassView, NodeView, PodView, VolumeView, class_view, node_view, pod_view, volume_view
from ..resources.names import (
    APP,
    COMPONENT_ETCD,
    COMPONENT_OPERATOR,
    LABEL_CLUSTER,
    LABEL_COMPONENT,
    LABEL_NAME,
    authority_secret_name,
    selector_labels,
    selector_text,
    tls_secret_name,
)
from ..spec.broker import Broker
from ..spec.cluster import BrokerCluster
from ..spec.consumer_group import ConsumerGroup
from ..spec.group import BrokerGroup
from ..spec.topic import Topic
from .errors import PluginError

Manifest = dict[str, Any]

REPORTED_MAX: Final = timedelta(minutes=2)
"""The greatest age of a status that may prove something. An operator that acts reports every minute."""


@dataclass(frozen=True)
class Look:
    """The objects of one cluster.

    Attributes:
        groups: The broker groups, ordered by number.
        brokers: The Brokers, without those whose disk was given up and released.
        claims, budgets, policies: Manifests of the namespace, by name.
        etcd_pods: Pods of the chart's etcd, if this cluster uses it; empty if it uses another etcd.
        mount_fails: By UID of a pod of etcd without a container, why its kubelet cannot give it its volumes.
        secrets: The Secrets with certificates that exist, by name.
        leases: The Leases in the namespace of each operator, by `namespace/name`.
        unreadable: Kinds that this user may not read.
    """

    cluster: BrokerCluster
    now: datetime
    groups: tuple[BrokerGroup, ...] = ()
    brokers: tuple[Broker, ...] = ()
    pods: Mapping[str, PodView] = field(default_factory=dict)
    pod_manifests: Mapping[str, Manifest] = field(default_factory=dict)
    claims: Mapping[str, Manifest] = field(default_factory=dict)
    volumes: Mapping[str, VolumeView] = field(default_factory=dict)
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    storage_class: ClassView | None = None
    budgets: Mapping[str, Manifest] = field(default_factory=dict)
    policies: Mapping[str, Manifest] = field(default_factory=dict)
    secrets: Mapping[str, Manifest] = field(default_factory=dict)
    topics: tuple[Topic, ...] = ()
    consumer_groups: tuple[ConsumerGroup, ...] = ()
    operator_pods: tuple[Manifest, ...] = ()
    etcd_pods: tuple[Manifest, ...] = ()
    mount_fails: Mapping[str, str] = field(default_factory=dict)
    leases: Mapping[str, Manifest] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()

    @property
    def is_fresh(self) -> bool:
        """Whether the cluster's status is new enough to prove something."""
        reported_at = self.cluster.status.reported_at
        return reported_at is not None and self.now - reported_at <= REPORTED_MAX

    @property
    def held_up(self) -> Mapping[str, str]:
        """What a drain that is held up waits for, by the name of the broker group."""
        found = {group.spec.group: group.status.condition("Drained") for group in self.groups}
        return {name: each.message for name, each in found.items() if each is not None and each.reason == "HeldUp"}


async def find_cluster(kube: Kube, namespace: str, name: str | None) -> BrokerCluster:
    """The cluster of that name, or the only one of the namespace if `name` is None.

    Raises:
        PluginError: There is no such cluster, there are several and `name` is None, or the API cannot be read.
    """
    try:
        manifests = await kube.list(BROKER_CLUSTER, namespace)
    except KubeError as exc:
        raise explain(exc) from exc
    names = sorted(str(manifest["metadata"]["name"]) for manifest in manifests)
    if not names:
        raise PluginError(f"there is no BrokerCluster in namespace {namespace}. Remedy: -n another namespace")
    if name is None and len(names) > 1:
        raise PluginError(f"there are several clusters in namespace {namespace}; name one of {', '.join(names)}")
    wanted = names[0] if name is None else name
    for manifest in manifests:
        if manifest["metadata"]["name"] == wanted:
            return BrokerCluster.from_manifest(manifest)
    raise PluginError(f"there is no BrokerCluster {wanted} in namespace {namespace}; there is {', '.join(names)}")


async def find_clusters(kube: Kube, namespace: str | None) -> list[BrokerCluster]:
    """All clusters of a namespace, or (None) of all namespaces, by namespace and name.

    Raises:
        PluginError: There is no cluster, or the API cannot be read.
    """
    try:
        manifests = await kube.list(BROKER_CLUSTER, namespace)
    except KubeError as exc:
        raise explain(exc) from exc
    if not manifests:
        where = "in any namespace" if namespace is None else f"in namespace {namespace}. Remedy: --all-namespaces"
        raise PluginError(f"there is no BrokerCluster {where}")
    return sorted(map(BrokerCluster.from_manifest, manifests), key=lambda each: (each.namespace, each.name))


async def look_at(kube: Kube, cluster: BrokerCluster) -> Look:
    """Everything that concerns a cluster, read at once.

    Raises:
        PluginError: The API does not answer.
    """
    try:
        return await _look(_Reader(kube), cluster)
    except KubeError as exc:
        raise explain(exc) from exc


async def _look(reader: _Reader, cluster: BrokerCluster) -> Look:
    namespace, name = cluster.namespace, cluster.name
    whole = (BROKER_GROUP, BROKER, BUDGET, NETWORK_POLICY, TOPIC, CONSUMER_GROUP)
    found = await asyncio.gather(
        *(reader.all(kind, namespace) for kind in whole),
        reader.all(POD, namespace, selector_text(selector_labels(name))),
        reader.all(CLAIM, namespace, f"{LABEL_CLUSTER}={name}"),
        reader.all(POD, None, _component(COMPONENT_OPERATOR)),
        reader.all(VOLUME, None),
        reader.all(NODE, None),
    )
    groups, brokers, budgets, policies, topics, consumers, pods, claims, operators, volumes, nodes = found
    storage_class = await reader.one(STORAGE_CLASS, None, cluster.spec.storage.storage_class_name)
    secrets = [await reader.one(SECRET, namespace, secret) for secret in secret_names(cluster)]
    members = await reader.all_in(etcd_services(cluster).values(), POD, _component(COMPONENT_ETCD))
    leases = await reader.all_in((str(pod["metadata"]["namespace"]) for pod in operators), LEASE)
    bound = {claim["spec"].get("volumeName") for claim in claims}
    etcd_pods = _etcd_of(cluster, members)
    return Look(
        cluster=cluster,
        now=datetime.now(UTC),
        groups=_groups_of(name, groups),
        brokers=_brokers_of(name, brokers),
        pods={pod["metadata"]["name"]: pod_view(pod) for pod in pods},
        pod_manifests=_named(pods),
        claims=_named(claims),
        volumes={view.name: view for view in map(volume_view, volumes) if view.name in bound},
        nodes={view.name: view for view in map(node_view, nodes)},
        storage_class=class_view(storage_class) if storage_class is not None else None,
        budgets=_named(budgets),
        policies=_named(policies),
        secrets=_named(secret for secret in secrets if secret is not None),
        topics=tuple(topic for topic in map(Topic.from_manifest, topics) if topic.spec.cluster == name),
        consumer_groups=tuple(g for g in map(ConsumerGroup.from_manifest, consumers) if g.spec.cluster == name),
        operator_pods=tuple(operators),
        etcd_pods=etcd_pods,
        mount_fails={
            str(pod["metadata"]["uid"]): await reader.mount_fails(pod) for pod in etcd_pods if not _has_begun(pod)
        },
        leases={f"{each['metadata']['namespace']}/{each['metadata']['name']}": each for each in leases},
        unreadable=frozenset(reader.refused),
    )


def secret_names(cluster: BrokerCluster) -> list[str]:
    """The names of the Secrets with certificates that the cluster uses."""
    names: list[str] = []
    if cluster.spec.tls.enabled:
        names.append(cluster.spec.tls.ca_secret or authority_secret_name(cluster.name))
        names += [tls_secret_name(cluster.name, role) for role in ("broker", "client", "operator")]
    if cluster.spec.etcd.tls_secret is not None:
        names.append(cluster.spec.etcd.tls_secret)
    return names


def etcd_hosts(cluster: BrokerCluster) -> list[str]:
    """The host names of etcd's endpoints in this Kubernetes, up to `.svc`. Endpoints elsewhere are left out."""
    hosts = (endpoint.rpartition(":")[0].partition(".svc") for endpoint in cluster.spec.etcd.endpoints)
    return [host for host, is_inside, _ in hosts if is_inside]


def etcd_services(cluster: BrokerCluster) -> dict[str, str]:
    """The Services through which brokers reach etcd, each with its namespace."""
    parts = (host.split(".") for host in etcd_hosts(cluster))
    return {each[-2]: each[-1] for each in parts if len(each) > 1}


def explain(exc: KubeError) -> PluginError:
    """The error to show for an error of the API; it says so if the API did not answer at all."""
    if exc.status == 0:
        return PluginError(f"the Kubernetes API does not answer: {exc}")
    return PluginError(str(exc))


class _Reader:
    """Reads objects from the API, and remembers the kinds that it refuses to show (403)."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.refused: set[str] = set()

    async def all(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Manifest]:
        try:
            return await self._kube.list(kind, namespace, selector)
        except KubeError as exc:
            self._note(kind, exc)
            return []

    async def all_in(self, namespaces: Iterable[str], kind: Kind, selector: str = "") -> list[Manifest]:
        return [found for place in sorted(set(namespaces)) for found in await self.all(kind, place, selector)]

    async def one(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        try:
            return await self._kube.get(kind, namespace, name)
        except KubeError as exc:
            self._note(kind, exc)
            return None

    async def mount_fails(self, pod: Manifest) -> str:
        return await why_not_mounted(self._kube, pod["metadata"]["namespace"], pod["metadata"]["uid"])

    def _note(self, kind: Kind, exc: KubeError) -> None:
        if exc.status != 403:
            raise exc
        self.refused.add(kind.kind)


def is_ready(pod: Manifest) -> bool:
    """Whether a pod is ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _has_begun(pod: Manifest) -> bool:
    """Whether any container of a pod has ever run."""
    status = pod.get("status") or {}
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    states = [state for each in containers for state in (each.get("state") or {}, each.get("lastState") or {})]
    return any("running" in state or "terminated" in state for state in states)


def _component(name: str) -> str:
    """The selector of our pods that have this part."""
    return selector_text({LABEL_NAME: APP, LABEL_COMPONENT: name})


def _groups_of(cluster: str, manifests: Iterable[Manifest]) -> tuple[BrokerGroup, ...]:
    groups = [group for group in map(BrokerGroup.from_manifest, manifests) if group.spec.cluster == cluster]
    return tuple(sorted(groups, key=lambda group: int(group.spec.group[1:])))


def _brokers_of(cluster: str, manifests: Iterable[Manifest]) -> tuple[Broker, ...]:
    brokers = [broker for broker in map(Broker.from_manifest, manifests) if broker.spec.cluster == cluster]
    held = [broker for broker in brokers if broker.status.released is None]
    return tuple(sorted(held, key=lambda broker: (int(broker.spec.group[1:]), broker.spec.slot, broker.name)))


def _etcd_of(cluster: BrokerCluster, pods: Iterable[Manifest]) -> tuple[Manifest, ...]:
    services = etcd_services(cluster)
    return tuple(pod for pod in pods if services.get(pod["spec"].get("subdomain")) == pod["metadata"]["namespace"])


def _named(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    return {str(manifest["metadata"]["name"]): manifest for manifest in manifests}
