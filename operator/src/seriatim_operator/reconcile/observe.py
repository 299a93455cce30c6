"""One look at a cluster: from the cache, or, before something is taken away, from the API itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import structlog
from seriatim_api.errors import SeriatimError
from seriatim_api.v1 import operations_pb2, records_pb2

from ..cluster.brokers import Brokers, Credentials
from ..cluster.kinds import BROKER, BROKER_CLUSTER, BROKER_GROUP, CLAIM, NODE, POD, STORAGE_CLASS, VOLUME, Kind
from ..cluster.kube import Api, KubeError
from ..cluster.readiness import why_not_ready
from ..plan.observed import (
    ClassView,
    GateView,
    GroupView,
    MemberView,
    Observed,
    claim_view,
    class_view,
    node_view,
    pod_view,
    volume_view,
)
from ..resources.names import LABEL_CLUSTER
from ..spec.broker import Broker
from ..spec.cluster import BrokerCluster
from ..spec.group import BrokerGroup
from .cache import Cache

Manifest = dict[str, Any]
_View = TypeVar("_View")

UNREADY_ASKED_MAX = 16
"""Brokers asked in one look: the first few tell what is wrong with all."""

_log = structlog.get_logger(__name__)


class Source(Protocol):
    """Where manifests come from."""

    async def one(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object."""

    async def all(self, kind: Kind, namespace: str | None, cluster: str) -> Iterable[Manifest]:
        """All of a kind; those in a namespace are the ones labelled with the cluster."""


@dataclass(frozen=True, slots=True)
class FromCache:
    """What the watches have told; what is not watched is asked of the API."""

    cache: Cache
    api: Api
    watched: frozenset[str]

    async def one(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object."""
        if kind.kind not in self.watched:
            return await self.api.get(kind, namespace or None, name)
        return self.cache.get(kind.kind, namespace, name)

    async def all(self, kind: Kind, namespace: str | None, cluster: str) -> Iterable[Manifest]:
        """All of a kind, of one cluster where it has any."""
        if kind.kind not in self.watched:
            return await FromApi(self.api).all(kind, namespace, cluster)
        return [m for m in self.cache.of(kind.kind, namespace) if namespace is None or _belongs(m, cluster)]


@dataclass(frozen=True, slots=True)
class FromApi:
    """The API, asked now."""

    api: Api

    async def one(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object."""
        return await self.api.get(kind, namespace or None, name)

    async def all(self, kind: Kind, namespace: str | None, cluster: str) -> Iterable[Manifest]:
        """All of a kind, of one cluster where it has any."""
        manifests = await self.api.list(kind, namespace, f"{LABEL_CLUSTER}={cluster}" if namespace else "")
        return [m for m in manifests if namespace is None or _belongs(m, cluster)]


def _belongs(manifest: Manifest, cluster: str) -> bool:
    return (manifest["metadata"].get("labels") or {}).get(LABEL_CLUSTER) == cluster


async def observe(source: Source, brokers: Brokers, namespace: str, name: str, *, counts: bool) -> Observed | None:
    """Everything that concerns a cluster; None if it is not there.

    Raises:
        InvalidManifestError: The cluster object cannot be read.
        KubeError: The API does not answer.
    """
    manifest = await source.one(BROKER_CLUSTER, namespace, name)
    if manifest is None:
        return None
    cluster = BrokerCluster.from_manifest(manifest)
    claims = _named(await source.all(CLAIM, namespace, name), claim_view)
    bound = {claim.volume for claim in claims.values() if claim.volume}
    volumes = [m for m in await _optional(source, VOLUME, name) if m["metadata"]["name"] in bound]
    return Observed(
        cluster=cluster,
        now_s=time.time(),
        groups=_named(await source.all(BROKER_GROUP, namespace, name), BrokerGroup.from_manifest),
        brokers=_named(await source.all(BROKER, namespace, name), Broker.from_manifest),
        pods=_named(await source.all(POD, namespace, name), pod_view),
        claims=claims,
        volumes=_named(volumes, volume_view),
        nodes=_named(await _optional(source, NODE, name), node_view),
        storage_class=await _class(source, cluster.spec.storage.storage_class_name),
        members=await ask_members(brokers, counts=counts),
    )


async def ask_members(brokers: Brokers, *, counts: bool) -> dict[str, GroupView] | None:
    """The groups as the brokers know them; None if nobody answers."""
    if not brokers.is_reachable:
        return None
    try:
        return {group.record.group: _group_view(group) for group in await brokers.list_groups(with_counts=counts)}
    except SeriatimError as exc:
        _log.info("brokers_silent", cluster=brokers.cluster, error=str(exc))
        return None


async def ask_the_unready(observed: Observed, credentials: Credentials | None) -> Observed:
    """With what the brokers say that run and are not ready."""
    asked = [pod for pod in observed.pods.values() if pod.is_running and not pod.is_ready and pod.ip]
    says = await asyncio.gather(*(why_not_ready(pod.ip, credentials) for pod in asked[:UNREADY_ASKED_MAX]))
    told = {pod.name: replace(pod, says=text) for pod, text in zip(asked, says, strict=False)}
    return replace(observed, pods={**observed.pods, **told}) if told else observed


async def ask_gate(brokers: Brokers, broker: str) -> GateView:
    """Whether a member may be stopped; no answer is a no."""
    try:
        answer = await brokers.check_restart(broker)
    except SeriatimError as exc:
        return GateView(broker, is_safe=False, verdict="UNKNOWN", text=f"the brokers do not say whether it may: {exc}")
    verdict = operations_pb2.RestartVerdict.Name(answer.verdict).removeprefix("RESTART_VERDICT_")
    where = f" ({answer.segments_checked} segments checked"
    where += f"; up to {answer.segment}:{answer.index} of partition {answer.partition_id}, epoch {answer.epoch})"
    is_safe = answer.verdict == operations_pb2.RESTART_VERDICT_SAFE
    return GateView(broker, is_safe, verdict, (answer.text or verdict) + where)


async def _optional(source: Source, kind: Kind, cluster: str) -> Iterable[Manifest]:
    """Objects outside of namespaces, which a namespaced installation may not be allowed to read."""
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
        return ClassView(name, waits_for_consumer=True, can_expand=True)  # it may not be read: the user's word counts
    return class_view(manifest) if manifest is not None else None


def _named(manifests: Iterable[Manifest], view: Callable[[Manifest], _View]) -> dict[str, _View]:
    return {manifest["metadata"]["name"]: view(manifest) for manifest in manifests}


def _group_view(group: operations_pb2.BrokerGroupDescription) -> GroupView:
    record = group.record
    intent = records_pb2.BrokerGroupIntent.Name(record.intent).removeprefix("BROKER_GROUP_INTENT_")
    return GroupView(
        group=record.group,
        intent="ACTIVE" if intent == "UNSPECIFIED" else intent,
        weight=record.weight or 1.0,
        heads=group.heads if group.HasField("heads") else None,
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
    )
