"""Remedies that delete something: each is shown only with the proof that it quotes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
from seriatim_operator.plugin.certificate_checks import check_certificates
from seriatim_operator.plugin.checks import check_budgets, check_nodes
from seriatim_operator.plugin.findings import Finding
from seriatim_operator.plugin.look import Look
from seriatim_operator.plugin.member_checks import check_disks
from seriatim_operator.status.cluster import WEAKNESSES

from .objects import broker, cluster, condition, group, healthy, topic, with_pod

NOT_READY = [{"type": "Ready", "status": "False"}]
ONE_COPY = WEAKNESSES["OneCopy"][1].format("events")
DEGRADED = {"conditions": [condition("Degraded", "True", "MembersAway", f"g0-0 is away; {ONE_COPY}")]}
TOLD_LONG_AGO = {"reportedAt": "2026-11-20T11:00:00Z"}


def kept(look: Look | None = None) -> Look:
    """With a claim that an earlier disk of g0-0 left."""
    found = look or healthy()
    claim = copy.deepcopy(found.claims["orders-g0-0-aaaa"])
    claim["metadata"]["name"] = "orders-g0-0-bbbb"
    return dataclasses.replace(found, claims={**found.claims, "orders-g0-0-bbbb": claim})


def about(findings: list[Finding], name: str) -> Finding:
    [found] = [finding for finding in findings if finding.about == name]
    return found


def test_the_claims_of_a_cluster_whose_kind_was_deleted_and_put_back_are_kept() -> None:
    look = healthy(brokers=(), groups=(), pods={})
    findings = check_disks(look)
    assert len([finding for finding in findings if finding.about.startswith("claim ")]) == 6
    for finding in findings:
        assert "delete" not in finding.remedy, finding
        assert "keep it" in finding.remedy, finding


def test_the_claim_of_a_group_that_is_not_asked_for_is_kept() -> None:
    look = healthy(cluster=cluster(groups=2))
    look = dataclasses.replace(look, brokers=tuple(each for each in look.brokers if each.spec.group != "g2"), pods={})
    finding = about(check_disks(look), "claim orders-g2-1-aaaa")
    assert finding.remedy == "keep it; with spec.groups: 3 the operator takes it into use again"


def test_a_claim_that_a_pod_uses_is_kept() -> None:
    finding = about(check_disks(healthy(brokers=())), "claim orders-g0-0-aaaa")
    assert "a pod that uses it" in finding.text


def test_a_former_disk_may_be_deleted_if_all_that_proves_it_is_quoted() -> None:
    finding = about(check_disks(kept()), "claim orders-g0-0-bbbb")
    assert "accept the disk orders-g0-0-aaaa as g0-0, broker group g0 is complete" in finding.text
    assert "all topics have their copies on other disks" in finding.text
    assert finding.remedy.startswith("kubectl -n shop delete pvc orders-g0-0-bbbb")


LACKING: dict[str, Callable[[], Look]] = {
    "do not accept": lambda: healthy(
        brokers=(broker("g0", 0, conditions=[condition("DiskHealthy", "Unknown", "NotJoined")]),)
    ),
    "does not serve": lambda: with_pod(healthy(), "orders-g0-0-aaaa", conditions=NOT_READY),
    "not complete": lambda: healthy(groups=(group("g0", whole=False),)),
    "degraded": lambda: healthy(cluster=cluster(status=DEGRADED)),
    "no operator": lambda: healthy(cluster=cluster(status=TOLD_LONG_AGO)),
    "events is not healthy": lambda: healthy(topics=(topic("events", "CatchingUp"),)),
}


@pytest.mark.parametrize("lacking", LACKING)
def test_a_former_disk_is_kept_while_a_proof_is_missing(lacking: str) -> None:
    finding = about(check_disks(kept(LACKING[lacking]())), "claim orders-g0-0-bbbb")
    assert lacking in finding.text
    assert "delete" not in finding.remedy


def test_a_secret_of_others_is_not_deleted() -> None:
    look = healthy()
    spoilt = {**look.secrets["orders-client-tls"], "data": {}}
    ours = check_certificates(healthy(secrets={**look.secrets, "orders-client-tls": spoilt}))
    assert "its labels say that the operator made it" in about(ours, "Secret orders-client-tls").remedy
    theirs = {**spoilt, "metadata": {"name": "orders-client-tls", "labels": {"app.kubernetes.io/managed-by": "Helm"}}}
    findings = check_certificates(healthy(secrets={**look.secrets, "orders-client-tls": theirs}))
    remedy = about(findings, "Secret orders-client-tls").remedy
    assert "is managed by Helm" in remedy
    assert "delete" not in remedy


def silent(status: dict[str, object]) -> str:
    """What is advised about a node that does not answer."""
    look = healthy(cluster=cluster(status=status))
    nodes = {**look.nodes, "n1": dataclasses.replace(look.nodes["n1"], is_ready=False)}
    return next(f.remedy for f in check_nodes(dataclasses.replace(look, nodes=nodes)) if f.text.startswith("n1 is not"))


def test_a_node_object_is_deleted_only_if_no_last_copy_is_on_its_disks() -> None:
    away = {"conditions": [condition("Degraded", "True", "MembersAway", "g0-0 is away")]}
    assert "no topic has its last copy there" in silent(away)
    assert "orders-g0-0-aaaa, orders-g2-1-aaaa" in silent(away)
    for unproved in (DEGRADED, TOLD_LONG_AGO, {"conditions": []}, away | TOLD_LONG_AGO):
        assert "delete" not in silent(unproved)


def test_a_budget_of_others_is_not_deleted() -> None:
    look = healthy()
    budget = {
        "metadata": {"name": "all"},
        "spec": {"selector": {"matchLabels": {"app.kubernetes.io/name": "seriatim"}}},
    }
    finding = about(check_budgets(dataclasses.replace(look, budgets={**look.budgets, "all": budget})), "budget all")
    assert "app.kubernetes.io/name=seriatim" in finding.text
    assert "delete" not in finding.remedy
