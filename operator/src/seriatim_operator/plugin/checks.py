"""Checks of everything around the brokers: Kubernetes, operator, storage class, nodes, budgets, policies, topics."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timedelta
from typing import Any, Final

from ..plan.observed import IMAGE_REASONS
from ..resources.names import brokers_name, group_object_name, selector_labels
from .findings import Finding, bad, unknown, warning, well
from .look import Look, etcd_hosts, etcd_services

KUBERNETES_MINOR_MIN: Final = 30
"""The first in which the rules of our definitions (CEL with quantities, and what they compare) are final."""

LEASE_AGE_MAX: Final = timedelta(seconds=60)
"""An operator renews its Lease every few seconds; one that is this old has none that acts."""


def check_kubernetes(version: str) -> list[Finding]:
    """Whether this Kubernetes is new enough."""
    found = re.match(r"v1\.(\d+)", version)
    if found is None or int(found.group(1)) >= KUBERNETES_MINOR_MIN:
        return [well("Kubernetes", version)]
    return [bad("Kubernetes", f"{version} is too old", f"upgrade to v1.{KUBERNETES_MINOR_MIN} or newer")]


def check_operator(look: Look) -> list[Finding]:
    """Whether an operator acts. Without one brokers serve and fail over, but nothing changes."""
    about = "operator"
    if "Pod" in look.unreadable:
        return [unknown(about, "pods of other namespaces may not be read", "ask somebody who may")]
    ready = [pod for pod in look.operator_pods if _is_ready(pod)]
    if not look.operator_pods:
        return [bad(about, "there is no pod of it in any namespace", "helm install the operator")]
    if not ready:
        names = ", ".join(f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in look.operator_pods)
        return [bad(about, f"no pod of it is ready ({names})", "kubectl logs of that pod")]
    findings = [well(about, f"{len(ready)} pods are ready")]
    leases = [lease for lease in look.leases.values() if "seriatim" in lease["metadata"]["name"]]
    for lease in leases:
        age = look.now - _time(lease["spec"].get("renewTime"))
        name = lease["metadata"]["name"]
        if age > LEASE_AGE_MAX:
            findings.append(
                bad(about, f"its Lease {name} is {int(age.total_seconds())} s old", "kubectl logs of its pod")
            )
    generation = look.cluster.metadata.generation
    if look.cluster.status.observed_generation < generation:
        seen = look.cluster.status.observed_generation
        findings.append(
            warning(
                about,
                f"it has acted on generation {seen} of {generation}",
                "wait a moment; then kubectl logs of its pod",
            )
        )
    return findings


def check_etcd(look: Look) -> list[Finding]:
    """Whether the members of the chart's etcd run."""
    if not look.etcd_pods:
        return []
    findings: list[Finding] = []
    for pod in look.etcd_pods:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        about, container, waiting = f"etcd pod {namespace}/{name}", *_waiting(pod)
        if waiting in IMAGE_REASONS:
            # Its StatefulSet changes one member at a time, and waits for each until it is ready: for ever where most
            # have no image, for no member is ready without most of them.
            delete = f"kubectl -n {namespace} delete pod {name}"
            remedy = f"give the chart the right image; if this pod still waits for the wrong one then, {delete}"
            findings.append(bad(about, f"container {container} has no image ({waiting})", remedy))
        elif not _is_ready(pod):
            told = "it is not ready" + (f" ({waiting})" if waiting else "")
            findings.append(bad(about, told, f"kubectl -n {namespace} describe pod {name}; kubectl logs of it"))
    named = {host.partition(".")[0] for host in etcd_hosts(look.cluster)}
    missing = named - {pod["metadata"]["name"] for pod in look.etcd_pods} - set(etcd_services(look.cluster))
    findings += [
        bad(f"etcd pod {name}", "it is not there", "kubectl describe its StatefulSet") for name in sorted(missing)
    ]
    return findings or [well("etcd", f"{len(look.etcd_pods)} members are ready")]


def check_class(look: Look) -> list[Finding]:
    """Whether the storage class puts a disk where its broker is."""
    name = look.cluster.spec.storage.storage_class_name
    about = f"StorageClass {name}"
    if "StorageClass" in look.unreadable:
        return [unknown(about, "it may not be read", "ask somebody who may")]
    if look.storage_class is None:
        return [bad(about, "there is none of that name", "make it, or make the cluster anew with another class")]
    if not look.storage_class.waits_for_consumer:
        return [
            bad(
                about,
                "it binds a volume before its pod has a node, which anti-affinity may then forbid to the pod",
                "volumeBindingMode: WaitForFirstConsumer",
            )
        ]
    grows = "" if look.storage_class.can_expand else "; its volumes do not grow"
    return [well(about, f"it waits for the pod{grows}")]


def check_nodes(look: Look) -> list[Finding]:
    """Whether there are machines enough, and what the loss of one would take."""
    about = "nodes"
    if "Node" in look.unreadable:
        return [unknown(about, "they may not be read", "ask somebody who may")]
    ready = [node for node in look.nodes.values() if node.is_ready]
    members = look.cluster.spec.members_per_group
    findings = [
        bad(about, f"{node.name} is not ready", "bring it back, or delete the Node object if it is gone for good")
        for node in look.nodes.values()
        if not node.is_ready and any(pod.node == node.name for pod in look.pods.values())
    ]
    if len(ready) < members:
        findings.append(bad(about, f"{len(ready)} are ready, a group needs {members}", "add nodes with disks"))
    for node, groups in _only_home(look).items():
        findings.append(
            warning(
                about,
                f"every group has a member on {node} ({', '.join(groups)}): its loss leaves no whole group",
                "add a node with disks, and a group",
            )
        )
    return findings or [well(about, f"{len(ready)} are ready")]


def check_cluster(look: Look) -> list[Finding]:
    """What the operator itself says, and whether something stands still."""
    status, name = look.cluster.status, look.cluster.name
    findings: list[Finding] = []
    degraded = status.condition("Degraded")
    if degraded is not None and degraded.status == "True":
        findings.append(
            bad("cluster", f"{degraded.reason}: {degraded.message}", f"kubectl describe brokercluster {name}")
        )
    if status.operation is not None and look.now > status.operation.expires_at:
        operation = status.operation
        findings.append(
            warning("cluster", f"{operation.kind} of {operation.object} takes longer than it should", "see blockedBy")
        )
    if look.cluster.spec.paused:
        findings.append(warning("cluster", "it is paused: nothing is changed or repaired", "take spec.paused away"))
    elif status.blocked_by:
        findings.append(warning("cluster", f"the next step waits: {status.blocked_by}", "kubectl seriatim plan"))
    return findings or [well("cluster", "the operator has nothing to complain of")]


def check_drains(look: Look) -> list[Finding]:
    """Whether groups that should be empty come to be so."""
    advice = "bring that back, add groups, or undo the drain"
    return [bad(f"drain of {group}", waits_for, advice) for group, waits_for in look.held_up.items()]


def check_budgets(look: Look) -> list[Finding]:
    """Whether each group has its budget, and no other budget stands in the way."""
    if "PodDisruptionBudget" in look.unreadable:
        return [unknown("budgets", "they may not be read", "ask somebody who may")]
    findings: list[Finding] = []
    ours = {group_object_name(look.cluster.name, group.spec.group) for group in look.groups}
    for name in sorted(ours):
        budget = look.budgets.get(name)
        if budget is None:
            findings.append(bad(f"budget {name}", "it is not there", "kubectl logs of the operator"))
        elif budget["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            findings.append(
                warning(
                    f"budget {name}", "a broker that is not ready can hold up a drain", "kubectl logs of the operator"
                )
            )
    labels = selector_labels(look.cluster.name)
    for name, budget in look.budgets.items():
        selected = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
        if name not in ours and selected and selected.items() <= labels.items():
            findings.append(
                bad(
                    f"budget {name}",
                    "it covers brokers as well: Kubernetes evicts no pod that has two budgets",
                    "delete it, or choose other labels in it",
                )
            )
    return findings or [well("budgets", f"{len(ours)} groups have one")]


def check_network_policy(look: Look) -> list[Finding]:
    """Whether the policy that is wanted is there."""
    if not look.cluster.spec.network_policy.enabled or "NetworkPolicy" in look.unreadable:
        return []
    name = brokers_name(look.cluster.name)
    if name not in look.policies:
        return [bad(f"NetworkPolicy {name}", "it is not there", "kubectl logs of the operator")]
    return [well(f"NetworkPolicy {name}", "it is there; whether it is enforced is the network plugin's matter")]


def check_topics(look: Look) -> list[Finding]:
    """Whether all topics have their copies."""
    states = Counter(topic.status.state for topic in look.topics)
    remedies = {
        "OneCopy": "wait: the missing copy is made by itself once another member is there",
        "Unsettled": "bring back a member of the segment: kubectl seriatim chains TOPIC shows which group",
        "Lost": "messages are lost for good; consumers were told of the gap",
    }
    findings: list[Finding] = []
    for state, remedy in remedies.items():
        names = [topic.name for topic in look.topics if topic.status.state == state]
        if names:
            more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
            make = warning if state == "OneCopy" else bad
            findings.append(make("topics", f"{len(names):,} {state}: {', '.join(names[:5])}{more}", remedy))
    return findings or [well("topics", f"{states.get('Healthy', 0):,} of {len(look.topics):,} are healthy")]


def _only_home(look: Look) -> dict[str, list[str]]:
    """Nodes on which every group has a member, if there is more than one group."""
    homes: dict[str, set[str]] = {}
    for pod in look.pods.values():
        if pod.node:
            homes.setdefault(pod.node, set()).add(pod.group)
    groups = {group.spec.group for group in look.groups}
    if len(groups) < 2:
        return {}
    return {node: sorted(found) for node, found in sorted(homes.items()) if found >= groups}


def _waiting(pod: dict[str, Any]) -> tuple[str, str]:
    """The first container of it that does not run, and why; those that prepare the others come first."""
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting")
        if waiting:
            return str(each["name"]), str(waiting.get("reason") or "")
    return "", ""


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _time(text: str | None) -> datetime:
    return datetime.fromisoformat((text or "1970-01-01T00:00:00Z").replace("Z", "+00:00"))
