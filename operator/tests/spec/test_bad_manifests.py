"""Manifests as users write them, with one mistake each: the API server answers with one error, which says what to do.

`test_validation` spoils one field after another. These are whole files, and the answer is all that an administrator
sees. What only the operator can see (an object that is not there) is in `reconcile/test_bad_specs.py`.
"""

from __future__ import annotations

import json

import pytest
import yaml

from ..api_server import Answer, ApiServer
from .objects import create

HEAD = "apiVersion: seriatim.dev/v1alpha1\n"


def cluster(spec: str, name: str = "orders", groups: int = 2) -> str:
    """A BrokerCluster with these lines more."""
    return f"""{HEAD}kind: BrokerCluster
metadata: {{name: {name}}}
spec:
  groups: {groups}
  etcd: {{endpoints: [etcd-0.etcd.shop.svc:2379]}}
  storage: {{storageClassName: local-nvme, size: 20Gi}}
  {spec}
"""


def topic(spec: str) -> str:
    """A Topic of that cluster with these lines more."""
    return f"{HEAD}kind: Topic\nmetadata: {{name: payments}}\nspec:\n  cluster: orders\n  {spec}\n"


def group(spec: str) -> str:
    """A ConsumerGroup of that topic with these lines more."""
    head = f"{HEAD}kind: ConsumerGroup\nmetadata: {{name: billing}}\n"
    return f"{head}spec:\n  cluster: orders\n  topic: payments\n  {spec}\n"


def external(spec: str) -> str:
    """A BrokerCluster that is reached from outside."""
    return cluster(f"external: {{{spec}}}")


MANIFESTS: dict[str, tuple[str, str]] = {
    # ---- a cluster ----
    "replicas in place of groups": (cluster("replicas: 3"), 'unknown field "spec.replicas"'),
    "no group at all": (cluster("", groups=0), "should be greater than or equal to 1"),
    "one copy of each message": (cluster("membersPerGroup: 1"), "should be greater than or equal to 2"),
    "the name of another one's Service": (
        cluster("", "orders-brokers"),
        "does not end with -brokers",
    ),
    "a scheme before etcd": (
        cluster("").replace("etcd-0.", "https://etcd-0."),
        "without a scheme, such as etcd-0.etcd.shop.svc:2379",
    ),
    "the unit of a disk maker": (cluster("").replace("20Gi", "20GB"), "such as 100Gi, or 500m for processors"),
    "a disk below the reserve": (cluster("").replace("20Gi", "2Gi"), "at least 4Gi"),
    "an image with a scheme": (cluster("image: https://seriatim.dev/broker:1"), "registry/name:tag"),
    "an image in capitals": (cluster("image: Seriatim/Broker"), "with small letters in the name"),
    "an authority without TLS": (cluster("tls: {enabled: false, caSecret: mine}"), "leave caSecret out"),
    "a number as a setting": (cluster("settings: {heal_after_s: 300}"), 'must be of type string: "integer"'),
    "a setting that there is not": (cluster('settings: {heal_after: "300"}'), "there is no such setting"),
    "a heartbeat above the lease": (cluster('settings: {heartbeat_ms: "300"}'), "must be below serve_lease_ms"),
    "half a byte of memory": (
        cluster("podTemplate: {resources: {limits: {memory: 500m}}}"),
        "m means a thousandth of a byte; write Mi or Gi",
    ),
    "a request above its limit": (
        cluster("podTemplate: {resources: {requests: {cpu: 4}, limits: {cpu: 2}}}"),
        "lower the request or raise the limit",
    ),
    "true as a label": (cluster("podTemplate: {nodeSelector: {ssd: true}}"), 'must be of type string: "boolean"'),
    "a toleration of nothing": (cluster("podTemplate: {tolerations: [{effect: NoSchedule}]}"), "operator: Exists"),
    "a node with more than many processors": (
        cluster(
            "podTemplate: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
            "{nodeSelectorTerms: [{matchExpressions: [{key: cpus, operator: Gt, values: [many]}]}]}}}}"
        ),
        "Gt and Lt compare with one whole number",
    ),
    "a setting in the environment": (
        cluster("podTemplate: {env: [{name: SERIATIM_HEARTBEAT_MS, value: '100'}]}"),
        "write a broker's settings into spec.settings",
    ),
    "the operator's label": (
        cluster("podTemplate: {labels: {app.kubernetes.io/name: mine}}"),
        "belong to the operator: choose another prefix",
    ),
    "a container of its own": (cluster("podTemplate: {containers: []}"), 'unknown field "spec.podTemplate.containers"'),
    "clients chosen without a policy": (
        cluster("networkPolicy: {enabled: false, clientSelector: {}}"),
        "leave clientSelector out, or write enabled: true",
    ),
    # ---- access from outside ----
    "an Ingress": (external("type: Ingress"), 'supported values: "NodePort", "LoadBalancer"'),
    "an address of nodes for a load balancer": (
        external("type: LoadBalancer, nodeAddressType: ExternalIP"),
        "nodeAddressType is for type: NodePort",
    ),
    "a broker of a group that is not there": (
        external("type: NodePort, brokers: [{broker: g2-0}]"),
        "Correct the name, or raise groups first",
    ),
    "a slot that is not there": (external("type: NodePort, brokers: [{broker: g0-2}]"), "write g0-0 and g0-1"),
    "a node port twice": (
        external("type: NodePort, brokers: [{broker: g0-0, nodePort: 31000}, {broker: g0-1, nodePort: 31000}]"),
        "a node port belongs to one Service only",
    ),
    "the node port of the bootstrap": (
        external("type: NodePort, bootstrap: {nodePort: 31000}, brokers: [{broker: g0-0, nodePort: 31000}]"),
        "a node port belongs to one Service only",
    ),
    "one address for two brokers": (
        external(
            "type: LoadBalancer, brokers: [{broker: g0-0, advertisedHost: k.example}, "
            "{broker: g0-1, advertisedHost: k.example}]"
        ),
        "clients would reach one of them for both",
    ),
    # ---- topics ----
    "days in words": (topic("retention: 3 days"), "units d, h, m or s, such as 72h or 7d, or Forever"),
    "hours without a unit": (topic("retention: 72"), 'must be of type string: "integer"'),
    "a size for nothing": (topic("retentionSize: 1Ki"), "keep at least 1Mi"),
    "a limit of unread messages that are not kept": (topic("unreadMax: 30d"), "write retainUnread: true"),
    "a message above its batch": (topic("batchSizeBytesMax: 4096"), "a message goes into a batch"),
    "a topic with a path": (topic("name: shop/payments"), "a name has letters, digits, dots, _ and -"),
    "small letters for a word": (topic("durability: flushed"), 'supported values: "Flushed", "Replicated"'),
    # ---- consumer groups ----
    "a retry of one who reads alone": (group("retry: {attempts: 3}"), "only the modes KeyOrdered and Shared"),
    "dead letters that no message reaches": (
        group("mode: KeyOrdered\n  retry: {whenExhausted: DeadLetter}"),
        "ParkKey and DeadLetter need attempts",
    ),
    "keys parked where there are none": (
        group("mode: Shared\n  retry: {attempts: 5, whenExhausted: ParkKey}"),
        "mode Shared parks no key",
    ),
    "a retry of what is lost": (
        group("mode: Shared\n  delivery: AtMostOnce\n  retry: {attempts: 5}"),
        "AtMostOnce has no retry",
    ),
    "dead letters into the source": (
        group("mode: Shared\n  retry: {attempts: 5, whenExhausted: DeadLetter}\n  deadLetterTopic: payments"),
        "write another name as deadLetterTopic",
    ),
    "one delay that should grow": (
        group("mode: Shared\n  retry: {attempts: 5, delays: [1s]}"),
        'write delays: ["1s", "5m"]',
    ),
    "a day without an hour": (group('start: "2026-01-31"'), "a time with its zone, such as 2026-01-31T08:00:00Z"),
    "a month that there is not": (group('start: "2026-13-01T08:00:00Z"'), "such as 2026-01-31T08:00:00Z"),
    "a rewind without a name": (group("rewind: {to: Earliest}"), "spec.rewind.requestId: Required value"),
    "a spread of keys": (group("mode: KeyOrdered\n  spread: Even"), "leave spread out"),
}


def complaints(answer: Answer) -> list[str]:
    """The errors in an answer, each by itself. A note that other rules were not checked meanwhile is no error."""
    causes = (answer.body.get("details") or {}).get("causes") or []
    told = [f"{cause['field']}: {cause['message']}" for cause in causes]
    return [text for text in told if "rules were not checked" not in text] or [answer.complaint]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_bad_manifest_gets_one_error_that_says_what_to_do(name: str, api_server: ApiServer) -> None:
    text, advice = MANIFESTS[name]
    answer = create(api_server, json.loads(json.dumps(yaml.safe_load(text))), is_kept=False)
    assert answer.status in (400, 422), "the API server takes it"
    found = complaints(answer)
    assert len(found) == 1, found
    assert advice in found[0]


def test_the_same_manifests_without_the_mistake_are_taken(api_server: ApiServer) -> None:
    right = [
        cluster("image: localhost:5000/a/b-c_d.e:1.0@sha256:" + "0" * 64),
        cluster("image: broker"),
        external(
            "type: NodePort, brokers: [{broker: g0-0, advertisedHost: k.example, nodePort: 31000}, "
            "{broker: g0-1, advertisedHost: k.example, nodePort: 31001}]"
        ),
        external(
            "type: LoadBalancer, brokers: [{broker: g0-0, advertisedHost: k.example, advertisedPort: 1}, "
            "{broker: g0-1, advertisedHost: k.example, advertisedPort: 2}]"
        ),
        group('start: "2026-12-31T23:59:59.5+01:00"'),
        group("mode: Shared\n  retry: {attempts: 5, whenExhausted: DeadLetter}"),
    ]
    for text in right:
        assert create(api_server, yaml.safe_load(text), is_kept=False).complaint == "", text
