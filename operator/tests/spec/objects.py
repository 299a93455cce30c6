"""Small objects of each kind that the API server takes, to be spoilt one field at a time."""

from __future__ import annotations

import copy
from typing import Any

from seriatim_operator.spec import KINDS, Resource
from seriatim_operator.spec.base import API_GROUP, API_VERSION

from ..api_server import Answer, ApiServer

NAMESPACE = "default"

GOOD: dict[str, dict[str, Any]] = {
    "BrokerCluster": {
        "metadata": {"name": "orders"},
        "spec": {
            "groups": 2,
            "etcd": {"endpoints": ["etcd-0.etcd.shop.svc:2379"]},
            "storage": {"storageClassName": "local-nvme", "size": "20Gi"},
        },
    },
    "BrokerGroup": {"metadata": {"name": "orders-g0"}, "spec": {"cluster": "orders", "group": "g0"}},
    "Broker": {
        "metadata": {"name": "orders-g0-1-x7k2"},
        "spec": {"cluster": "orders", "group": "g0", "slot": 1, "uid": "x7k2"},
    },
    "Topic": {"metadata": {"name": "events"}, "spec": {"cluster": "orders"}},
    "ConsumerGroup": {"metadata": {"name": "billing"}, "spec": {"cluster": "orders", "topic": "events"}},
}

GONE = object()
"""In the place of a value: the field is left out."""


def kind_of(name: str) -> type[Resource]:
    """The kind of that name."""
    return next(kind for kind in KINDS if name == kind.KIND)


def good(kind: str, name: str = "", /, *, namespace: str = "", **spec: object) -> dict[str, Any]:
    """An object that the API server takes; keywords are fields of its spec."""
    made = {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": kind, **copy.deepcopy(GOOD[kind])}
    made["metadata"] |= {key: value for key, value in (("name", name), ("namespace", namespace)) if value}
    made["spec"] |= spec
    return made


def changed(manifest: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The object with another value at a path such as `spec.etcd.endpoints`; holders are made."""
    made = copy.deepcopy(manifest)
    holder = made
    *way, last = path.split(".")
    for step in way:
        holder = holder.setdefault(step, {})
    if value is GONE:
        holder.pop(last, None)
    else:
        holder[last] = value
    return made


def path_of(kind: str, name: str = "", part: str = "") -> str:
    """Where objects of the kind are, one of them, or a part of it."""
    whole = f"/apis/{API_GROUP}/{API_VERSION}/namespaces/{NAMESPACE}/{kind_of(kind).PLURAL}"
    return "/".join(step for step in (whole, name, part) if step)


def create(server: ApiServer, manifest: dict[str, Any], *, is_kept: bool = True) -> Answer:
    """Make the object, or only ask whether it would be made."""
    query = "?fieldValidation=Strict" + ("" if is_kept else "&dryRun=All")
    return server.call("POST", f"{path_of(manifest['kind'])}{query}", manifest)


def update(server: ApiServer, manifest: dict[str, Any]) -> Answer:
    """Ask whether the object could be changed so."""
    path = path_of(manifest["kind"], manifest["metadata"]["name"])
    return server.call("PUT", f"{path}?dryRun=All&fieldValidation=Strict", manifest)
