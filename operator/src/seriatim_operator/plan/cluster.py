"""`plan(observed, make)`: what to do next for one cluster, from what is there. Pure, and level-based.

It looks at what is, not at what changed, so it may run at any time and any number of times; run again and again over
the world that its steps make, it comes to rest. At most one step of a plan takes something away, and none does in a
pass that marks a loss or takes the operation: whoever reads the objects can see what is about to happen before it does.
"""

from __future__ import annotations

from ..resources.cluster_children import ClusterChildren
from ..resources.settings import SettingsError, parse_settings
from . import certificates, cordon, loss, members, rolling, scaling
from .actions import Apply, BeginOperation, EndOperation, MarkLost, Plan
from .observed import Observed
from .rolling import SETTINGS_INVALID

RESYNC_S = 30.0
"""A look without being told, against whatever was missed."""

OPERATION_S = 900.0
"""After this an operation no longer holds up others; the barriers of each still hold."""


def plan(observed: Observed, make: ClusterChildren) -> Plan:
    """The next steps for a cluster."""
    result = Plan()
    result.look_again(RESYNC_S)
    if observed.cluster.metadata.is_deleted:
        return Plan()
    if observed.cluster.spec.paused:
        result.blocked_by.append("spec.paused is set: everything stays as it is")
        return result
    check(observed, result)
    members.ensure_groups(observed, make, result)
    certificates.certify(observed, result)
    cordon.set_intents(observed, result)
    cordon.count_what_is_left(observed, result)
    result.actions[:0] = [Apply(manifest) for manifest in make.shared()]
    if not result.has_problem(*NO_NEW_DISK):
        members.ensure_brokers(observed, make, result)
        members.ensure_claims(observed, make, result)
    if not result.has_problem(SETTINGS_INVALID):
        result.actions.append(Apply(make.config()))
        members.ensure_pods(observed, make, result)
        members.refresh_pods(observed, make, result)
    cordon.open_budgets(observed, make, result)
    _disrupt(observed, make, result)
    return result


def _disrupt(observed: Observed, make: ClusterChildren, result: Plan) -> None:
    """What takes something away, most urgent first; at most one step of it."""
    _end_overdue(observed, result)
    loss.mark_losses(observed, result)
    if any(isinstance(action, MarkLost | EndOperation) for action in result.actions):
        return
    _end_replacement(observed, result)
    for step in (loss.release_lost, scaling.remove_groups, lambda o, p: rolling.roll(o, make, p)):
        if not _is_taken(result):
            step(observed, result)
    assert len(result.disruptive) <= 1, result.disruptive


def _is_taken(result: Plan) -> bool:
    return bool(result.disruptive) or any(isinstance(a, BeginOperation | EndOperation) for a in result.actions)


def _end_overdue(observed: Observed, result: Plan) -> None:
    operation = observed.cluster.status.operation
    if operation is not None and operation.expires_at.timestamp() <= observed.now_s:
        result.actions.append(EndOperation(f"{operation.kind} of {operation.object} took too long"))


def _end_replacement(observed: Observed, result: Plan) -> None:
    """A replaced disk's operation ends when the disk after it serves; a group that leaves gets none."""
    operation = observed.cluster.status.operation
    if operation is None or operation.kind != loss.OPERATION:
        return
    old = observed.brokers.get(operation.object)
    if old is not None and old.status.released is None:
        return
    if old is not None and old.spec.group not in observed.wanted_groups:
        result.actions.append(EndOperation(f"{old.spec.group} leaves: no disk takes the place of {operation.object}"))
        return
    slot = None if old is None else (old.spec.group, old.spec.slot)
    heirs = [b for b in observed.all_holders() if slot is None or (b.spec.group, b.spec.slot) == slot]
    if slot is None or any((pod := observed.pods.get(b.name)) is not None and pod.is_ready for b in heirs):
        result.actions.append(EndOperation(f"another disk took the place of {operation.object}"))


# ---- problems -------------------------------------------------------------------------------------------

NO_NEW_DISK = ("StorageClassUnknown", "StorageClassImmediate")
"""Problems under which no disk is asked for: it would only have to be undone. Brokers that have one go on with it."""


def check(observed: Observed, result: Plan) -> None:
    """What no rule of the definition can see: each with what to do about it."""
    spec = observed.cluster.spec
    try:
        parse_settings(spec.settings)
    except SettingsError as exc:
        text = f"{exc}: correct spec.settings; until then no broker is started or restarted"
        result.problems.append((SETTINGS_INVALID, text))
    name, found = spec.storage.storage_class_name, observed.storage_class
    if found is None:
        result.problems.append(("StorageClassUnknown", f"there is no StorageClass {name}: make it, or name another"))
    elif not found.waits_for_consumer:
        remedy = "use a class with volumeBindingMode WaitForFirstConsumer"
        text = f"StorageClass {name} binds volumes before a node is chosen: brokers may be left without one; {remedy}"
        result.problems.append(("StorageClassImmediate", text))
    usable = [node for node in observed.nodes.values() if node.is_ready and not node.is_leaving]
    if observed.nodes and len(usable) < spec.members_per_group:
        text = f"{len(usable)} nodes are ready, and a group's members stand on {spec.members_per_group} different ones"
        result.problems.append(("TooFewNodes", f"{text}: add nodes"))
