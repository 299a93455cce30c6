"""What is drawn: the facts that an administrator looks for are at their expected places."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType
from seriatim_api.v1 import broker_pb2, common_pb2, records_pb2
from seriatim_operator.plan.observed import NodeView
from seriatim_operator.plugin.chains import draw_topic, draw_topic_status, find_topic
from seriatim_operator.plugin.draining import Progress, check_drain, find_broker_group, watch_drain
from seriatim_operator.plugin.errors import PluginError
from seriatim_operator.plugin.pictures import ago, draw_plan, draw_status

from .objects import NOW, broker, cluster, condition, consumer_group, group, healthy, topic, with_pod


def drawn(picture: RenderableType, width: int = 120) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(picture)
    return [line.rstrip() for line in captured.get().splitlines()]


def row(lines: list[str], first: str) -> str:
    return next(line for line in lines if line.startswith(first))


def test_status_shows_where_everything_stands() -> None:
    lines = drawn(draw_status(healthy()))
    assert lines[0].split() == ["orders", "in", "shop", "Ready", "not", "Degraded", "not", "Progressing"]
    assert "orders.shop.svc:7100" in lines[1]
    assert row(lines, "group").split() == ["group", "wanted", "weight", "heads", "segments", "n1", "n2", "n3"]
    g0, g2 = row(lines, "g0"), row(lines, "g2")
    assert g0.split() == ["g0", "Active", "1", "4", "9", "●", "0", "●", "1"]
    header = row(lines, "group")
    assert g0.index("● 0") == header.index("n1")
    assert g2.index("● 0") == header.index("n3")
    assert "2 topics  2 Healthy" in lines


def test_status_shows_what_is_not_well() -> None:
    look = with_pod(healthy(), "orders-g0-0-aaaa", conditions=[{"type": "Ready", "status": "False"}])
    look = with_pod(look, "orders-g1-0-aaaa", containerStatuses=[])
    lost = broker("g2", 0, diskLost={"at": "2026-11-20T11:00:00Z", "proof": "gone"})
    brokers = tuple(lost if each.name == lost.name else each for each in look.brokers)
    sick = cluster({"conditions": [condition("Ready", "False", "SomeServing", "1 of 3 groups")], "blockedBy": "a node"})
    look = dataclasses.replace(look, brokers=brokers, cluster=sick, topics=(topic("a", "Lost"), topic("b")))
    lines = drawn(draw_status(look))
    assert "not Ready (1 of 3 groups)" in lines[0]
    assert "waits for: a node" in lines
    assert "◐ 0" in row(lines, "g0")
    assert "○ 0" in row(lines, "g1")
    assert "✗ 0" in row(lines, "g2")
    assert "  a is Lost" in lines


def test_status_says_what_a_group_that_leaves_waits_for() -> None:
    stuck = condition("Drained", "False", "HeldUp", "head orders/3: no complete group can take it")
    slow = condition("Drained", "False", "HoldsData", "4 segments")
    look = healthy(groups=(group("g0", "Draining", conditions=[slow]), group("g1", "Draining", conditions=[stuck])))
    lines = drawn(draw_status(look))
    assert "g1 cannot leave: head orders/3: no complete group can take it" in lines
    assert not any(line.startswith("g0 cannot leave") for line in lines)


def test_consumer_groups_that_are_behind_are_named() -> None:
    groups = (consumer_group("bill", "Active"), consumer_group("audit", "Behind", ">1000"))
    lines = drawn(draw_status(healthy(consumer_groups=groups)))
    assert "2 consumer groups  1 Active  1 Behind" in lines
    assert "  audit is behind in events: >1000" in lines


def test_consumer_groups_with_parked_keys_are_named() -> None:
    parked = [condition("KeysParked", "True", "KeysWait", "on partitions 3")]
    groups = (consumer_group("bill", "Active", parkedKeys="<=10", conditions=parked), consumer_group("audit", "Active"))
    lines = drawn(draw_status(healthy(consumer_groups=groups)))
    assert "  bill has <=10 parked keys in events" in lines
    assert not any("audit has" in line for line in lines)


def test_with_many_machines_members_name_theirs() -> None:
    many = {
        f"m{n}": NodeView(f"m{n}", f"m{n}", is_ready=True, is_leaving=False, is_out_of_service=False) for n in range(9)
    }
    lines = drawn(draw_status(healthy(nodes=many)))
    assert row(lines, "g1").split() == ["g1", "Active", "1", "4", "9", "●", "0", "n2", "●", "1", "n3"]


def test_what_may_not_be_read_is_named() -> None:
    assert "not shown, because you may not read it: Node" in drawn(draw_status(healthy(unreadable=frozenset({"Node"}))))


@pytest.mark.parametrize(("age", "is_stale"), [(timedelta(seconds=100), False), (timedelta(minutes=12), True)])
def test_a_status_without_an_operator_says_how_old_it_is(age: timedelta, is_stale: bool) -> None:
    lines = drawn(draw_status(healthy(cluster=cluster({"reportedAt": (NOW - age).isoformat()}))))
    told = "no operator acts: all this is as it was 12m ago; kubectl seriatim doctor says why"
    assert (told in lines) == is_stale


def test_a_status_says_at_once_that_the_operator_has_no_pod_that_is_ready() -> None:
    reported = {"reportedAt": (NOW - timedelta(seconds=20)).isoformat()}
    told = "no operator acts: all this is as it was 20s ago; kubectl seriatim doctor says why"
    assert told in drawn(draw_status(healthy(cluster=cluster(reported), operator_pods=())))
    assert told not in drawn(draw_status(healthy(cluster=cluster(reported))))


def test_a_member_on_a_silent_node_does_not_start() -> None:
    nodes = {
        name: NodeView(name, name, is_ready=name != "n2", is_leaving=False, is_out_of_service=False)
        for name in ("n1", "n2", "n3")
    }
    look = healthy(nodes=nodes)
    for name, view in look.pods.items():
        if view.node == "n2":
            unready = [{"type": "Ready", "status": "False"}]
            look = with_pod(look, name, conditions=unready)
    lines = drawn(draw_status(look))
    assert "○ 0" in row(lines, "g1")
    assert "◐" not in row(lines, "g1")


def test_plan_names_each_change_and_how_to_approve() -> None:
    change = {"action": "Restart", "object": "orders-g0-0-aaaa", "reason": "its template changed", "hash": "abc123"}
    waiting = cluster({"plannedChanges": [change], "blockedBy": "approval"}, changeApproval="Manual")
    lines = drawn(draw_plan(waiting, NOW))
    assert "waits for: approval" in lines
    assert row(lines, "1").split()[:3] == ["1", "Restart", "orders-g0-0-aaaa"]
    assert lines[-1] == "to let it happen: kubectl seriatim plan orders --approve abc123"
    automatic = cluster({"plannedChanges": [change]})
    assert "approve" not in " ".join(drawn(draw_plan(automatic, NOW)))
    assert drawn(draw_plan(cluster(), NOW))[-1] == "nothing is planned"


def test_plan_says_first_that_the_operator_cannot_look() -> None:
    old = cluster({"conditions": [condition("Ready", "Unknown", "NotRenewed", "passes fail: no leader")]})
    assert drawn(draw_plan(old, NOW))[0] == "passes fail: no leader"


def test_operation_is_shown_with_its_age() -> None:
    operation = {
        "kind": "Roll",
        "object": "x",
        "startedAt": "2026-11-20T11:50:00Z",
        "expiresAt": "2026-11-20T11:59:00Z",
    }
    assert drawn(draw_plan(cluster({"operation": operation}), NOW))[0] == "now: Roll of x, for 10m (overdue)"


@pytest.mark.parametrize(("seconds", "text"), [(-5, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (900_000, "10d")])
def test_ages_have_one_unit(seconds: int, text: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


# ---- chains ---------------------------------------------------------------------------------------------

SEALED, OPEN = records_pb2.SEGMENT_STATE_SEALED, records_pb2.SEGMENT_STATE_OPEN
UNSETTLED, LOST = records_pb2.SEGMENT_STATE_UNSETTLED, records_pb2.SEGMENT_STATE_LOST


def segment(
    no: int, in_group: str, state: Any = SEALED, length: int | None = 0, copies: int = 2
) -> records_pb2.SegmentRecord:
    members = [common_pb2.Member(broker=f"{in_group}-{slot}") for slot in range(copies)]
    return records_pb2.SegmentRecord(no=no, group=in_group, state=state, sealed_len=length, members=members)


def described(*segments: records_pb2.SegmentRecord, **chain: Any) -> broker_pb2.DescribeTopicResponse:
    record = records_pb2.ChainRecord(segments=segments, send_chain=["g2", "g0", "g1"], epoch=7, **chain)
    made = records_pb2.TopicRecord(name="events", state=records_pb2.TOPIC_STATE_READY)
    return broker_pb2.DescribeTopicResponse(topic=made, chains=[record])


def test_chain_is_drawn_from_oldest_to_open() -> None:
    lines = drawn(
        draw_topic(
            described(
                segment(0, "g0", length=1024),
                segment(1, "g1", length=10, copies=1),
                segment(2, "g0", UNSETTLED, None),
                segment(3, "g1", LOST, 5),
                segment(4, "g2", OPEN, None),
            )
        )
    )
    assert lines[0] == "events  1 partitions, ready"
    assert row(lines, "0").split("  ")[-1].strip() == "7"
    assert "g0:1,024 → g1:10 ½ → g0:? ? → g1:5 ✗ → g2 ▶ g2-0" in row(lines, "0")
    assert "g0 g1" in row(lines, "0"), "where a switch would look next"


def test_long_chains_show_the_newest_and_count_the_rest() -> None:
    segments = [segment(number, "g0", length=number) for number in range(20)]
    line = row(drawn(draw_topic(described(*segments, segment(20, "g1", OPEN, None), page_count=2)), width=160), "0")
    assert "(525 older)" in line
    assert "g0:13" in line
    assert "g0:12 " not in line


def test_topic_is_drawn_from_its_object() -> None:
    known = topic("a", partitions=70, segments=80, sealedMessages=1234, chains=[CHAIN])
    lines = drawn(draw_topic_status(known))
    assert lines[0] == "a  70 partitions, Healthy, 80 segments, 1,234 messages in closed ones"
    assert row(lines, "0").split() == ["0", "3", "g1", "g1-0"]
    assert lines[-1] == "and 69 partitions more"


CHAIN = {"partition": 0, "segment": 3, "group": "g1", "master": "g1-0"}


def test_topics_are_found_by_either_name() -> None:
    named = topic("a").model_copy(update={"spec": topic("a").spec.model_copy(update={"name": "Events.2026"})})
    look = healthy(topics=(named,))
    assert find_topic(look, "a") is find_topic(look, "Events.2026") is named
    assert find_topic(look, "b") is None


# ---- draining -------------------------------------------------------------------------------------------


def test_groups_are_found_by_either_name() -> None:
    assert find_broker_group(healthy(), "g1").name == find_broker_group(healthy(), "orders-g1").name == "orders-g1"
    with pytest.raises(PluginError, match="there is g0, g1, g2"):
        find_broker_group(healthy(), "g9")


@pytest.mark.parametrize(
    ("others", "can"),
    [
        ((group("g1"),), True),
        ((group("g1", state="Cordoned"),), False),
        ((group("g1", whole=False),), False),
        ((group("g1", whole=False), group("g2")), True),
        ((), False),
    ],
)
def test_a_drain_needs_somewhere_to_go(others: tuple[Any, ...], can: bool) -> None:
    look = healthy(groups=(group("g0"), *others))
    if can:
        check_drain(look, look.groups[0])
    else:
        with pytest.raises(PluginError, match="nothing can leave g0"):
            check_drain(look, look.groups[0])


async def test_drain_is_watched_to_its_end() -> None:
    left = iter([Progress(2, 9, False), Progress(0, 4, False), Progress(0, 0, True)])
    shown: list[Progress] = []

    async def look() -> Progress:
        return next(left)

    assert (await watch_drain(look, 60.0, shown.append, poll_s=0.0)).is_drained
    assert [progress.segments for progress in shown] == [9, 4, 0]


async def test_watch_ends_with_its_time() -> None:
    async def look() -> Progress:
        return Progress(1, 1, False, "g0-1 must come back")

    at = await watch_drain(look, 0.0, lambda _: None)
    assert (at.is_drained, at.waits_for) == (False, "g0-1 must come back")
