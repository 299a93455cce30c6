"""Reports which claims without a Broker are proved to be former disks. Only then one may be deleted.

A claim without a Broker is not yet a former disk. The Brokers are deleted with the cluster object or with the
definitions, and with `deletionPolicy: Retain` the claims stay, with all messages of the cluster.
"""

from __future__ import annotations

from ..resources.names import LABEL_GROUP, LABEL_SLOT
from ..spec.broker import Broker
from .findings import Finding, warning
from .look import Look


def check_former_disks(look: Look) -> list[Finding]:
    """Report for each claim without a Broker whether its disk is proved to be useless."""
    held = {broker.name for broker in look.brokers}
    return [_tell(look, name) for name in sorted(set(look.claims) - held)]


def _tell(look: Look, name: str) -> Finding:
    about = f"claim {name}"
    labels = look.claims[name]["metadata"].get("labels") or {}
    slot = f"{labels.get(LABEL_GROUP, '')}-{labels.get(LABEL_SLOT, '')}"
    if name in look.pods:
        return warning(about, "it has no Broker, and a pod that uses it", "keep it, and see whether the operator acts")
    heirs = [broker for broker in look.brokers if f"{broker.spec.group}-{broker.spec.slot}" == slot]
    if not heirs:
        text = f"it has no Broker, and {slot} has no other disk: it may have messages that no other disk has"
        return warning(about, text, _how_to_use(look, labels.get(LABEL_GROUP, "")))
    lacking = _what_is_not_proved(look, heirs[0])
    if lacking:
        text = f"it has no Broker, {slot} has the disk {heirs[0].name}, and {lacking}"
        return warning(about, text, "keep it until the copies of all messages are proved to be elsewhere")
    text = (
        f"it is a former disk: the brokers accept the disk {heirs[0].name} as {slot}, broker group "
        f"{heirs[0].spec.group} is complete, and the operator says that all topics have their copies on other disks"
    )
    return warning(about, text, f"kubectl -n {look.cluster.namespace} delete pvc {name}, if you do not need its data")


def _how_to_use(look: Look, group: str) -> str:
    number = group.removeprefix("g")
    if number.isdecimal() and int(number) >= look.cluster.spec.groups:
        return f"keep it; with spec.groups: {int(number) + 1} the operator takes it into use again"
    return "keep it: the operator takes it into use when it makes the Broker (kubectl seriatim plan)"


def _what_is_not_proved(look: Look, heir: Broker) -> str:
    """What speaks against the deletion of an earlier disk of the heir's slot; empty if nothing does."""
    accepted, status = heir.status.condition("DiskHealthy"), look.cluster.status
    pod, degraded = look.pods.get(heir.name), status.condition("Degraded")
    group = next((group for group in look.groups if group.spec.group == heir.spec.group), None)
    if accepted is None or accepted.reason != "Accepted" or heir.status.disk_lost is not None:
        return "the brokers do not accept that disk"
    if pod is None or not pod.is_ready:
        return "that one does not serve"
    if group is None or not group.status.is_true("Whole"):
        return f"broker group {heir.spec.group} is not complete"
    if degraded is None or degraded.status != "False":
        return "the cluster is degraded"
    if not look.is_fresh:
        return "no operator has reported on the cluster for two minutes"
    weak = [topic.name for topic in look.topics if topic.status.state != "Healthy"]
    return f"topic {weak[0]} is not healthy" if weak else ""
