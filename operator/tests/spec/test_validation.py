"""What the API server refuses, and whether it says what to do.

One line for each way in which a field can be wrong: the path, the value, a part of the message. `kubectl` shows the
message after the field's path, so a message need not repeat that.
"""

from __future__ import annotations

import pytest
from seriatim_operator.spec import KINDS, Resource

from ..api_server import ApiServer
from .objects import GONE, changed, create, good

LONG = "x" * 5000


def keyed(dead_letter_topic: str | None = None, topic: str = "events", **retry: object) -> dict[str, object]:
    """The spec of a ConsumerGroup with a retry policy."""
    spec: dict[str, object] = {"cluster": "orders", "topic": topic, "mode": "KeyOrdered", "retry": retry}
    return spec if dead_letter_topic is None else {**spec, "deadLetterTopic": dead_letter_topic}


CLUSTER: list[tuple[str, object, str]] = [
    ("metadata.name", "a" * 41, "at most 40 small letters"),
    ("metadata.name", "1orders", "begins with a letter"),
    ("metadata.name", "or.ders", "small letters, digits and -"),
    ("metadata.name", "orders-brokers", "does not end with -brokers"),
    ("metadata.name", "orders-external", "does not end with -brokers"),
    ("metadata.name", "orders-g0-1", "does not end with -brokers"),
    ("spec", GONE, "spec: Required value"),
    ("spec.groups", GONE, "spec.groups: Required value"),
    ("spec.groups", 0, "should be greater than or equal to 1"),
    ("spec.groups", 1001, "should be less than or equal to 1000"),
    ("spec.groups", "two", "must be of type integer"),
    ("spec.membersPerGroup", 1, "should be greater than or equal to 2"),
    ("spec.membersPerGroup", 6, "should be less than or equal to 5"),
    ("spec.image", "a broker", "registry/name:tag"),
    ("spec.image", "", "at least 1 chars long"),
    ("spec.etcd", GONE, "spec.etcd: Required value"),
    ("spec.etcd.endpoints", [], "at least 1 items"),
    ("spec.etcd.endpoints", [f"etcd-{n}:2379" for n in range(10)], "at most 9 items"),
    ("spec.etcd.endpoints", ["http://etcd:2379"], "host:port, without a scheme"),
    ("spec.etcd.endpoints", ["etcd"], "host:port"),
    ("spec.etcd.endpoints", ["etcd:0"], "host:port"),
    ("spec.etcd.endpoints", ["etcd:65536"], "at most 65535"),
    ("spec.etcd.endpoints", ["etcd:2379", "etcd:2379"], "named once"),
    ("spec.etcd.tlsSecret", "Not A Name", "the name of a Kubernetes object"),
    ("spec.external", {}, "spec.external.type: Required value"),
    ("spec.external", {"type": "Ingress"}, "supported values"),
    (
        "spec.external",
        {"type": "LoadBalancer", "nodeAddressType": "ExternalIP"},
        "nodeAddressType is for type: NodePort",
    ),
    ("spec.external", {"type": "NodePort", "bootstrap": {"advertisedHost": "https://orders"}}, "without a scheme"),
    ("spec.external", {"type": "NodePort", "bootstrap": {"nodePort": 0}}, "greater than or equal to 1"),
    ("spec.external", {"type": "NodePort", "brokers": [{"broker": "orders"}]}, "such as g0-1"),
    ("spec.external", {"type": "NodePort", "brokers": [{"broker": "g01-1"}]}, "such as g0-1"),
    ("spec.external", {"type": "NodePort", "brokers": [{"broker": "g0-2"}]}, "slots begin with 0"),
    ("spec.external", {"type": "NodePort", "brokers": [{"broker": "g2-0"}]}, "raise groups first"),
    ("spec.external", {"type": "NodePort", "brokers": [{"broker": "g0-1"}, {"broker": "g0-1"}]}, "Duplicate value"),
    ("spec.external", {"type": "NodePort", "annotations": {"seriatim.dev/x": "y"}}, "belong to the operator"),
    ("spec", good("BrokerCluster")["spec"] | {"groups": 60, "external": {"type": "NodePort"}}, "at most 100 brokers"),
    ("spec.storage", GONE, "spec.storage: Required value"),
    ("spec.storage.storageClassName", GONE, "storageClassName: Required value"),
    ("spec.storage.storageClassName", "Fast_Disks", "the name of a Kubernetes object"),
    ("spec.storage.size", GONE, "size: Required value"),
    ("spec.storage.size", "large", "such as 100Gi"),
    ("spec.storage.size", "1Gi", "at least 4Gi"),
    ("spec.tls.enabled", "yes", "must be of type boolean"),
    ("spec.tls.caSecret", "My CA", "the name of a Kubernetes object"),
    ("spec.tls.certificateDays", 0, "greater than or equal to 1"),
    ("spec.settings", {"Heal After": "300"}, "there is no such setting; the settings are balance_floor_bytes_per_s, "),
    ("spec.settings", {"heal_after": "300"}, "head_cache_size_bytes_max, heal_after_s, heartbeat_ms"),
    ("spec.settings", {"listen": "0.0.0.0:1"}, "there is no such setting"),
    ("spec.settings", {"heal_after_s": 300}, "must be of type string"),
    ("spec.settings", {"heal_after_s": "0"}, "heal_after_s must be a number above 0"),
    ("spec.settings", {"heal_after_s": "soon"}, "heal_after_s must be a number above 0"),
    ("spec.settings", {"heal_after_s": "-1"}, "heal_after_s must be a number above 0"),
    ("spec.settings", {"balance_threshold": "10.5"}, "balance_threshold must be a number above 0 and at most 10"),
    ("spec.settings", {"heartbeat_ms": "12.5"}, "heartbeat_ms must be a whole number of at least 10"),
    ("spec.settings", {"heartbeat_ms": "9"}, "heartbeat_ms must be a whole number of at least 10"),
    ("spec.settings", {"batch_size_bytes_max": "1048577"}, "at least 1024 and at most 1048576"),
    ("spec.settings", {"log_level": "loud"}, "log_level must be one of debug, info, warning, error"),
    ("spec.settings", {"heartbeat_ms": "300"}, "heartbeat_ms must be below serve_lease_ms"),
    ("spec.settings", {"serve_lease_ms": "100"}, "heartbeat_ms must be below serve_lease_ms"),
    ("spec.settings", {f"setting_{n}": "" for n in range(65)}, "at most 64 items"),
    ("spec.changeApproval", "Maybe", 'supported values: "Automatic", "Manual"'),
    ("spec.spreadMending", "Maybe", 'supported values: "Manual", "Automatic"'),
    ("spec.paused", "true", "must be of type boolean"),
    ("spec.podTemplate.labels", {"seriatim.dev/group": "g7"}, "choose another prefix"),
    ("spec.podTemplate.labels", {"app.kubernetes.io/name": "mine"}, "choose another prefix"),
    ("spec.podTemplate.annotations", {"seriatim.dev/template-hash": "0"}, "choose another prefix"),
    ("spec.podTemplate.resources.requests", {"memory": "much"}, "such as 2, 500m or 1Gi"),
    ("spec.podTemplate.resources.requests", {"cpu": "-1"}, "such as 2, 500m or 1Gi"),
    ("spec.podTemplate.resources.limits", {"cpu": -1}, "such as 2, 500m or 1Gi"),
    ("spec.podTemplate.resources.limits", {"cpu": True}, "must be of type"),
    ("spec.podTemplate.resources.requests", {"memory": "500m"}, "requests.memory is at least 64Mi"),
    ("spec.podTemplate.resources.limits", {"memory": "0.5"}, "limits.memory is at least 64Mi"),
    ("spec.podTemplate.resources.limits", {"memory": 512}, "limits.memory is at least 64Mi"),
    ("spec.podTemplate.tolerations", [{"operator": "Like"}], 'supported values: "Equal", "Exists"'),
    ("spec.podTemplate.tolerations", [{"effect": "NoRun"}], "supported values"),
    ("spec.podTemplate.labels", {"team": "a b"}, "begins and ends with a letter or digit"),
    ("spec.podTemplate.labels", {"a b": "team"}, "keys have letters"),
    ("spec.podTemplate.annotations", {"a b": "team"}, "keys have letters"),
    ("spec.podTemplate.nodeSelector", {"disk": "-"}, "begins and ends with a letter or digit"),
    ("spec.podTemplate.nodeSelector", {"/disk": "x"}, "keys have letters"),
    ("spec.podTemplate.resources.limits", {"c p u": 1}, "keys have letters"),
    ("spec.podTemplate.resources", {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}, "lower the request or raise"),
    ("spec.podTemplate.tolerations", [{"key": "a", "operator": "Exists", "value": "b"}], "leave value out"),
    ("spec.podTemplate.tolerations", [{"effect": "NoSchedule"}], "write operator: Exists"),
    ("spec.podTemplate.tolerations", [{"key": "a", "tolerationSeconds": 5}], "needs effect: NoExecute"),
    ("spec.podTemplate.tolerations", [{"key": "a b"}], "a key has letters"),
    ("spec.podTemplate.affinity", {"nodes": []}, 'unknown field "spec.podTemplate.affinity.nodes"'),
    (
        "spec.podTemplate.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In"}]}]},
        "the others need values",
    ),
    ("spec.podTemplate.topologySpreadConstraints", [{"maxSkew": 1}], "topologyKey: Required value"),
    ("spec.podTemplate.topologySpreadConstraints", [{"topologyKey": "a"}] * 2, "Duplicate value"),
    ("spec.podTemplate.zoneKey", "a zone", "a key has letters"),
    ("spec.podTemplate.env", [{"name": "SERIATIM_DATA", "value": "/x"}], "spec.settings"),
    ("spec.podTemplate.env", [{"name": "1ST"}], "begins with no digit"),
    ("spec.podTemplate.env", [{"name": "A"}, {"name": "A"}], "Duplicate value"),
    ("spec.podTemplate.imagePullPolicy", "Sometimes", "supported values"),
    ("spec.podTemplate.imagePullSecrets", [{"name": "A B"}], "the name of a Kubernetes object"),
    ("spec.podTemplate.zoneKey", "", "at least 1 chars long"),
    ("spec.podTemplate.containers", [], 'unknown field "spec.podTemplate.containers"'),
    ("spec.nodeLossTimeoutSeconds", 5, "greater than or equal to 10"),
    ("spec.deletionPolicy", "Keep", 'supported values: "Retain", "Delete"'),
    ("spec.networkPolicy.clientSelector", {"matchExpressions": [{"key": "a", "operator": "Like"}]}, "supported values"),
    ("spec.networkPolicy.clientSelector", {"matchExpressions": [{"key": "a", "operator": "In"}]}, "need values"),
    ("spec.networkPolicy.clientSelector", {"matchLabels": {"a": "b c"}}, "begins and ends with a letter or digit"),
    ("spec.replicas", 3, 'unknown field "spec.replicas"'),
]

GROUP: list[tuple[str, object, str]] = [
    ("spec.cluster", GONE, "spec.cluster: Required value"),
    ("spec.group", GONE, "spec.group: Required value"),
    ("spec.group", "first", "called g0, g1 and so on"),
    ("spec.group", "g01", "called g0, g1 and so on"),
    ("spec.weight", 0, "should be greater than 0"),
    ("spec.weight", -1, "should be greater than 0"),
    ("spec.weight", 1001, "should be less than or equal to 1000"),
    ("spec.state", "Gone", 'supported values: "Active", "Cordoned", "Draining"'),
]

BROKER: list[tuple[str, object, str]] = [
    ("metadata.name", "mine", "leave Broker objects to the operator"),
    ("spec.cluster", "other", "leave Broker objects to the operator"),
    ("spec.group", "x", "called g0, g1 and so on"),
    ("spec.slot", -1, "greater than or equal to 0"),
    ("spec.slot", 16, "less than or equal to 15"),
    ("spec.slot", GONE, "spec.slot: Required value"),
    ("spec.uid", "X7K2", "four small letters or digits"),
    ("spec.uid", "x7k", "at least 4 chars long"),
    ("spec.replaces", LONG, "Too long"),
]

TOPIC: list[tuple[str, object, str]] = [
    ("metadata.name", "a" * 250, "write a shorter one into spec.name"),
    ("spec.cluster", GONE, "spec.cluster: Required value"),
    ("spec.cluster", "", "at least 1 chars long"),
    ("spec.cluster", "c" * 41, "Too long: may not be more than 40"),
    ("spec.name", "a/b", "letters, digits, dots, _ and -"),
    ("spec.name", ".a", "begins with no dot or -"),
    ("spec.name", "_stage", "are taken"),
    ("spec.name", "_seriatim.x", "are taken"),
    ("spec.name", "a" * 250, "Too long: may not be more than 249"),
    ("spec.partitions", 0, "greater than or equal to 1"),
    ("spec.partitions", 20_001, "less than or equal to 20000"),
    ("spec.partitions", 1.5, "must be of type integer"),
    ("spec.durability", "Sometimes", 'supported values: "Flushed", "Replicated"'),
    ("spec.retention", "3 days", "such as 72h or 7d, or Forever"),
    ("spec.retention", "-1h", "such as 72h or 7d, or Forever"),
    ("spec.retention", "0s", "at least 1s"),
    ("spec.retention", "99999999999d", "such as 72h or 7d, or Forever"),
    ("spec.retention", 72, "must be of type string"),
    ("spec.retentionSize", "much", "write a number with a unit"),
    ("spec.retentionSize", "100Ki", "keep at least 1Mi of a partition"),
    ("spec.retentionSize", "-1Gi", "keep at least 1Mi of a partition"),
    ("spec.retainUnread", "yes", "must be of type boolean"),
    ("spec.unreadMax", "7d", "write retainUnread: true"),
    ("spec.unreadSizeMax", "1Gi", "write retainUnread: true"),
    ("spec.unreadMax", "a week", "such as 72h or 7d, or Forever"),
    ("spec.batchSizeBytesMax", 1 << 21, "less than or equal to 1048576"),
    ("spec.batchSizeBytesMax", 10, "greater than or equal to 1024"),
    ("spec.batchSizeBytesMax", 1024, "lower messageSizeBytesMax, or raise batchSizeBytesMax"),
    ("spec.messageSizeBytesMax", 1 << 21, "less than or equal to 1048576"),
    ("spec.messageSizeBytesMax", 0, "greater than or equal to 1"),
    ("spec.attributes", {f"a{number}": "" for number in range(65)}, "must have at most 64 items"),
    ("spec.attributes", {"a": "x" * 4096}, "at most 4096 bytes together: shorten some"),
    ("spec.attributes", {"a": "\u00fc" * 2048}, "at most 4096 bytes together: shorten some"),
    ("spec.attributes", {"a b": ""}, "letters, digits, dots, _, - and /"),
    ("spec.attributes", {"": ""}, "letters, digits, dots, _, - and /"),
    ("spec.attributes", {"a" * 250: ""}, "at most 249 characters"),
    ("spec.attributes", {"seriatim.x": ""}, "names that begin with seriatim. are taken"),
    ("spec.attributes", {"a": 7}, "must be of type string"),
    ("spec.delayMax", "Forever", "such as 12h or 40d"),
    ("spec.delayMax", "-1h", "such as 12h or 40d"),
    ("spec.delayMax", 0, "must be of type string"),
    ("spec.delayedPendingMax", 0, "greater than or equal to 1"),
    ("spec.delayedPendingMax", 1.5, "must be of type integer"),
    ("spec.exclusiveOnly", "yes", "must be of type boolean"),
    ("spec.chainWidth", 0, "greater than or equal to 1"),
    ("spec.chainWidth", 17, "less than or equal to 16"),
    ("spec.deletionPolicy", "Orphan", 'supported values: "Retain", "Delete"'),
    ("spec.partition", 4, 'unknown field "spec.partition"'),
]

CONSUMER_GROUP: list[tuple[str, object, str]] = [
    ("metadata.name", "a" * 250, "write a shorter one into spec.group"),
    ("spec.cluster", GONE, "spec.cluster: Required value"),
    ("spec.topic", GONE, "spec.topic: Required value"),
    ("spec.topic", "a b", "letters, digits, dots, _ and -"),
    ("spec.group", "a b", "letters, digits, dots, _ and -"),
    ("spec.start", "Middle", "write Earliest, Latest, or a time with its zone"),
    ("spec.mode", "Sticky", 'supported values: "Exclusive", "KeyOrdered", "Shared"'),
    ("spec.delivery", "ExactlyOnce", 'supported values: "AtLeastOnce", "AtMostOnce"'),
    ("spec.retry", {}, "only the modes KeyOrdered and Shared have a retry policy"),
    ("spec", keyed(attempts=-1), "greater than or equal to 0"),
    ("spec", keyed(attempts=1_001), "less than or equal to 1000"),
    ("spec", keyed(backOff="Linear"), 'supported values: "Fixed", "Exponential", "List"'),
    ("spec", keyed(backOff="Fixed"), 'write delays: ["5s"]'),
    ("spec", keyed(backOff="Exponential", delays=["1s"]), "the first delay and the longest one"),
    ("spec", keyed(backOff="Exponential", delays=["5m", "1s"]), "is at least the first one"),
    ("spec", keyed(delays=[]), "at least 1 items"),
    ("spec", keyed(backOff="List", delays=["1s"] * 33), "at most 32 items"),
    ("spec", keyed(backOff="List", delays=["1d"]), "units h, m, s or ms"),
    ("spec", keyed(backOff="List", delays=["soon"]), "units h, m, s or ms"),
    ("spec", keyed(backOff="List", delays=["169h"]), "from 1ms to 168h"),
    ("spec", keyed(backOff="List", delays=["0s"]), "from 1ms to 168h"),
    ("spec", keyed(jitterPercent=101), "less than or equal to 100"),
    ("spec", keyed(whenExhausted="ParkKey"), "ParkKey and DeadLetter need attempts"),
    ("spec", keyed(whenExhausted="DeadLetter"), "such as attempts: 5"),
    ("spec", keyed(attempts=3, whenExhausted="ParkKey") | {"mode": "Shared"}, "mode Shared parks no key"),
    ("spec", keyed(whenExhausted="Drop"), 'supported values: "Block", "ParkKey", "DeadLetter"'),
    ("spec", keyed(grant="500ms"), "from 1s to 24h"),
    ("spec", keyed(grant="25h"), "from 1s to 24h"),
    ("spec", keyed(attempts=3) | {"delivery": "AtMostOnce"}, "AtMostOnce has no retry"),
    ("spec", keyed(attempts=0, whenExhausted="ParkKey") | {"delivery": "AtMostOnce"}, "AtMostOnce has no retry"),
    ("spec", keyed(backOff="Fixed", delays=["1s"]) | {"delivery": "AtMostOnce"}, "AtMostOnce has no retry"),
    ("spec", keyed(jitterPercent=0) | {"delivery": "AtMostOnce"}, "AtMostOnce has no retry"),
    ("spec", keyed(attempt=3), 'unknown field "spec.retry.attempt"'),
    ("spec.deadLetterTopic", "letters", "write retry.whenExhausted: DeadLetter"),
    ("spec", keyed("letters", attempts=3, whenExhausted="ParkKey"), "write retry.whenExhausted: DeadLetter"),
    ("spec", keyed("events", attempts=3, whenExhausted="DeadLetter"), "write another name as deadLetterTopic"),
    ("spec", keyed("a b", attempts=3, whenExhausted="DeadLetter"), "letters, digits, dots, _ and -"),
    (
        "spec",
        keyed(topic="t" * 237, attempts=3, whenExhausted="DeadLetter"),
        "write a shorter name into spec.deadLetterTopic",
    ),
    ("spec.deletionPolicy", "Orphan", 'supported values: "Retain", "Delete"'),
]

TABLE = [
    pytest.param(kind, path, value, message, id=f"{kind}-{path}-{str(value)[:20] if value is not GONE else 'missing'}")
    for kind, rows in (
        ("BrokerCluster", CLUSTER),
        ("BrokerGroup", GROUP),
        ("Broker", BROKER),
        ("Topic", TOPIC),
        ("ConsumerGroup", CONSUMER_GROUP),
    )
    for path, value, message in rows
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
def test_what_the_table_spoils_is_good(kind: type[Resource], api_server: ApiServer) -> None:
    answer = create(api_server, good(kind.KIND), is_kept=False)
    assert answer.complaint == ""


@pytest.mark.parametrize(("kind", "path", "value", "message"), TABLE)
def test_a_wrong_value_is_refused_with_advice(
    kind: str, path: str, value: object, message: str, api_server: ApiServer
) -> None:
    answer = create(api_server, changed(good(kind), path, value), is_kept=False)
    assert message in answer.complaint
    assert answer.status in (400, 422)


GOOD_VALUES = [
    ("BrokerCluster", "spec.etcd.endpoints", ["[fd00::1]:2379", "10.0.0.1:2379"]),
    ("BrokerCluster", "spec.settings", {"heal_after_s": "60", "log_level": "debug"}),
    ("BrokerCluster", "spec.settings", {"heal_after_s": "0.25", "heartbeat_ms": "300", "serve_lease_ms": "301"}),
    ("BrokerCluster", "spec.settings", {"batch_size_bytes_max": "1048576", "balance_moves_per_s": "100"}),
    ("BrokerCluster", "spec.podTemplate.resources.limits", {"cpu": "1500m", "memory": "2Gi"}),
    ("BrokerCluster", "spec.podTemplate.resources.requests", {"cpu": 2, "memory": "2Gi"}),
    (
        "BrokerCluster",
        "spec.podTemplate.resources",
        {"requests": {"cpu": "0.5"}, "limits": {"cpu": 1, "memory": "1Gi"}},
    ),
    ("BrokerCluster", "spec.podTemplate.resources.limits", {"example.com/disk": 1}),
    ("BrokerCluster", "spec.podTemplate.tolerations", [{"operator": "Exists"}]),
    ("BrokerCluster", "spec.podTemplate.tolerations", [{"key": "dedicated", "value": "brokers"}]),
    (
        "BrokerCluster",
        "spec.podTemplate.tolerations",
        [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
    ),
    ("BrokerCluster", "spec.podTemplate.labels", {"a.b/c_d": ""}),
    (
        "BrokerCluster",
        "spec.networkPolicy.clientSelector",
        {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}, {"key": "b", "operator": "Exists"}]},
    ),
    ("BrokerCluster", "spec.podTemplate.labels", {"team.example/name": "orders"}),
    ("BrokerCluster", "spec.networkPolicy.clientSelector", {}),
    ("BrokerCluster", "spec.external", {"type": "LoadBalancer", "bootstrap": {"advertisedHost": "2001:db8::1"}}),
    (
        "BrokerCluster",
        "spec.external",
        {"type": "NodePort", "nodeAddressType": "InternalIP", "brokers": [{"broker": "g0-1", "nodePort": 31001}]},
    ),
    ("BrokerCluster", "spec.podTemplate.resources.limits", {"memory": "64Mi"}),
    ("BrokerGroup", "spec.group", "g999"),
    ("BrokerGroup", "spec.weight", 0.5),
    ("Topic", "spec.name", "Order_Events.v2"),
    ("Topic", "spec.retention", "Forever"),
    ("Topic", "spec.retention", "1d12h"),
    ("Topic", "spec.retention", "30s"),
    ("Topic", "spec.retentionSize", "10Gi"),
    ("Topic", "spec.retainUnread", True),
    ("Topic", "spec.partitions", 20_000),
    ("Topic", "spec.attributes", {}),
    ("Topic", "spec.delayMax", "0s"),
    ("Topic", "spec.delayMax", "366d"),
    ("Topic", "spec.delayedPendingMax", 1),
    ("Topic", "spec.attributes", {f"a{number}/_-.": "two\nlines" for number in range(64)}),
    ("Topic", "spec.attributes", {"a" * 249: "x" * (4096 - 249)}),
    ("Topic", "spec.attributes", {"_a": "\u00fc" * 2047}),
    ("ConsumerGroup", "spec.group", "Billing_1"),
    ("ConsumerGroup", "spec.mode", "Shared"),
    ("ConsumerGroup", "spec.delivery", "AtMostOnce"),
    ("ConsumerGroup", "spec", keyed()),
    ("ConsumerGroup", "spec", keyed(grant="1m") | {"delivery": "AtMostOnce"}),
    ("ConsumerGroup", "spec", keyed(backOff="Fixed", delays=["500ms"], attempts=1_000, grant="24h")),
    (
        "ConsumerGroup",
        "spec",
        keyed(backOff="List", delays=["1ms", "1m30s", "168h"], whenExhausted="ParkKey", attempts=0),
    ),
    ("ConsumerGroup", "spec", keyed(backOff="Exponential", delays=["1s", "1s"], jitterPercent=0, grant="1s")),
    ("ConsumerGroup", "spec", keyed("letters", whenExhausted="DeadLetter", attempts=3)),
    ("ConsumerGroup", "spec", keyed(topic="t" * 236, whenExhausted="DeadLetter", attempts=0)),
]


@pytest.mark.parametrize(("kind", "path", "value"), GOOD_VALUES)
def test_what_is_unusual_but_right_is_taken(kind: str, path: str, value: object, api_server: ApiServer) -> None:
    assert create(api_server, changed(good(kind), path, value), is_kept=False).complaint == ""
