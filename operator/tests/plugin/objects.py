"""A cluster as it is when all is well, to be spoilt one thing at a time."""

from __future__ import annotations

import copy
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from seriatim_operator.cluster import pki
from seriatim_operator.plan.observed import ClassView, NodeView, VolumeView, pod_view
from seriatim_operator.plugin.look import Look
from seriatim_operator.resources.cluster_children import ClusterChildren
from seriatim_operator.resources.secrets import tls_secret
from seriatim_operator.spec.broker import Broker
from seriatim_operator.spec.cluster import BrokerCluster
from seriatim_operator.spec.consumer_group import ConsumerGroup
from seriatim_operator.spec.group import BrokerGroup
from seriatim_operator.spec.topic import Topic

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SINCE = "2026-11-20T11:00:00Z"
GROUPS = ("g0", "g1", "g2")
PLACES = {("g0", 0): "n1", ("g0", 1): "n2", ("g1", 0): "n2", ("g1", 1): "n3", ("g2", 0): "n3", ("g2", 1): "n1"}
_AUTHORITY = pki.new_authority("orders", "shop", NOW)
_PLAN = pki.plan_certificates(
    _AUTHORITY,
    {
        "orders-broker-tls": pki.broker_request("orders", "shop", timedelta(days=90)),
        "orders-client-tls": pki.client_request("orders", "shop", "client", timedelta(days=90)),
        "orders-operator-tls": pki.client_request("orders", "shop", "operator", timedelta(days=90)),
    },
    {},
    NOW,
)


def condition(kind: str, status: str, reason: str, message: str = "", generation: int = 1) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": SINCE,
        "observedGeneration": generation,
    }


def cluster(status: dict[str, Any] | None = None, **spec: Any) -> BrokerCluster:
    well = [
        condition("Ready", "True", "AllServing"),
        condition("Degraded", "False", "Healthy"),
        condition("Progressing", "False", "AsWanted"),
    ]
    return BrokerCluster.from_manifest(
        {
            "metadata": {"name": "orders", "namespace": "shop", "uid": "u", "generation": 1},
            "spec": {
                "groups": 3,
                "etcd": {"endpoints": ["etcd:2379"]},
                "storage": {"storageClassName": "local-nvme", "size": "20Gi"},
                **spec,
            },
            "status": {
                "observedGeneration": 1,
                "conditions": well,
                "bootstrap": "orders.shop.svc:7100",
                "reportedAt": "2026-11-20T11:59:30Z",
                **(status or {}),
            },
        }
    )


def group(name: str, state: str = "Active", whole: bool = True, **status: Any) -> BrokerGroup:
    facts = [condition("Whole", "True" if whole else "False", "AllThere" if whole else "Incomplete")]
    return BrokerGroup.from_manifest(
        {
            "metadata": {"name": f"orders-{name}", "namespace": "shop", "resourceVersion": "7"},
            "spec": {"cluster": "orders", "group": name, "state": state},
            "status": {"conditions": facts, **status},
        }
    )


def broker(name: str, slot: int, **status: Any) -> Broker:
    return Broker.from_manifest(
        {
            "metadata": {"name": f"orders-{name}-{slot}-aaaa", "namespace": "shop"},
            "spec": {"cluster": "orders", "group": name, "slot": slot, "uid": "aaaa"},
            "status": {"conditions": [condition("DiskHealthy", "True", "Accepted")], "incarnation": name * 4, **status},
        }
    )


def pod(made: ClusterChildren, member: Broker, **changes: Any) -> dict[str, Any]:
    """A pod that serves; keywords replace parts of its status."""
    manifest = copy.deepcopy(made.pod(member))
    manifest["metadata"]["uid"] = f"uid-{member.name}"
    manifest["spec"]["nodeName"] = PLACES[member.spec.group, member.spec.slot]
    manifest["status"] = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "broker", "restartCount": 0, "state": {"running": {}}}],
        **changes,
    }
    return manifest


def claim(made: ClusterChildren, member: Broker) -> dict[str, Any]:
    """A claim that has its volume."""
    manifest = made.claim(member)
    manifest["spec"]["volumeName"] = _volumes()[member.spec.group, member.spec.slot]
    return manifest


def _volumes() -> dict[tuple[str, int], str]:
    return {(group, slot): f"volume-{group}-{slot}" for group, slot in PLACES}


def topic(name: str, state: str = "Healthy", **status: Any) -> Topic:
    return Topic.from_manifest(
        {
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"cluster": "orders"},
            "status": {"state": state, **status},
        }
    )


def consumer_group(name: str, state: str, lag: str = "", **status: object) -> ConsumerGroup:
    return ConsumerGroup.from_manifest(
        {
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"cluster": "orders", "topic": "events"},
            "status": {"state": state, "lagBucket": lag, **status},
        }
    )


def operator_pod(ready: bool = True, namespace: str = "seriatim-system", watched: str = "") -> dict[str, Any]:
    environment = [{"name": "SERIATIM_OPERATOR_WATCH_NAMESPACES", "value": watched}]
    return {
        "metadata": {"name": "seriatim-operator-0", "namespace": namespace},
        "spec": {"containers": [{"name": "operator", "env": environment}]},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def etcd_pod(number: int = 0, *, ready: bool = True, waiting: str = "", preparing: str = "") -> dict[str, Any]:
    """A member of the chart's etcd; `waiting` is why its container does not run, `preparing` the one before that."""
    because = {"etcd": waiting or ("PodInitializing" if preparing else ""), "member": preparing}
    states = {name: {"waiting": {"reason": why}} if why else {} for name, why in because.items()}
    return {
        "metadata": {"name": f"etcd-{number}", "namespace": "shop", "uid": f"uid-etcd-{number}"},
        "spec": {"subdomain": "etcd"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "initContainerStatuses": [{"name": "member", "state": states["member"]}],
            "containerStatuses": [{"name": "etcd", "state": states["etcd"]}],
        },
    }


def lease(renewed: str = "2026-11-20T11:59:58.000000Z") -> dict[str, Any]:
    return {"metadata": {"name": "seriatim-operator", "namespace": "seriatim-system"}, "spec": {"renewTime": renewed}}


def secrets(whose: BrokerCluster) -> dict[str, dict[str, Any]]:
    made = {name: tls_secret(whose, name, held.data, held.changed_at) for name, held in _PLAN.writes.items()}
    return {**made, "orders-ca": tls_secret(whose, "orders-ca", pki.authority_data(_AUTHORITY))}


def healthy(**changes: Any) -> Look:
    """Three groups on three nodes, all well; keywords replace parts of the look."""
    whose = changes.pop("cluster", None) or cluster()
    make = ClusterChildren(whose, "seriatim.dev/broker:dev", "seriatim-system")
    brokers = tuple(broker(name, slot) for name, slot in PLACES)
    pods = {each.name: pod(make, each) for each in brokers}
    look = Look(
        cluster=whose,
        now=NOW,
        groups=tuple(group(name, heads=4, segments=9) for name in GROUPS),
        brokers=brokers,
        pods={name: pod_view(manifest) for name, manifest in pods.items()},
        pod_manifests=pods,
        claims={each.name: claim(make, each) for each in brokers},
        volumes={name: VolumeView(name, frozenset({PLACES[place]})) for place, name in _volumes().items()},
        nodes={
            name: NodeView(name, name, is_ready=True, is_leaving=False, is_out_of_service=False)
            for name in ("n1", "n2", "n3")
        },
        storage_class=ClassView("local-nvme", waits_for_consumer=True, can_expand=False),
        budgets={f"orders-{name}": make.budget(name, 1) for name in GROUPS},
        policies={"orders-brokers": next(m for m in make.shared() if m["kind"] == "NetworkPolicy")},
        secrets=secrets(whose),
        topics=(topic("events"), topic("bills")),
        operator_pods=(operator_pod(),),
        leases={"seriatim-system/seriatim-operator": lease()},
    )
    return dataclasses.replace(look, **changes)


def with_pod(look: Look, name: str, **status: Any) -> Look:
    """The look with another state of one pod."""
    manifest = copy.deepcopy(look.pod_manifests[name])
    manifest["status"] |= status
    pods = {**look.pod_manifests, name: manifest}
    return dataclasses.replace(look, pod_manifests=pods, pods={n: pod_view(m) for n, m in pods.items()})
