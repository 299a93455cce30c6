"""Observes a cluster: from the cache or, before a step that takes something away, from the API itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import structlog
from seriatim_api.errors import SeriatimError, StaleOperatorError
from seriatim_api.v1 import operations_pb2, records_pb2

from ..cluster.brokers import Brokers, Credentials
from ..cluster.kinds import (
    BROKER,
    BROKER_CLUSTER,
    BROKER_GROUP,
    CLAIM,
    CONFIG_MAP,
    NODE,
    POD,
    SERVICE,
    STORAGE_CLASS,
    VOLUME,
    Kind,
)
from ..cluster.kube import Api, KubeError
from ..cluster.mounting import why_not_mounted
from ..cluster.readiness import why_not_ready
from ..plan.observed import (
    BrokerGroupView,
    ClassView,
    GateView,
    MemberView,
    NodeView,
    Observed,
    PodView,
    claim_view,
    class_view,
    node_view,
    pod_view,
    service_view,
    volume_view,
)
from ..resources.config import settings_in
from ..resources.names import CONFIG_FILE, LABEL_CLUSTER, LABEL_EXTERNAL, config_name
from ..resources.ownership import belongs_to
from ..spec.broker import Broker
from ..spec.cluster import BrokerCluster
from ..spec.group import BrokerGroup
from ..spec.settings import SettingsError, parse_settings
from .cache import Cache

Manifest = dict[str, Any]
_View = TypeVar("_View")

UNREADY_ASKED_MAX = 16
"""How many brokers that are not ready are asked in one look. If more are not ready, mostly for the same reason."""

MOUNTS_S = 4.0
"""Seconds that a kubelet may take to mount a new pod's volumes, before it is asked why it has not."""

_log = structlog.get_logger(__name__)


class Source(Protocol):
    """A source of manifests: the cache or the API."""

    async def one(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object, or None if it does not exist."""

    async def all(self, kind: Kind, namespace: str | None, cluster: str) -> Iterable[Manifest]:
        """All objects of a kind. Of a kind with namespaces only those with the cluster's label."""


@dataclass(frozen=True, slots=True)
class FromCache:
    """The cache of the watches. Kinds that are not watched are read from the API."""

    cache: Cache
    api: Api
    watched: frozenset[str]

    async def one(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object, or None if it does not exist."""
        if kind.kind not in self.watched:
            return await self.api.get(kind, namespace or None, name)
        return self.cache.get(kind.kind, namespace, name)

    async def all(self, kind: Kind, namespace: str | None, cluster: str) -> Iterable[Manifest]:
        """All objects of a kind. Of a kind with namespaces only those with the cluster's label."""
        if kind.kind not in self.watched:
            return await FromApi(self.api).all(kind, namespace, cluster)
        return [m for m in self.cache.of(kind.kind, namespace) if namespace is None or _belongs(m, cluster)]


@dataclass(frozen=True, slots=True)
class FromApi:
    """The API, read at each call."""

    api: Api

    async def one(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object, or None if it does not exist."""
        return await self.api.get(kind, namespace or None, name)

    async def all(self, kind: Kind, namespace: str | None, cluster: str) -> Iterable[Manifest]:
        """All objects of a kind. Of a kind with namespaces only those with the cluster's label."""
        manifests = await self.api.list(kind, namespace, f"{LABEL_CLUSTER}={cluster}" if namespace else "")
        return [m for m in manifests if namespace is None or _belongs(m, cluster)]


def _belongs(manifest: Manifest, cluster: str) -> bool:
    return (manifest["metadata"].get("labels") or {}).get(LABEL_CLUSTER) == cluster


async def observe(source: Source, brokers: Brokers, namespace: str, name: str, *, counts: bool) -> Observed | None:
    """Everything that concerns a cluster; None if the cluster does not exist.

    Args:
        source: The cache or the API.
        brokers: The client of the cluster's brokers.
        namespace: The namespace of the cluster.
        name: The name of the cluster.
        counts: Have the brokers count the segments of each broker group, for which they read every chain.

    Raises:
        InvalidManifestError: The BrokerCluster, a BrokerGroup or a Broker of it cannot be read.
        StaleOperatorError: A newer operator acts: this one must end.
        KubeError: The API refuses a call or does not answer.
    """
    manifest = await source.one(BROKER_CLUSTER, namespace, name)
    if manifest is None:
        return None
    cluster = BrokerCluster.from_manifest(manifest)
    claims = _named(await source.all(CLAIM, namespace, name), claim_view)
    bound = {claim.volume for claim in claims.values() if claim.volume}
    volumes = [m for m in await _optional(source, VOLUME, name) if m["metadata"]["name"] in bound]
    services = [
        manifest
        for manifest in await source.all(SERVICE, namespace, name)
        if LABEL_EXTERNAL in manifest["metadata"]["labels"] and belongs_to(manifest, cluster)
    ]
    nodes = _named(await _optional(source, NODE, name), node_view)
    return Observed(
        cluster=cluster,
        now_s=time.time(),
        groups=_named(await source.all(BROKER_GROUP, namespace, name), BrokerGroup.from_manifest),
        brokers=_named(await source.all(BROKER, namespace, name), Broker.from_manifest),
        pods=_without_lost(_named(await source.all(POD, namespace, name), pod_view), nodes),
        claims=claims,
        volumes=_named(volumes, volume_view),
        nodes=nodes,
        services=_named(services, service_view),
        storage_class=await _class(source, cluster.spec.storage.storage_class_name),
        members=await ask_members(brokers, counts=counts),
        last_settings=await _last_settings(source, cluster),
    )


def _without_lost(pods: dict[str, PodView], nodes: dict[str, NodeView]) -> dict[str, PodView]:
    """The pods, of which none is ready whose Node is gone. Kubernetes says so only when it deletes the pod."""
    lost = {name: pod for name, pod in pods.items() if nodes and pod.is_scheduled and pod.node not in nodes}
    return {**pods, **{name: replace(pod, is_ready=False) for name, pod in lost.items()}}


async def _last_settings(source: Source, cluster: BrokerCluster) -> dict[str, str] | None:
    """The settings that the brokers have, if those of the object are not good; None if they have none."""
    try:
        parse_settings(cluster.spec.settings)
    except SettingsError:
        manifest = await source.one(CONFIG_MAP, cluster.namespace, config_name(cluster.name))
        if manifest is not None and belongs_to(manifest, cluster):
            file = (manifest.get("data") or {}).get(CONFIG_FILE)
            return settings_in(file) if file else None
    return None


async def ask_members(brokers: Brokers, *, counts: bool) -> dict[str, BrokerGroupView] | None:
    """The broker groups as the brokers know them; None if no broker answers.

    Raises:
        StaleOperatorError: A newer operator acts: this one must end.
    """
    if not brokers.is_reachable:
        return None
    try:
        return {
            group.record.group: _broker_group_view(group)
            for group in await brokers.list_broker_groups(with_counts=counts)
        }
    except StaleOperatorError:
        raise
    except SeriatimError as exc:
        _log.info("brokers_silent", cluster=brokers.cluster, error=str(exc))
        return None


async def ask_the_unready(observed: Observed, credentials: Credentials | None) -> Observed:
    """`observed`, with the answers of brokers that run and are not ready about why."""
    asked = [pod for pod in observed.pods.values() if pod.is_running and not pod.is_ready and pod.ip]
    says = await asyncio.gather(*(why_not_ready(pod.ip, credentials) for pod in asked[:UNREADY_ASKED_MAX]))
    told = {pod.name: replace(pod, says=text) for pod, text in zip(asked, says, strict=False)}
    return replace(observed, pods={**observed.pods, **told}) if told else observed


async def ask_for_mounts(observed: Observed, api: Api) -> Observed:
    """`observed`, with the kubelets' words about pods that have had a node for some seconds and no container yet."""
    asked = [
        pod
        for pod in observed.pods.values()
        if pod.waits_for_volumes and observed.now_s - max(pod.created_s, pod.waits_since_s) >= MOUNTS_S
    ][:UNREADY_ASKED_MAX]
    told = await asyncio.gather(
        *(why_not_mounted(api, observed.cluster.namespace, pod.uid, pod.waits_since_s) for pod in asked)
    )
    pods = {pod.name: replace(pod, mount_fails=text) for pod, text in zip(asked, told, strict=True) if text}
    return replace(observed, pods={**observed.pods, **pods}) if pods else observed


async def ask_gate(brokers: Brokers, broker: str) -> GateView:
    """Ask whether a member may be stopped. If no broker answers, it may not.

    Raises:
        StaleOperatorError: A newer operator acts: this one must end.
    """
    try:
        answer = await brokers.check_restart(broker)
    except StaleOperatorError:
        raise
    except SeriatimError as exc:
        return GateView(
            broker, is_safe=False, verdict="UNKNOWN", text=f"the brokers do not answer whether it may be stopped: {exc}"
        )
    verdict = operations_pb2.RestartVerdict.Name(answer.verdict).removeprefix("RESTART_VERDICT_")
    where = f" ({answer.segments_checked} segments checked"
    where += f"; up to {answer.segment}:{answer.index}, epoch {answer.epoch})"
    is_safe = answer.verdict == operations_pb2.RESTART_VERDICT_SAFE
    return GateView(broker, is_safe, verdict, (answer.text or verdict) + where)


async def _optional(source: Source, kind: Kind, cluster: str) -> Iterable[Manifest]:
    """Objects outside of namespaces; empty if the operator may not read them, as in a namespaced installation."""
    try:
        return await source.all(kind, None, cluster)
    except KubeError as exc:
        if exc.status == 403:
            return ()
        raise


async def _class(source: Source, name: str) -> ClassView | None:
    try:
        manifest = await source.one(STORAGE_CLASS, "", name)
    except KubeError as exc:
        if exc.status != 403:
            raise
        return ClassView(name, waits_for_consumer=True, can_expand=True)  # not readable: assume that it is right
    return class_view(manifest) if manifest is not None else None


def _named(manifests: Iterable[Manifest], view: Callable[[Manifest], _View]) -> dict[str, _View]:
    return {manifest["metadata"]["name"]: view(manifest) for manifest in manifests}


def _broker_group_view(group: operations_pb2.BrokerGroupDescription) -> BrokerGroupView:
    record = group.record
    intent = records_pb2.BrokerGroupIntent.Name(record.intent).removeprefix("BROKER_GROUP_INTENT_")
    return BrokerGroupView(
        group=record.group,
        intent="ACTIVE" if intent == "UNSPECIFIED" else intent,
        weight=record.weight or 1.0,
        open_segments=group.heads if group.HasField("heads") else None,
        segments=group.segments if group.HasField("segments") else None,
        members=tuple(_member_view(member) for member in group.members),
        waits_for=group.waits_for,
    )


def _member_view(member: operations_pb2.GroupMember) -> MemberView:
    record = member.record
    return MemberView(
        broker=record.member.broker,
        incarnation=record.member.incarnation,
        run=record.run,
        is_admitted=record.admitted,
        is_live=member.live,
        is_certified=member.certified,
        unlinked=tuple(member.unlinked),
        disk_state=member.disk_state,
    )
