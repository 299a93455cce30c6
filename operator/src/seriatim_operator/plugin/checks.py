"""Checks of everything around the brokers, from Kubernetes and nodes to topics and consumer groups."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timedelta
from typing import Any, Final

from ..plan.chains import WEAK
from ..plan.observed import IMAGE_REASONS
from ..resources.names import (
    ANNOTATION_OPERATOR,
    broker_group_object_name,
    brokers_name,
    selector_labels,
    selector_text,
)
from ..spec.topic import TopicState
from ..status.cluster import tells_of_last_copies
from ..status.remedies import OPERATOR, how_to_resume, remedy
from .findings import Finding, Level, bad, unknown, warning, well
from .look import Look, etcd_hosts, etcd_services, is_ready

KUBERNETES_MINOR_MIN: Final = 30
"""The first minor version in which the rules of our definitions (CEL with quantities) are a stable feature."""

GROUPS_NAMED_MAX: Final = 10
"""How many findings about consumer groups are shown. One more counts the others."""

REPORTED_AGE_MAX: Final = timedelta(seconds=150)
"""An operator reports at least every 60 s, or every 90 s if nothing happens between two of its passes."""

LEASE_AGE_MAX: Final = timedelta(seconds=60)
"""An operator renews its Lease every few seconds. A Lease that is older than this belongs to no operator that acts."""


def check_kubernetes(version: str) -> list[Finding]:
    """Check that this Kubernetes is new enough."""
    found = re.match(r"v1\.(\d+)", version)
    if found is None or int(found.group(1)) >= KUBERNETES_MINOR_MIN:
        return [well("Kubernetes", version)]
    return [bad("Kubernetes", f"{version} is too old", f"upgrade to v1.{KUBERNETES_MINOR_MIN} or newer")]


def has_operator(look: Look) -> bool:
    """Whether an operator acts, as far as this user may know."""
    return all(finding.level is not Level.BAD for finding in check_operator(look))


def check_operator(look: Look) -> list[Finding]:
    """Check that an operator acts. Without one, brokers serve and switch, but no change and no repair is made."""
    about = "operator"
    if "Pod" in look.unreadable:
        return [unknown(about, "you may not read pods of other namespaces", "ask an administrator who may")]
    ready = [pod for pod in look.operator_pods if is_ready(pod)]
    if not look.operator_pods:
        return [
            bad(
                about,
                "it has no pod in any namespace",
                "scale its Deployment to 1, or helm install it",
            )
        ]
    if not ready:
        names = ", ".join(f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in look.operator_pods)
        return [bad(about, f"none of its pods is ready ({names})", OPERATOR)]
    findings = [well(about, f"{len(ready)} pods are ready"), *_rivals(look)]
    leases = [lease for lease in look.leases.values() if "seriatim" in lease["metadata"]["name"]]
    for lease in leases:
        age = look.now - _time(lease["spec"].get("renewTime"))
        name = lease["metadata"]["name"]
        if age > LEASE_AGE_MAX:
            findings.append(bad(about, f"its Lease {name} is {int(age.total_seconds())} s old", OPERATOR))
    generation = look.cluster.metadata.generation
    if look.cluster.status.observed_generation < generation:
        seen = look.cluster.status.observed_generation
        findings.append(
            warning(
                about,
                f"it has acted on generation {seen} of {generation}",
                f"wait a minute; then {OPERATOR}",
            )
        )
    return findings


def _rivals(look: Look) -> list[Finding]:
    """Report operators with different Leases that watch the cluster's namespace."""
    found = sorted({lease for pod in look.operator_pods if (lease := _lease_over(pod, look.cluster.namespace))})
    if len(found) < 2:
        return []
    acts = look.cluster.metadata.annotations.get(ANNOTATION_OPERATOR, "")
    told = "; ".join(f"{each} (looks after this cluster)" if each == acts else each for each in found)
    remedy = "uninstall the others, or give each its own watchNamespaces"
    return [bad("operator", f"{len(found)} operators watch namespace {look.cluster.namespace}: {told}", remedy)]


def _lease_over(pod: dict[str, Any], namespace: str) -> str:
    """Namespace and name of the Lease of an operator's pod; empty if it does not watch the namespace."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    environment = {each["name"]: each.get("value") or "" for c in containers for each in c.get("env") or ()}
    watched = [each for each in environment.get("SERIATIM_OPERATOR_WATCH_NAMESPACES", "").split(",") if each]
    if not containers or (watched and namespace not in watched):
        return ""
    return f"{pod['metadata']['namespace']}/{environment.get('SERIATIM_OPERATOR_LEASE_NAME', 'seriatim-operator')}"


def check_etcd(look: Look) -> list[Finding]:
    """Check that the members of the chart's etcd run."""
    if not look.etcd_pods:
        return []
    findings: list[Finding] = []
    for pod in look.etcd_pods:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        about, container, waiting = f"etcd pod {namespace}/{name}", *_waiting(pod)
        if waiting in IMAGE_REASONS:
            # The StatefulSet changes one member at a time, and waits until that member is ready. If most members
            # have no image, it waits for ever, because no member is ready without a majority.
            delete = f"kubectl -n {namespace} delete pod {name}"
            remedy = f"give the chart the right image; if this pod then still waits for the wrong one, {delete}"
            findings.append(bad(about, f"container {container} has no image ({waiting})", remedy))
        elif told := look.mount_fails.get(str(pod["metadata"].get("uid")), ""):
            findings.append(bad(about, f"its kubelet cannot give it its volumes: {told}", _remedy_etcd_disk(look, pod)))
        elif not is_ready(pod):
            told = "it is not ready" + (f" ({waiting})" if waiting else "")
            findings.append(
                bad(about, told, f"kubectl -n {namespace} describe pod {name}; kubectl -n {namespace} logs {name}")
            )
    named = {host.partition(".")[0] for host in etcd_hosts(look.cluster)}
    missing = named - {pod["metadata"]["name"] for pod in look.etcd_pods} - set(etcd_services(look.cluster))
    findings += [
        bad(f"etcd pod {name}", "it is not there", "kubectl get statefulsets -A -l app.kubernetes.io/component=etcd")
        for name in sorted(missing)
    ]
    return findings or [well("etcd", f"{len(look.etcd_pods)} members are ready")]


def _remedy_etcd_disk(look: Look, pod: dict[str, Any]) -> str:
    """What to do about a member whose disk is gone. Others must be a majority, because they take the next one in."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    ready, members = sum(map(is_ready, look.etcd_pods)), max(len(look.etcd_pods), len(etcd_hosts(look.cluster)))
    if 2 * ready <= members:
        return (
            f"bring the disk back: {ready} of {members} members are ready, and without a majority none can be replaced"
        )
    delete = f"kubectl -n {namespace} delete pvc data-{name} --wait=false; kubectl -n {namespace} delete pod {name}"
    return (
        f"bring the disk back, or, if it is lost for good, {delete}: {ready} of {members} members are ready, which is "
        "a majority, so they have all metadata and take the new member in"
    )


def check_class(look: Look) -> list[Finding]:
    """Check that the storage class makes a broker's volume on the node that the broker gets."""
    name = look.cluster.spec.storage.storage_class_name
    about = f"StorageClass {name}"
    if "StorageClass" in look.unreadable:
        return [unknown(about, "you may not read it", "ask an administrator who may")]
    if look.storage_class is None:
        return [bad(about, "there is no class of that name", "make it, or make a new cluster with another class")]
    if not look.storage_class.waits_for_consumer:
        return [
            bad(
                about,
                "it binds a volume before its pod has a node, and anti-affinity may forbid that node to the pod",
                "use a class with volumeBindingMode: WaitForFirstConsumer",
            )
        ]
    grows = "" if look.storage_class.can_expand else "; its volumes do not grow"
    return [well(about, f"it waits for the pod{grows}")]


def check_nodes(look: Look) -> list[Finding]:
    """Check that there are enough machines, and that the loss of one leaves a complete broker group."""
    about = "nodes"
    if "Node" in look.unreadable:
        return [unknown(about, "you may not read them", "ask an administrator who may")]
    ready = [node for node in look.nodes.values() if node.is_ready]
    members = look.cluster.spec.members_per_group
    findings = [
        bad(about, f"{node.name} is not ready", _remedy_silent(look, node.name))
        for node in look.nodes.values()
        if not node.is_ready and any(pod.node == node.name for pod in look.pods.values())
    ]
    if len(ready) < members:
        findings.append(
            bad(about, f"{len(ready)} are ready, and a broker group needs {members}", "add nodes with disks")
        )
    for node, groups in _only_home(look).items():
        findings.append(
            warning(
                about,
                f"every broker group has a member on {node} ({', '.join(groups)}): its loss leaves none complete",
                "add a node with disks, and a broker group",
            )
        )
    return findings or [well(about, f"{len(ready)} are ready")]


def _remedy_silent(look: Look, node: str) -> str:
    """What to do about a node that does not answer. To delete its Node object gives up its disks."""
    there = sorted(pod.name for pod in look.pods.values() if pod.node == node)
    if not look.is_fresh or tells_of_last_copies(look.cluster.status):
        return "bring it back: it is not proved that other disks have all messages that its disks have"
    return (
        "bring it back. If its machine is off for good, delete the Node object: the operator then gives up the disks "
        f"of {', '.join(there)}, and the condition Degraded says that no topic has its last copy there"
    )


def check_cluster(look: Look) -> list[Finding]:
    """Check what the operator reports, and whether an operation or a step does not continue."""
    status = look.cluster.status
    findings: list[Finding] = []
    degraded, ready = status.condition("Degraded"), status.condition("Ready")
    told = degraded.message if degraded is not None and degraded.status == "True" else ""
    if degraded is not None and told:
        findings.append(bad("cluster", f"{degraded.reason}: {told}", remedy(look.cluster, degraded)))
    if ready is not None and ready.status == "Unknown":
        findings.append(bad("cluster", f"{ready.reason}: {ready.message}", remedy(look.cluster, ready)))
    reported = status.reported_at
    if reported is not None and look.now - reported > REPORTED_AGE_MAX:
        age = int((look.now - reported).total_seconds())
        findings.append(bad("cluster", f"its status is {age} s old: no operator renews it", OPERATOR))
    if status.operation is not None and look.now > status.operation.expires_at:
        operation = status.operation
        findings.append(
            warning(
                "cluster",
                f"{operation.kind} of {operation.object} takes longer than it should",
                f"kubectl seriatim plan {look.cluster.name}",
            )
        )
    if look.cluster.spec.paused:
        findings.append(
            warning("cluster", "it is paused: the operator changes and repairs nothing", how_to_resume(look.cluster))
        )
    elif waits := "; ".join(part for part in status.blocked_by.split("; ") if part not in told):
        findings.append(
            warning("cluster", f"the next step waits: {waits}", f"kubectl seriatim plan {look.cluster.name}")
        )
    return findings or [well("cluster", "the operator reports no problem")]


def check_drains(look: Look) -> list[Finding]:
    """Check that no drain is held up."""
    advice = "bring that back, add broker groups, or undo the drain"
    return [bad(f"drain of {group}", waits_for, advice) for group, waits_for in look.held_up.items()]


def check_budgets(look: Look) -> list[Finding]:
    """Check that each broker group has its budget, and that no other budget covers brokers."""
    if "PodDisruptionBudget" in look.unreadable:
        return [unknown("budgets", "you may not read them", "ask an administrator who may")]
    findings: list[Finding] = []
    ours = {broker_group_object_name(look.cluster.name, group.spec.group) for group in look.groups}
    for name in sorted(ours):
        budget = look.budgets.get(name)
        if budget is None:
            findings.append(bad(f"budget {name}", "it is not there", OPERATOR))
        elif budget["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            findings.append(warning(f"budget {name}", "a broker that is not ready can hold up a drain", OPERATOR))
    labels = selector_labels(look.cluster.name)
    for name, budget in look.budgets.items():
        selected = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
        if name not in ours and selected and selected.items() <= labels.items():
            findings.append(
                bad(
                    f"budget {name}",
                    f"its selector {selector_text(selected)} covers brokers too, and Kubernetes evicts no pod that has "
                    "two budgets",
                    "choose other labels in its selector",
                )
            )
    return findings or [well("budgets", f"{len(ours)} broker groups have one")]


def check_network_policy(look: Look) -> list[Finding]:
    """Check that the NetworkPolicy exists, if the cluster wants one."""
    if not look.cluster.spec.network_policy.enabled or "NetworkPolicy" in look.unreadable:
        return []
    name = brokers_name(look.cluster.name)
    if name not in look.policies:
        return [bad(f"NetworkPolicy {name}", "it is not there", OPERATOR)]
    return [well(f"NetworkPolicy {name}", "it is there; check that your network plugin enforces policies")]


def check_topics(look: Look) -> list[Finding]:
    """Check that all topics have their copies."""
    states = Counter(topic.status.state for topic in look.topics)
    bring_back = "bring back a member of the segment: kubectl seriatim chains TOPIC shows its broker group"
    remedies: dict[TopicState, str] = {
        "Unsettled": bring_back,
        "Unreachable": bring_back,
        "Lost": "messages are lost for good; consumers got an event about the gap",
        "OneCopy": "wait: brokers make the missing copy when another member is there",
        "CopyAway": "bring back the broker that does not answer: kubectl seriatim status names it",
        "CatchingUp": "wait: a broker that came back copies what it lacks",
    }
    findings: list[Finding] = []
    for state, advice in remedies.items():
        names = [topic.name for topic in look.topics if topic.status.state == state]
        if names:
            more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
            make = warning if state in WEAK else bad
            findings.append(make("topics", f"{len(names):,} {state}: {', '.join(names[:5])}{more}", advice))
    return findings or [well("topics", f"{states.get('Healthy', 0):,} of {len(look.topics):,} are healthy")]


def check_consumer_groups(look: Look) -> list[Finding]:
    """Check that no key waits for an administrator, and that every consumer group is as its object says."""
    findings: list[Finding] = []
    for group in look.consumer_groups:
        topic, name = group.spec.topic, group.group_name
        parked, letters, ready = map(group.status.condition, ("KeysParked", "DeadLettering", "Ready"))
        if parked is not None and parked.status == "True":
            count = f"{group.status.parked_keys} keys of {topic} are parked"
            last = f"seriatim group parked {topic} {name}; then group release, or group skip --key"
            findings.append(warning(f"consumer group {group.name}", f"{count}: {parked.message}", last))
        if letters is not None and letters.reason == "HeldUp":
            see = f"kubectl describe stopic {group.status.dead_letter_topic}; dead_letters_refused in the brokers' logs"
            findings.append(warning(f"consumer group {group.name}", letters.message, see))
        if ready is not None and ready.status == "False" and not group.metadata.is_deleted:
            text = f"{ready.reason}: {ready.message}"
            findings.append(warning(f"consumer group {group.name}", text, remedy(group, ready)))
    if len(findings) > GROUPS_NAMED_MAX:
        more = f"{len(findings) - GROUPS_NAMED_MAX:,} more findings"
        rest = warning("consumer groups", more, "kubectl get scg -o wide")
        findings = [*findings[:GROUPS_NAMED_MAX], rest]
    return findings or [well("consumer groups", f"{len(look.consumer_groups):,} are as their objects say")]


def _only_home(look: Look) -> dict[str, list[str]]:
    """Nodes on which every broker group has a member; empty if there is only one broker group."""
    homes: dict[str, set[str]] = {}
    for pod in look.pods.values():
        if pod.node:
            homes.setdefault(pod.node, set()).add(pod.group)
    groups = {group.spec.group for group in look.groups}
    if len(groups) < 2:
        return {}
    return {node: sorted(found) for node, found in sorted(homes.items()) if found >= groups}


def _waiting(pod: dict[str, Any]) -> tuple[str, str]:
    """The first container of the pod that waits, and why; init containers come first. Two empty texts if none waits."""
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting")
        if waiting:
            return str(each["name"]), str(waiting.get("reason") or "")
    return "", ""


def _time(text: str | None) -> datetime:
    return datetime.fromisoformat((text or "1970-01-01T00:00:00Z").replace("Z", "+00:00"))
