"""Draws a cluster and a plan for a terminal: pure functions from a look to objects that rich prints."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..plan.chains import WEAK
from ..plan.observed import PodView
from ..spec.base import Condition
from ..spec.broker import Broker
from ..spec.cluster import BrokerCluster
from ..spec.group import BrokerGroup
from .checks import REPORTED_AGE_MAX, has_operator
from .look import Look

NODES_DRAWN_MAX = 8
"""The most machines that are drawn as columns. With more, each row names the machines of its members."""

TOPICS_NAMED_MAX = 10

GOOD, BAD, UNKNOWN = "green", "red", "yellow"


def draw_status(look: Look) -> RenderableType:
    """The cluster on one screen: conditions, the operation under way, broker groups by machine, topics."""
    parts: list[RenderableType] = [_headline(look), _doing(look.cluster, look.now), Text(), _groups(look)]
    parts += [Text(f"{group} cannot leave: {waits_for}", style=BAD) for group, waits_for in look.held_up.items()]
    parts += [Text(), _topics(look), _consumer_groups(look)]
    if look.unreadable:
        parts.append(Text(f"not shown, because you may not read it: {', '.join(sorted(look.unreadable))}", style="dim"))
    return Group(*(part for part in parts if part is not None))


def draw_plan(cluster: BrokerCluster, now: datetime) -> RenderableType:
    """What the operator is about to do, what it waits for, and how to approve it."""
    status = cluster.status
    ready = status.condition("Ready")
    parts: list[RenderableType] = [_doing(cluster, now)]
    if ready is not None and ready.status == "Unknown":
        parts.insert(0, Text(ready.message, style=BAD))
    if not status.planned_changes:
        parts.append(Text("nothing is planned"))
        return Group(*parts)
    table = Table("#", "action", "object", "why", box=None, pad_edge=False)
    for number, change in enumerate(status.planned_changes, 1):
        table.add_row(str(number), change.action, change.object, change.reason)
    parts.append(table)
    if cluster.spec.change_approval == "Manual":
        digest = status.planned_changes[0].hash
        parts.append(
            Text.assemble("to let it happen: ", (f"kubectl seriatim plan {cluster.name} --approve {digest}", "bold"))
        )
    return Group(*parts)


def ago(since: datetime, now: datetime) -> str:
    """The time since `since`, in one unit."""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _headline(look: Look) -> Text:
    cluster = look.cluster
    text = Text.assemble((cluster.name, "bold"), f" in {cluster.namespace}  ")
    for kind in ("Ready", "Degraded", "Progressing"):
        text.append_text(_condition(kind, cluster.status.condition(kind)))
    reported = cluster.status.reported_at
    if reported is not None and (look.now - reported > REPORTED_AGE_MAX or not has_operator(look)):
        stale = f"no operator acts: all this is as it was {ago(reported, look.now)} ago"
        text.append(f"\n{stale}; kubectl seriatim doctor says why", style=BAD)
    return text.append(f"\nclients begin at {cluster.status.bootstrap or '(not yet known)'}", style="dim")


def _condition(kind: str, condition: Condition | None) -> Text:
    if condition is None or condition.status == "Unknown":
        return Text(f"{kind}? ", style=UNKNOWN)
    is_true = condition.status == "True"
    is_good = is_true if kind == "Ready" else not is_true
    style = GOOD if is_good else UNKNOWN if kind == "Progressing" else BAD
    word = kind if is_true else f"not {kind}"
    told = f" ({condition.message or condition.reason})" if not is_good else ""
    return Text(f"{word}{told}  ", style=style)


def _doing(cluster: BrokerCluster, now: datetime) -> Text:
    text = Text()
    operation = cluster.status.operation
    if operation is not None:
        text.append(f"now: {operation.kind} of {operation.object}, for {ago(operation.started_at, now)}", style="bold")
        if now > operation.expires_at:
            text.append(" (overdue)", style=BAD)
        text.append("\n")
    if cluster.status.blocked_by:
        text.append(f"waits for: {cluster.status.blocked_by}\n", style=UNKNOWN)
    if cluster.spec.paused:
        text.append("paused: the operator changes nothing until spec.paused is removed\n", style=UNKNOWN)
    if not text.plain:
        text.append("nothing is under way", style="dim")
    text.rstrip()
    return text


def _groups(look: Look) -> RenderableType:
    """Broker groups as rows and machines as columns, so that a column shows what the loss of its machine takes."""
    nodes = sorted({pod.node for pod in look.pods.values() if pod.node} | set(look.nodes))
    as_matrix = 0 < len(nodes) <= NODES_DRAWN_MAX
    table = Table("group", "wanted", "weight", "heads", "segments", box=None, pad_edge=False)
    for node in nodes if as_matrix else ():
        view = look.nodes.get(node)
        table.add_column(Text(node, style="" if view is None or view.is_ready else BAD))
    table.add_column("" if as_matrix else "members")
    for group in look.groups:
        members = [broker for broker in look.brokers if broker.spec.group == group.spec.group]
        cells: list[RenderableType] = list(_facts(group))
        placed = [_member(look, broker, with_node=not as_matrix) for broker in members]
        if as_matrix:
            for node in nodes:
                cells.append(_join(m for m, b in zip(placed, members, strict=True) if _node(look, b) == node))
            cells.append(_join(m for m, b in zip(placed, members, strict=True) if _node(look, b) not in nodes))
        else:
            cells.append(_join(placed))
        table.add_row(*cells)
    legend = Text("● serves  ◐ starts  ○ does not run  ✗ disk lost; with the slot", style="dim")
    return Group(table, legend)


def _facts(group: BrokerGroup) -> tuple[Text, ...]:
    def count(number: int | None) -> str:
        return "-" if number is None else f"{number:,}"

    whole = group.status.condition("Whole")
    name_style = GOOD if whole is not None and whole.status == "True" else BAD if whole is not None else UNKNOWN
    state = Text(group.spec.state, style="" if group.spec.state == "Active" else UNKNOWN)
    counts = (f"{group.spec.weight:g}", count(group.status.heads), count(group.status.segments))
    return (Text(group.spec.group, style=name_style), state, *(Text(each, justify="right") for each in counts))


def _member(look: Look, broker: Broker, *, with_node: bool) -> Text:
    pod = look.pods.get(broker.name)
    mark, style = _mark(look, broker, pod)
    text = Text(f"{mark} {broker.spec.slot}", style=style)
    if with_node:
        text.append(f" {_node(look, broker) or 'no node'}")
    if pod is not None and pod.is_deleting:
        text.append(" ending", style=UNKNOWN)
    elif pod is not None and pod.waiting:
        text.append(f" {pod.waiting}", style=BAD)
    return text


def _mark(look: Look, broker: Broker, pod: PodView | None) -> tuple[str, str]:
    if broker.status.disk_lost is not None:
        return "✗", BAD
    node = look.nodes.get(pod.node) if pod is not None else None
    if pod is None or not pod.is_running or (node is not None and not node.is_ready):
        return "○", BAD
    return ("●", GOOD) if pod.is_ready else ("◐", UNKNOWN)


def _node(look: Look, broker: Broker) -> str:
    pod = look.pods.get(broker.name)
    return (pod.node if pod is not None else "") or broker.status.node


def _join(texts: object) -> Text:
    return Text("  ").join(texts)  # type: ignore[arg-type]


def _topics(look: Look) -> Text:
    states = Counter(topic.status.state for topic in look.topics)
    text = Text(f"{len(look.topics):,} topics")
    for state, number in sorted(states.items()):
        style = GOOD if state == "Healthy" else UNKNOWN if state in (*WEAK, "Unknown") else BAD
        text.append(f"  {number:,} {state}", style=style)
    unwell = [topic for topic in look.topics if topic.status.state != "Healthy"]
    for topic in unwell[:TOPICS_NAMED_MAX]:
        ready = topic.status.condition("Ready")
        why = f": {ready.message}" if ready is not None and ready.status != "True" and ready.message else ""
        text.append(f"\n  {topic.name} is {topic.status.state}{why}")
    if len(unwell) > TOPICS_NAMED_MAX:
        text.append(f"\n  and {len(unwell) - TOPICS_NAMED_MAX:,} more", style="dim")
    return text


def _consumer_groups(look: Look) -> Text:
    states = Counter(group.status.state for group in look.consumer_groups)
    text = Text(f"{len(look.consumer_groups):,} consumer groups")
    for state, number in sorted(states.items()):
        text.append(f"  {number:,} {state}", style=BAD if state == "Behind" else "")
    for group in [each for each in look.consumer_groups if each.status.state == "Behind"][:TOPICS_NAMED_MAX]:
        text.append(f"\n  {group.name} is behind in {group.spec.topic}: {group.status.lag_bucket}")
    for group in [each for each in look.consumer_groups if each.status.is_true("KeysParked")][:TOPICS_NAMED_MAX]:
        text.append(f"\n  {group.name} has {group.status.parked_keys} parked keys in {group.spec.topic}", style=BAD)
    return text
