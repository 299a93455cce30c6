"""The doctor: finds nothing in a cluster that is well, and each thing that is wrong, with what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console
from seriatim_api.v1 import broker_pb2, common_pb2, operations_pb2, records_pb2
from seriatim_operator.plan.observed import ClassView, NodeView
from seriatim_operator.plugin import checks, member_checks
from seriatim_operator.plugin.doctor import CHECKS
from seriatim_operator.plugin.findings import Finding, Level, draw_findings
from seriatim_operator.plugin.look import Look, etcd_services

from .objects import (
    GROUPS,
    NOW,
    broker,
    cluster,
    condition,
    consumer_group,
    etcd_pod,
    group,
    healthy,
    lease,
    operator_pod,
    secrets,
    topic,
    with_pod,
)

NOT_READY = [{"type": "Ready", "status": "False"}]


def examine(look: Look) -> list[Finding]:
    """What all checks find that is not well."""
    return [finding for check in CHECKS for finding in check(look) if finding.level is not Level.WELL]


def test_nothing_is_found_where_all_is_well() -> None:
    assert examine(healthy()) == []


def gone(name: str) -> NodeView:
    return NodeView(name, name, is_ready=False, is_leaving=False, is_out_of_service=False)


def budget(labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "mine"}, "spec": {"selector": {"matchLabels": labels}}}


def grouped(type_: str, status: str, reason: str, message: str, **fields: object) -> Look:
    """A cluster with a consumer group that has this condition."""
    bill = consumer_group("bill", "Active", conditions=[condition(type_, status, reason, message)], **fields)
    return healthy(consumer_groups=(bill,))


def refused(told: str) -> Look:
    """A cluster with a child that the API refuses."""
    conditions = [condition("Degraded", "True", "ChildRefused", told)]
    return healthy(cluster=cluster({"conditions": conditions, "blockedBy": told}))


SICK: dict[str, tuple[Callable[[], Look], Level, str, str]] = {
    "no operator": (lambda: healthy(operator_pods=()), Level.BAD, "operator", "no pod"),
    "operator not ready": (
        lambda: healthy(operator_pods=(operator_pod(False),)),
        Level.BAD,
        "operator",
        "none of its pods is",
    ),
    "etcd without an image": (
        lambda: healthy(etcd_pods=(etcd_pod(), etcd_pod(1, ready=False, waiting="ImagePullBackOff"))),
        Level.BAD,
        "etcd pod shop/etcd-1",
        "container etcd has no image (ImagePullBackOff)",
    ),
    "etcd without the image that prepares it": (
        lambda: healthy(etcd_pods=(etcd_pod(ready=False, preparing="ErrImagePull"),)),
        Level.BAD,
        "etcd pod shop/etcd-0",
        "container member has no image (ErrImagePull)",
    ),
    "etcd member away": (
        lambda: healthy(
            cluster=cluster(etcd={"endpoints": [f"etcd-{number}.etcd.shop.svc:2379" for number in range(2)]}),
            etcd_pods=(etcd_pod(),),
        ),
        Level.BAD,
        "etcd pod etcd-1",
        "not there",
    ),
    "etcd member whose disk is gone": (
        lambda: healthy(
            etcd_pods=(etcd_pod(), etcd_pod(1, ready=False, waiting="PodInitializing"), etcd_pod(2)),
            mount_fails={"uid-etcd-1": "path /mnt/disk-1 does not exist"},
        ),
        Level.BAD,
        "etcd pod shop/etcd-1",
        "/mnt/disk-1 does not exist",
    ),
    "etcd not ready": (
        lambda: healthy(etcd_pods=(etcd_pod(), etcd_pod(1, ready=False, waiting="CrashLoopBackOff"))),
        Level.BAD,
        "etcd pod shop/etcd-1",
        "not ready (CrashLoopBackOff)",
    ),
    "old lease": (
        lambda: healthy(leases={"a/b": lease("2026-11-20T11:00:00.000000Z")}),
        Level.BAD,
        "operator",
        "3600 s old",
    ),
    "operator behind": (
        lambda: healthy(cluster=cluster({"observedGeneration": 0})),
        Level.WARNING,
        "operator",
        "generation 0 of 1",
    ),
    "no class": (lambda: healthy(storage_class=None), Level.BAD, "StorageClass", "there is no class of that name"),
    "immediate class": (
        lambda: healthy(storage_class=ClassView("local-nvme", waits_for_consumer=False, can_expand=False)),
        Level.BAD,
        "StorageClass",
        "before its pod has a node",
    ),
    "node away": (
        lambda: healthy(nodes={**healthy().nodes, "n1": gone("n1")}),
        Level.BAD,
        "nodes",
        "n1 is not ready",
    ),
    "too few nodes": (lambda: healthy(nodes={"n9": gone("n9")}), Level.BAD, "nodes", "0 are ready"),
    "degraded": (
        lambda: healthy(cluster=cluster({"conditions": [condition("Degraded", "True", "EtcdUnreachable", "no etcd")]})),
        Level.BAD,
        "cluster",
        "EtcdUnreachable: no etcd",
    ),
    "refused child": (
        lambda: refused("Pod x is refused: exceeded quota"),
        Level.BAD,
        "cluster",
        "ChildRefused: Pod x is refused: exceeded quota",
    ),
    "passes that fail": (
        lambda: healthy(cluster=cluster({"conditions": [condition("Ready", "Unknown", "NotRenewed", "no leader")]})),
        Level.BAD,
        "cluster",
        "NotRenewed: no leader",
    ),
    "old status": (
        lambda: healthy(cluster=cluster({"reportedAt": (NOW - timedelta(minutes=3)).isoformat()})),
        Level.BAD,
        "cluster",
        "its status is 180 s old",
    ),
    "parked keys": (
        lambda: grouped("KeysParked", "True", "KeysWait", "on partitions 3", parkedKeys="<=10"),
        Level.WARNING,
        "consumer group bill",
        "<=10 keys of events are parked",
    ),
    "dead letters held up": (
        lambda: grouped("DeadLettering", "False", "HeldUp", "messages wait for topic letters"),
        Level.WARNING,
        "consumer group bill",
        "messages wait for topic letters",
    ),
    "another mode waits": (
        lambda: grouped("Ready", "False", "ConsumersConnected", "stop the consumers"),
        Level.WARNING,
        "consumer group bill",
        "ConsumersConnected: stop the consumers",
    ),
    "drain held up": (
        lambda: healthy(
            groups=(group("g1", "Draining", conditions=[condition("Drained", "False", "HeldUp", "g0-1")]),)
        ),
        Level.BAD,
        "drain of g1",
        "g0-1",
    ),
    "blocked": (lambda: healthy(cluster=cluster({"blockedBy": "approval"})), Level.WARNING, "cluster", "approval"),
    "paused": (lambda: healthy(cluster=cluster(paused=True)), Level.WARNING, "cluster", "paused"),
    "overdue": (
        lambda: healthy(
            cluster=cluster(
                {
                    "operation": {
                        "kind": "Roll",
                        "object": "x",
                        "startedAt": "2026-11-20T11:00:00Z",
                        "expiresAt": "2026-11-20T11:15:00Z",
                    }
                }
            )
        ),
        Level.WARNING,
        "cluster",
        "Roll of x takes longer",
    ),
    "no budget": (lambda: healthy(budgets={}), Level.BAD, "budget orders-g0", "not there"),
    "second budget": (
        lambda: healthy(budgets={**healthy().budgets, "mine": budget({"app.kubernetes.io/name": "seriatim"})}),
        Level.BAD,
        "budget mine",
        "two budgets",
    ),
    "no policy": (lambda: healthy(policies={}), Level.BAD, "NetworkPolicy", "not there"),
    "a copy away": (lambda: healthy(topics=(topic("a", "CopyAway"),)), Level.WARNING, "topics", "1 CopyAway: a"),
    "a copy behind": (lambda: healthy(topics=(topic("a", "CatchingUp"),)), Level.WARNING, "topics", "1 CatchingUp: a"),
    "no copy": (lambda: healthy(topics=(topic("a", "Unreachable"),)), Level.BAD, "topics", "1 Unreachable: a"),
    "one copy": (lambda: healthy(topics=(topic("a", "OneCopy"),)), Level.WARNING, "topics", "1 OneCopy: a"),
    "lost": (lambda: healthy(topics=(topic("a", "Lost"),)), Level.BAD, "topics", "1 Lost: a"),
    "no secret": (
        lambda: healthy(secrets={k: v for k, v in secrets(cluster()).items() if k != "orders-client-tls"}),
        Level.BAD,
        "Secret orders-client-tls",
        "not there",
    ),
    "secret damaged": (
        lambda: healthy(
            secrets={
                **secrets(cluster()),
                "orders-ca": {"metadata": {"name": "orders-ca"}, "data": {"tls.crt": "eA=="}},
            }
        ),
        Level.BAD,
        "Secret orders-ca",
        "tls.crt",
    ),
    "certificate ends soon": (
        lambda: healthy(now=NOW + timedelta(days=80)),
        Level.WARNING,
        "Secret orders-broker-tls",
        "in 10 days",
    ),
    "certificate ended": (
        lambda: healthy(now=NOW + timedelta(days=91)),
        Level.BAD,
        "Secret orders-broker-tls",
        "ended on",
    ),
    "two authorities": (
        lambda: healthy(secrets=_two_authorities()),
        Level.BAD,
        "Secret orders-broker-tls",
        "does not trust the certificate in orders-client-tls",
    ),
    "plain text": (
        lambda: healthy(cluster=cluster(tls={"enabled": False})),
        Level.WARNING,
        "certificates",
        "does not use TLS",
    ),
    "pod missing": (lambda: healthy(pods={}), Level.BAD, "pod orders-g0-0-aaaa", "not there"),
    "pod does not serve": (
        lambda: with_pod(
            healthy(),
            "orders-g0-0-aaaa",
            conditions=NOT_READY,
            containerStatuses=[
                {
                    "name": "broker",
                    "restartCount": 7,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 2, "message": '{"broker":"g0-0","text":"no etcd"}'}},
                }
            ],
        ),
        Level.BAD,
        "pod orders-g0-0-aaaa",
        "CrashLoopBackOff): no etcd",
    ),
    "two operators": (
        lambda: healthy(operator_pods=(operator_pod(), operator_pod(namespace="other", watched="x,shop"))),
        Level.BAD,
        "operator",
        "2 operators watch namespace shop: other/seriatim-operator; seriatim-system/seriatim-operator",
    ),
    "pod without an image": (
        lambda: with_pod(
            healthy(),
            "orders-g0-0-aaaa",
            conditions=NOT_READY,
            containerStatuses=[{"name": "broker", "state": {"waiting": {"reason": "ErrImagePull"}}}],
        ),
        Level.BAD,
        "pod orders-g0-0-aaaa",
        "its image cannot be pulled",
    ),
    "members together": (lambda: _together(), Level.BAD, "group g0", "share n1"),
    "foreign disk": (
        lambda: healthy(
            brokers=(broker("g0", 0, conditions=[condition("DiskHealthy", "False", "ForeignDisk", "not mine")]),)
        ),
        Level.BAD,
        "disk of orders-g0-0-aaaa",
        "ForeignDisk: not mine",
    ),
    "disk lost": (
        lambda: healthy(brokers=(broker("g0", 0, diskLost={"at": "2026-11-20T11:00:00Z", "proof": "no such node"}),)),
        Level.WARNING,
        "disk of orders-g0-0-aaaa",
        "no such node",
    ),
    "host gone": (
        lambda: healthy(nodes={name: node for name, node in healthy().nodes.items() if name != "n1"}),
        Level.BAD,
        "disk of orders-g0-0-aaaa",
        "it is part of n1, and no Node",
    ),
    "claim of no Broker": (
        lambda: healthy(brokers=healthy().brokers[1:]),
        Level.WARNING,
        "claim orders-g0-0-aaaa",
        "it has no Broker",
    ),
    "two images": (lambda: _two_images(), Level.WARNING, "images", "several"),
    "one machine has all": (
        lambda: healthy(groups=(group("g0"), group("g2"))),
        Level.WARNING,
        "nodes",
        "every broker group has a member on n1",
    ),
}


def _two_authorities() -> dict[str, Any]:
    from seriatim_operator.cluster import pki
    from seriatim_operator.resources.secrets import tls_secret

    other = pki.new_authority("orders", "shop", NOW)
    leaf = other.issue(pki.client_request("orders", "shop", "client", timedelta(days=90)), NOW)
    files = {"tls.crt": leaf.certificate_pem, "tls.key": leaf.key_pem, "ca.crt": pki.write_bundle(other.anchors)}
    return {**secrets(cluster()), "orders-client-tls": tls_secret(cluster(), "orders-client-tls", files)}


def _together() -> Look:
    look = healthy()
    pods = {**look.pods, "orders-g0-1-aaaa": dataclasses.replace(look.pods["orders-g0-1-aaaa"], node="n1")}
    return dataclasses.replace(look, pods=pods)


def _two_images() -> Look:
    look = healthy()
    manifest = look.pod_manifests["orders-g0-0-aaaa"]
    manifest["spec"]["containers"][0]["image"] = "other"
    return look


def test_a_refused_child_is_told_once() -> None:
    assert len(examine(refused("Pod x is refused: exceeded quota"))) == 1


def test_the_remedy_for_a_missing_image_is_no_log() -> None:
    make, _, about, _ = SICK["pod without an image"]
    (found,) = [finding for finding in examine(make()) if finding.about == about]
    assert "imagePullSecrets" in found.remedy
    assert "kubectl logs" not in found.remedy


def test_a_pod_without_a_node_is_told_in_the_words_of_the_scheduler() -> None:
    told = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    more = f"{told} preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": more}
    look = with_pod(healthy(), "orders-g0-0-aaaa", conditions=[*NOT_READY, unscheduled], containerStatuses=[])
    pods = {**look.pods, "orders-g0-0-aaaa": dataclasses.replace(look.pods["orders-g0-0-aaaa"], is_scheduled=False)}
    texts = [finding.text for finding in examine(dataclasses.replace(look, pods=pods))]
    assert f"no node takes it: {told}" in texts


@pytest.mark.parametrize("case", sorted(SICK))
def test_what_is_wrong_is_found_with_what_to_do(case: str) -> None:
    make, level, about, text = SICK[case]
    found = [finding for finding in examine(make()) if finding.about.startswith(about) and text in finding.text]
    assert found, examine(make())
    assert found[0].level is level
    assert found[0].remedy


@pytest.mark.parametrize(
    ("version", "is_well"), [("v1.36.3", True), ("v1.30.0", True), ("v1.29.9", False), ("odd", True)]
)
def test_kubernetes_must_be_new_enough(version: str, is_well: bool) -> None:
    assert (checks.check_kubernetes(version)[0].level is Level.WELL) == is_well


def test_what_may_not_be_read_is_said_and_not_guessed() -> None:
    kinds = frozenset({"Pod", "Node", "StorageClass", "Secret", "PodDisruptionBudget", "NetworkPolicy"})
    look = healthy(unreadable=kinds, pods={}, nodes={}, storage_class=None, secrets={}, budgets={}, policies={})
    levels = {finding.level for finding in examine(look)}
    assert levels == {Level.UNKNOWN}


# ---- what the brokers say -------------------------------------------------------------------------------


def descriptions(**changes: Any) -> list[operations_pb2.BrokerGroupDescription]:
    """Three groups as the brokers know them; keywords change the first member."""
    groups = []
    for name in GROUPS:
        members = [
            operations_pb2.GroupMember(
                record=records_pb2.MemberRecord(
                    member=common_pb2.Member(broker=f"{name}-{slot}", incarnation=name * 4),
                    admitted=True,
                    protocol_min=1,
                    protocol_max=2,
                ),
                live=True,
            )
            for slot in range(2)
        ]
        groups.append(operations_pb2.BrokerGroupDescription(record={"group": name}, members=members))
    first = groups[0].members[0]
    if "live" in changes:
        first.live = changes.pop("live")
    for name, value in changes.items():
        setattr(first.record, name, value) if name != "incarnation" else setattr(first.record.member, name, value)
    return groups


@pytest.mark.parametrize(
    ("endpoints", "services"),
    [
        (("a-0.a.shop.svc:2379", "a-1.a.shop.svc:2379"), {"a": "shop"}),
        (("a-0.a.shop.svc.corp.example:2379",), {"a": "shop"}),
        (("a.shop.svc:2379",), {"a": "shop"}),
        (("etcd-1.example.com:2379", "10.0.0.7:2379", "etcd:2379"), {}),
    ],
)
def test_services_of_an_etcd_inside_of_kubernetes_are_known_by_its_endpoints(
    endpoints: tuple[str, ...], services: dict[str, str]
) -> None:
    assert etcd_services(cluster(etcd={"endpoints": list(endpoints)})) == services


def test_members_that_all_know_are_well() -> None:
    found = [*member_checks.check_members(healthy(), descriptions()), *member_checks.check_protocol(descriptions())]
    assert {finding.level for finding in found} == {Level.WELL}
    assert "protocol 2" in found[-1].text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"live": False}, "do not hear from it"),
        ({"admitted": False}, "not admitted"),
        ({"incarnation": "other"}, "its slot belongs to the disk other"),
    ],
)
def test_members_that_differ_are_told(changes: dict[str, Any], text: str) -> None:
    found = member_checks.check_members(healthy(), descriptions(**changes))
    assert [text in finding.text for finding in found] == [True]


def test_members_that_only_one_side_knows_are_told() -> None:
    told = [finding.text for finding in member_checks.check_members(healthy(), descriptions()[1:])]
    assert told == ["the brokers do not know it"] * 2
    fewer = healthy(brokers=healthy().brokers[2:])
    told = [finding.text for finding in member_checks.check_members(fewer, descriptions())]
    assert told == ["the brokers know it, but it has no Broker object"] * 2


def test_versions_with_nothing_in_common_are_told() -> None:
    found = member_checks.check_protocol(descriptions(protocol_min=3, protocol_max=4))
    assert [finding.level for finding in found] == [Level.BAD]


def test_cluster_without_a_controller_is_told() -> None:
    assert member_checks.check_controller(broker_pb2.DescribeClusterResponse())[0].level is Level.BAD
    assert member_checks.check_controller(broker_pb2.DescribeClusterResponse(controller="g0-0")) == []


def test_findings_are_drawn_worst_first() -> None:
    found = [
        Finding(Level.WELL, "a", "fine"),
        Finding(Level.WARNING, "b", "odd", "do b"),
        Finding(Level.BAD, "c", "no", "do c"),
    ]
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(draw_findings(found, verbose=False))
    told = console.export_text().splitlines()
    assert [line.strip() for line in told] == [
        "✘ c: no",
        "remedy: do c",
        "! b: odd",
        "remedy: do b",
        "1 of 3 examinations found nothing wrong",
    ]


def test_many_consumer_groups_with_parked_keys_make_few_findings() -> None:
    parked = [condition("KeysParked", "True", "KeysWait", "on partitions 3")]
    many = tuple(consumer_group(f"g{number}", "Active", conditions=parked) for number in range(30))
    found = checks.check_consumer_groups(healthy(consumer_groups=many))
    assert len(found) == checks.GROUPS_NAMED_MAX + 1
    assert "20 more" in found[-1].text
