"""`plan(observed, make)`: the next steps for one cluster, from what was observed. Pure, and level-based.

It reads the present state and not the changes, so it may run at any time and any number of times. If it runs repeatedly
over the state that its steps make, it ends with no step. At most one step of a plan takes something away. A plan that
marks a loss or takes the operation has no such step, so that administrators can see in the objects what comes before it
happens.
"""

from __future__ import annotations

from ..resources.cluster_children import ClusterChildren
from ..spec.settings import SettingsError, parse_settings
from . import absence, certificates, cordon, external, loss, members, rolling, scaling, spread
from .actions import Action, Apply, BeginOperation, DeleteObject, EndOperation, MarkLost, Plan
from .observed import Observed
from .rolling import SETTINGS_INVALID

RESYNC_S = 30.0
"""Seconds between two passes if no event comes, in case an event was missed."""

TROUBLE_S = 2.0
"""Seconds between two passes while something is away or not reported."""

OPERATION_S = 900.0
"""Seconds after which an operation does not hold up others any more. The conditions of each step still hold."""


def plan(observed: Observed, make: ClusterChildren) -> Plan:
    """The next steps for a cluster, in order, with what to report."""
    result = Plan()
    result.look_again(RESYNC_S)
    if observed.cluster.metadata.is_deleted:
        return Plan()
    if observed.cluster.spec.paused:
        result.blocked_by.append("spec.paused is set: the operator changes nothing")
        return result
    check(observed, result)
    members.ensure_broker_groups(observed, make, result)
    certificates.certify(observed, result)
    cordon.set_intents(observed, result)
    cordon.count_what_is_left(observed, result)
    result.actions[:0] = [Apply(manifest) for manifest in make.shared()]
    external.ensure_external(observed, make, result)
    if not result.has_problem(*NO_NEW_DISK):
        members.ensure_brokers(observed, make, result)
        members.ensure_claims(observed, make, result)
    if not result.has_problem(SETTINGS_INVALID) or observed.last_settings is not None:
        result.actions.append(Apply(make.config()))
        members.ensure_pods(observed, make, result)
        members.refresh_pods(observed, make, result)
    cordon.open_budgets(observed, make, result)
    result.actions.sort(key=_urgency)
    _disrupt(observed, make, result)
    members.tell_waiting(observed, result)
    _look_at_what_lasts(observed, result)
    return result


def _look_at_what_lasts(observed: Observed, result: Plan) -> None:
    """Look again soon while something is away or not reported, because no event says how long that lasts."""
    chains = observed.chains
    if (chains is not None and chains.troubles) or observed.members is None or absence.returning_names(observed):
        result.look_again(TROUBLE_S)
    pods = (observed.pods.get(broker.name) for broker in observed.all_holders())
    if any(pod is None or not pod.is_ready for pod in pods):
        result.look_again(TROUBLE_S)


_FOR_PODS = ("ServiceAccount", "NetworkPolicy", "BrokerGroup", "Broker", "ConfigMap", "PersistentVolumeClaim")
"""Kinds of children that pods need, or that come before them."""


def _urgency(action: Action) -> int:
    """The place of a step among others: first what pods need and the pods, then the rest, whose refusal may take time.

    The order within one place stays.
    """
    if isinstance(action, Apply):
        kind = action.manifest["kind"]
        return 0 if kind in _FOR_PODS else 1 if kind == "Pod" else 2
    return 2 if isinstance(action, DeleteObject) else 0  # the brokers carry out the others


def _disrupt(observed: Observed, make: ClusterChildren, result: Plan) -> None:
    """Plan at most one step that takes something away, the most urgent first."""
    _end_overdue(observed, result)
    # Rule `behind-takes-nothing` (I1): while a broker says that the coordinator lost decisions, nothing is taken away.
    # Without it:
    #   1. Broker group g2 is made, and gets segments. The coordinator is restored as it was before that.
    #   2. `spec.groups` is lowered. The coordinator does not know g2, so the operator takes it for one that the brokers
    #      have forgotten, and deletes its claims. `seriatim coordinator rebuild` would have brought its messages back.
    if observed.coordinator_behind:
        result.blocked_by.append(f"nothing is restarted or deleted: {observed.coordinator_behind}")
        result.look_again(TROUBLE_S)
        return
    loss.mark_losses(observed, result)
    if any(isinstance(action, MarkLost | EndOperation) for action in result.actions):
        return
    _end_replacement(observed, result)
    for step in (
        loss.release_lost,
        scaling.remove_broker_groups,
        lambda o, p: rolling.roll(o, make, p),
        lambda o, p: members.place_again(o, make, p),
        spread.mend_spread,
    ):
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
    """End the replacement of a disk when the next disk is ready, or when the broker group leaves and gets no disk."""
    operation = observed.cluster.status.operation
    if operation is None or operation.kind != loss.OPERATION:
        return
    old = observed.brokers.get(operation.object)
    if old is not None and old.status.released is None:
        return
    if old is not None and old.spec.group not in observed.wanted_broker_groups:
        result.actions.append(EndOperation(f"{old.spec.group} leaves: no disk takes the place of {operation.object}"))
        return
    slot = None if old is None else (old.spec.group, old.spec.slot)
    heirs = [b for b in observed.all_holders() if slot is None or (b.spec.group, b.spec.slot) == slot]
    if slot is None or any((pod := observed.pods.get(b.name)) is not None and pod.is_ready for b in heirs):
        result.actions.append(EndOperation(f"another disk took the place of {operation.object}"))


# ---- problems -------------------------------------------------------------------------------------------

NAME_TAKEN = "NameTaken"
"""The problem that an object of others has the name of a child."""

NO_NEW_DISK = ("StorageClassUnknown", "StorageClassImmediate")
"""Problems with which no new disk is requested, because it could not be used. Brokers with a disk continue."""


def check(observed: Observed, result: Plan) -> None:
    """Find problems that no rule of the definition can find, each with its remedy."""
    spec = observed.cluster.spec
    try:
        parse_settings(spec.settings)
    except SettingsError as exc:
        until = (
            "no broker is started, because none was ever given good settings"
            if observed.last_settings is None
            else "the last good settings stay in force, and no broker is restarted for a change of the spec"
        )
        result.problems.append((SETTINGS_INVALID, f"{exc}: correct spec.settings; until then {until}"))
    name, found = spec.storage.storage_class_name, observed.storage_class
    if found is None:
        result.problems.append(
            ("StorageClassUnknown", f"there is no StorageClass {name}: make it, or name another one")
        )
    elif not found.waits_for_consumer:
        remedy = "use a class with volumeBindingMode WaitForFirstConsumer"
        text = f"StorageClass {name} binds volumes before a node is chosen: brokers may be left without one; {remedy}"
        result.problems.append(("StorageClassImmediate", text))
    for (kind, name), owner in observed.taken.items():
        text = f"{kind} {name} {owner}, and a child of this cluster needs its name: nothing is written to it"
        result.problems.append((NAME_TAKEN, f"{text}; give it or the cluster another name"))
    usable = [node for node in observed.nodes.values() if node.is_ready and not node.is_leaving]
    if observed.nodes and len(usable) < spec.members_per_group:
        text = f"{len(usable)} nodes are usable, and a broker group needs {spec.members_per_group} different nodes"
        result.problems.append(("TooFewNodes", f"{text}: add nodes"))
