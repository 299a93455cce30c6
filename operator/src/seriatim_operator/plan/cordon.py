"""Plans the intent of each broker group, and when its members may be evicted.

If the node of a member is cordoned, all open segments leave the member's broker group first. Then the disruption budget
of this broker group opens, if the brokers say that the other copies are in sync. Until then Kubernetes refuses an
eviction, and `kubectl drain` tries again. So no member is evicted that has open segments or the last copy of a segment.
"""

from __future__ import annotations

from ..resources.cluster_children import ClusterChildren
from ..spec.broker import Broker
from ..spec.group import BrokerGroup
from .actions import Apply, AskCounts, AskGate, Plan, SetBrokerGroup
from .observed import ANNOTATION_PLACE_ANEW, Observed

INTENT_OF_STATE = {"Active": "ACTIVE", "Cordoned": "CORDONED", "Draining": "DRAINING"}
LOOK_S = 1.0

COUNT_S = 2.0
COUNT_STEADY_S = 30.0
"""Seconds between two counts of a broker group that an administrator cordoned or drained and from which nothing moves.

Each count reads every chain.
"""


def set_intents(observed: Observed, plan: Plan) -> None:
    """Send the brokers the intent and weight of each broker group whose record differs."""
    if observed.members is None:
        return
    items = {item.spec.group: item for item in observed.groups.values()}
    cordoned: dict[str, str] = {}
    for brokers in leaving_members(observed).values():
        for broker in brokers:
            cordoned.setdefault(broker.spec.group, broker.name)
    for group in [*observed.wanted_broker_groups, *observed.leaving_broker_groups]:
        view = observed.members.get(group)
        if view is None:
            continue
        intent, weight, why = _wanted(observed, group, items.get(group), cordoned.get(group, ""))
        if (view.intent, view.weight) != (intent, weight):
            plan.actions.append(SetBrokerGroup(group, intent, weight, why))


def count_what_is_left(observed: Observed, plan: Plan) -> None:
    """Have open segments and copies counted while a BrokerGroup is not Active, so that its status is current."""
    left_by_people = {item.spec.group for item in observed.groups.values() if item.spec.state != "Active"}
    views = [view for group, view in (observed.members or {}).items() if group in left_by_people]
    if not views:
        return
    if any(view.open_segments is None or view.segments is None for view in views):
        plan.actions.append(AskCounts())
        return
    is_moving = any(view.open_segments or (view.segments and view.intent == "DRAINING") for view in views)
    plan.look_again(COUNT_S if is_moving else COUNT_STEADY_S)


def open_budgets(observed: Observed, make: ClusterChildren, plan: Plan) -> None:
    """Apply the budget of each broker group: one eviction if it is wanted and safe, otherwise none."""
    evictable = _evictable(observed, plan)
    for group in [*observed.wanted_broker_groups, *observed.leaving_broker_groups]:
        plan.actions.append(Apply(make.budget(group, 1 if group in evictable else 0)))


def leaving_members(observed: Observed) -> dict[str, list[Broker]]:
    """Brokers whose node is cordoned or has a taint that announces its end, by node."""
    found: dict[str, list[Broker]] = {}
    for broker in observed.all_holders():
        pod = observed.pods.get(broker.name)
        node = observed.nodes.get(pod.node) if pod is not None else None
        if node is not None and node.is_leaving:
            found.setdefault(node.name, []).append(broker)
    return found


def _wanted(observed: Observed, group: str, item: BrokerGroup | None, cordoned: str) -> tuple[str, float, str]:
    """The intent and weight of a broker group, and why. `cordoned` is its first broker whose node is to be left."""
    weight = item.spec.weight if item is not None else 1.0
    if group == observed.placed_anew:
        return "DRAINING", weight, f"it is placed again, as {ANNOTATION_PLACE_ANEW} of the BrokerGroup asks"
    if group in observed.leaving_broker_groups:
        return "DRAINING", weight, f"the cluster has {observed.cluster.spec.groups} broker groups now"
    state = item.spec.state if item is not None else "Active"
    if state == "Active" and cordoned:
        return "CORDONED", weight, f"the node of {cordoned} is cordoned"
    return INTENT_OF_STATE[state], weight, f"the BrokerGroup says {state}"


def _evictable(observed: Observed, plan: Plan) -> frozenset[str]:
    """Broker groups that may lose a member now: those with a member on the one node that is drained now."""
    leaving = leaving_members(observed)
    if not leaving:
        return frozenset()
    plan.look_again(LOOK_S)
    if observed.members is None:
        plan.blocked_by.append("no broker answers: no broker is evicted")
        return frozenset()
    node, brokers = min(leaving.items())
    waiting = sorted(set(leaving) - {node})
    if waiting:
        plan.blocked_by.append(f"node {node} is drained first; {', '.join(waiting)} after it")
    if any(observed.members[b.spec.group].open_segments is None for b in brokers if b.spec.group in observed.members):
        plan.actions.append(AskCounts())
        return frozenset()
    return frozenset(broker.spec.group for broker in brokers if _may_be_evicted(observed, broker, plan))


def _may_be_evicted(observed: Observed, broker: Broker, plan: Plan) -> bool:
    assert observed.members is not None
    group, view = broker.spec.group, observed.members.get(broker.spec.group)
    name = f"{group}-{broker.spec.slot}"
    if view is None:
        return False
    if view.open_segments:
        because = f" ({view.waits_for})" if view.waits_for else ""
        plan.blocked_by.append(
            f"{view.open_segments} open segments are on {group} still{because}: {broker.name} is not evicted"
        )
        return False
    gate = observed.gates.get(name)
    if gate is None:
        plan.actions.append(AskGate(name))
        return False
    if not gate.is_safe:
        plan.blocked_by.append(f"{broker.name} is not evicted: {gate.text}")
    return gate.is_safe
