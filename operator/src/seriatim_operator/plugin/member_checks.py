"""Checks of the brokers themselves: pods, disks and their identity files, images, protocol versions."""

from __future__ import annotations

from collections.abc import Sequence

from seriatim_api.v1 import broker_pb2, operations_pb2

from ..plan.observed import ANNOTATION_PLACE_ANEW, PodView
from ..resources.names import broker_group_object_name
from ..spec.broker import Broker
from ..status.disk_remedies import disk_remedy
from .findings import Finding, bad, unknown, warning, well
from .former_disks import check_former_disks
from .look import Look

RESTARTS_MANY = 5


def check_pods(look: Look) -> list[Finding]:
    """Check that every broker runs and serves, and that no two members of a broker group share a machine."""
    if "Pod" in look.unreadable:
        return [unknown("pods", "you may not read them", "ask an administrator who may")]
    findings: list[Finding] = []
    for broker in look.brokers:
        pod = look.pods.get(broker.name)
        if broker.status.disk_lost is not None:
            continue
        if pod is None:
            findings.append(
                bad(f"pod {broker.name}", "it is not there", "kubectl seriatim plan shows what it waits for")
            )
        else:
            findings += _check_pod(pod)
    findings += _check_apart(look)
    return findings or [well("pods", f"{len(look.pods)} serve")]


def check_disks(look: Look) -> list[Finding]:
    """Check that brokers accept each disk by its identity file, and that each claim has a Broker."""
    findings: list[Finding] = []
    for broker in look.brokers:
        healthy = broker.status.condition("DiskHealthy")
        if broker.status.disk_lost is not None:
            proof = broker.status.disk_lost.proof
            findings.append(
                warning(f"disk of {broker.name}", f"it is given up: {proof}", "wait: the operator is replacing it")
            )
        elif healthy is not None and healthy.status == "False":
            problem = healthy.message.partition(" Remedy:")[0]
            remedy = disk_remedy(broker, healthy.reason) or f"kubectl describe sbroker {broker.name}"
            findings.append(bad(f"disk of {broker.name}", f"{healthy.reason}: {problem}", remedy))
        else:
            findings += _check_host(look, broker)
        if "PersistentVolumeClaim" not in look.unreadable and broker.name not in look.claims:
            findings.append(
                bad(f"disk of {broker.name}", "its claim is not there", "kubectl seriatim plan shows what it waits for")
            )
    findings += check_former_disks(look)
    return findings or [well("disks", f"{len(look.brokers)} identity files are in order")]


def _check_host(look: Look, broker: Broker) -> list[Finding]:
    """Check that a Node has the host name that the disk's volume names."""
    claim = look.claims.get(broker.name)
    volume = look.volumes.get(str((claim or {}).get("spec", {}).get("volumeName") or ""))
    if volume is None or not volume.hostnames or "Node" in look.unreadable:
        return []
    if volume.hostnames & {node.hostname for node in look.nodes.values()}:
        return []
    hosts = ", ".join(sorted(volume.hostnames))
    return [
        bad(
            f"disk of {broker.name}",
            f"it is part of {hosts}, and no Node has that host name",
            disk_remedy(broker, "NodeGone"),
        )
    ]


def check_images(look: Look) -> list[Finding]:
    """Check that all brokers run the same image."""
    images: dict[str, list[str]] = {}
    for name, pod in look.pod_manifests.items():
        for container in pod["spec"]["containers"]:
            if container["name"] == "broker":
                images.setdefault(container["image"], []).append(name)
    if len(images) <= 1:
        return [well("images", next(iter(images), "no pods"))]
    told = "; ".join(f"{image}: {len(names)}" for image, names in sorted(images.items()))
    return [
        warning("images", f"brokers run several ({told})", "kubectl seriatim plan shows the change that is under way")
    ]


def check_controller(described: broker_pb2.DescribeClusterResponse) -> list[Finding]:
    """Check that the brokers have a controller. Without one they switch, but create and heal nothing."""
    if described.controller:
        return []
    return [bad("controller", "the brokers have none", "see the brokers' logs: they elect one through etcd")]


def check_members(look: Look, groups: Sequence[operations_pb2.BrokerGroupDescription]) -> list[Finding]:
    """Check that the brokers know the same members and disks as Kubernetes, and hear from all of them."""
    findings: list[Finding] = []
    members = {member.record.member.broker: member for group in groups for member in group.members}
    for broker in look.brokers:
        name = f"{broker.spec.group}-{broker.spec.slot}"
        member = members.get(name)
        if broker.status.disk_lost is not None:
            continue
        if member is None:
            findings.append(bad(f"member {name}", "the brokers do not know it", f"kubectl logs {broker.name}"))
            continue
        if not member.record.admitted:
            findings.append(warning(f"member {name}", "it is not admitted yet", "wait: the controller admits it"))
        if not member.live:
            findings.append(bad(f"member {name}", "the brokers do not hear from it", f"kubectl logs {broker.name}"))
        for other in member.unlinked:
            remedy = "check NetworkPolicies and DNS between them, and the logs of both"
            findings.append(bad(f"member {name}", f"it is live and has no link to {other} of its broker group", remedy))
        known, here = member.record.member.incarnation, broker.status.incarnation
        if here and known != here:
            findings.append(
                bad(
                    f"member {name}",
                    f"its slot belongs to the disk {known}, but the pod has the disk {here}",
                    disk_remedy(broker, "ForeignDisk"),
                )
            )
    expected = {f"{broker.spec.group}-{broker.spec.slot}" for broker in look.brokers}
    for name in sorted(set(members) - expected):
        findings.append(
            warning(f"member {name}", "the brokers know it, but it has no Broker object", "see its BrokerGroup")
        )
    return findings or [well("members", f"the brokers know all {len(expected)}")]


def check_protocol(groups: Sequence[operations_pb2.BrokerGroupDescription]) -> list[Finding]:
    """Check that all live brokers have a version of the protocol in common."""
    records = [member.record for group in groups for member in group.members if member.live]
    if not records:
        return []
    lowest, highest = max(r.protocol_min for r in records), min(r.protocol_max for r in records)
    if lowest > highest:
        return [
            bad(
                "versions",
                "the brokers have no protocol version in common",
                "restart the older ones with the newer image",
            )
        ]
    return [well("versions", f"all brokers speak protocol {highest}")]


def _check_pod(pod: PodView) -> list[Finding]:
    about = f"pod {pod.name}"
    findings: list[Finding] = []
    if not pod.is_scheduled:
        remedy = (
            f"correct spec.podTemplate, or the nodes: kubectl describe pod {pod.name} says which rule each node breaks"
        )
        findings.append(bad(about, pod.why_not_ready or "no node takes it", remedy))
    elif pod.lacks_image:
        remedy = "correct spec.image or spec.podTemplate.imagePullSecrets, or give the nodes the image"
        findings.append(bad(about, pod.why_not_ready, remedy))
    elif not pod.is_ready and not pod.is_deleting:
        said = f": {pod.ended[-1].text}" if pod.ended and pod.ended[-1].text else ""
        why = f" ({pod.waiting})" if pod.waiting else ""
        findings.append(bad(about, f"it does not serve{why}{said}", f"kubectl logs {pod.name}"))
    if pod.restarts >= RESTARTS_MANY:
        findings.append(
            warning(about, f"its container was started {pod.restarts + 1} times", f"kubectl logs -p {pod.name}")
        )
    return findings


def _check_apart(look: Look) -> list[Finding]:
    placed: dict[tuple[str, str], list[str]] = {}
    for pod in look.pods.values():
        if pod.node and not pod.is_deleting:
            placed.setdefault((pod.group, pod.node), []).append(pod.name)
    annotate = f"kubectl -n {look.cluster.namespace} annotate sgroup"
    return [
        bad(
            f"group {group}",
            f"{' and '.join(names)} share {node}: its loss takes all copies",
            f"{annotate} {broker_group_object_name(look.cluster.name, group)} {ANNOTATION_PLACE_ANEW}=true: the "
            "operator empties it, and gives it disks on other nodes",
        )
        for (group, node), names in sorted(placed.items())
        if len(names) > 1
    ]
