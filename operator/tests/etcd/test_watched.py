"""What the operator reports the etcd of its release: members, quorum, disks, and the newest snapshot."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from seriatim_operator.etcd.watched import USE_S, WatchedEtcd
from seriatim_operator.plan.actions import Plan
from seriatim_operator.plan.observed import EtcdMember, EtcdView, Observed
from seriatim_operator.spec.cluster import BrokerCluster
from seriatim_operator.status.cluster import cluster_status

from ..memory_kube import MemoryKube
from ..spec.objects import good

NOW_S = 1_700_000_000.0

NAMES = [f"seriatim-etcd-{number}" for number in range(3)]


def pod(name: str, **status: Any) -> dict[str, Any]:
    ready = [{"type": "Ready", "status": "True"}]
    status = {"podIP": f"10.0.0.{name[-1]}", "conditions": ready, **status}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"}, "status": status}


def observed_cluster() -> Observed:
    return Observed(cluster=BrokerCluster.from_manifest(good("BrokerCluster", groups=1)), now_s=NOW_S)


class Release:
    """An etcd of three members, each with its page for Prometheus."""

    def __init__(self) -> None:
        self.kube = MemoryKube("shop")
        self.used = dict.fromkeys(("10.0.0.0", "10.0.0.1", "10.0.0.2"), 10)
        self.changes = 0
        for name in NAMES:
            self.kube.put(pod(name))
        self.etcd = WatchedEtcd(
            self.kube, "shop", "seriatim-etcd", 3, "seriatim-etcd-snapshots", self._changed, self._page
        )

    def _changed(self) -> None:
        self.changes += 1

    async def _page(self, ip: str) -> str:
        used = f"etcd_mvcc_db_total_size_in_bytes {self.used[ip]}e+06"
        return f"\n# HELP etcd_x\n{used}\netcd_server_quota_backend_bytes 1e+08\n"

    async def condition(self, now_s: float = 0.0) -> tuple[str, str, str]:
        """Look, and return status, reason and message of the condition."""
        await self.etcd.look(now_s)
        observed = replace(observed_cluster(), etcd=self.etcd.view)
        found = cluster_status(observed, Plan(), "", "").condition("EtcdHealthy")
        assert found is not None
        return found.status, found.reason, found.message


async def test_all_members_serve_and_a_member_that_is_away_is_named_with_the_reason() -> None:
    release = Release()
    assert await release.condition() == ("True", "AllMembers", "3 of 3 members serve")
    assert release.changes == 1
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    ended = {"terminated": {"message": "election-timeout should be at least five times heartbeat-interval"}}
    container = {"name": "etcd", "state": waits, "lastState": ended}
    release.kube.put(pod(NAMES[1], conditions=[{"type": "Ready", "status": "False"}], containerStatuses=[container]))
    status, reason, message = await release.condition()
    assert (status, reason) == ("False", "MemberAway")
    assert "2 of 3 members serve, at most 10% of the quota used; seriatim-etcd-1 etcd waits (Crash" in message
    assert "five times heartbeat-interval" in message
    await release.condition()
    assert release.changes == 2


async def test_without_a_member_that_serves_there_is_no_quorum() -> None:
    release = Release()
    for name in NAMES[:2]:
        release.kube.put(pod(name, conditions=[{"type": "PodScheduled", "status": "False", "message": "no disk"}]))
    release.kube.put(pod(NAMES[2], conditions=[{"type": "Ready", "status": "False"}]))
    _, reason, message = await release.condition()
    assert (reason, message.split("; ")) == (
        "NoQuorum",
        [
            "0 of 3 members serve, at most 10% of the quota used",
            "seriatim-etcd-0 has no node: no disk",
            "seriatim-etcd-1 has no node: no disk",
            "seriatim-etcd-2 is not ready",
        ],
    )
    del release.kube.objects["Pod", "shop", NAMES[2]]
    status, reason, message = await release.condition()
    assert (status, reason) == ("False", "NoQuorum")
    assert "seriatim-etcd-0 has no node: no disk" in message
    assert "seriatim-etcd-2 has no pod" in message


async def test_a_disk_that_fills_is_told() -> None:
    release = Release()
    await release.condition()
    release.used["10.0.0.2"] = 81
    assert (await release.condition(USE_S - 1))[1] == "AllMembers", "disks are looked at once a minute"
    status, reason, message = await release.condition(USE_S)
    assert (status, reason) == ("False", "Filling")
    assert "81%" in message


@pytest.mark.parametrize(
    ("endpoints", "is_ours"),
    [
        (["seriatim-etcd-0.seriatim-etcd.shop.svc:2379"], True),
        (["seriatim-etcd-0.seriatim-etcd.shop.svc.cluster.local:2379"], True),
        (["seriatim-etcd-0.seriatim-etcd.bill.svc:2379", "etcd.example:2379"], False),
        (["seriatim-etcd-0.other-seriatim-etcd.shop.svc:2379"], False),
    ],
)
def test_an_etcd_of_others_is_not_judged(endpoints: list[str], is_ours: bool) -> None:
    release = Release()
    release.etcd.view = EtcdView((EtcdMember("seriatim-etcd-0"),))
    assert (release.etcd.view_for(endpoints) is not None) is is_ours
    status = cluster_status(observed_cluster(), Plan(), "", "")
    assert status.condition("EtcdHealthy") is None


async def test_the_newest_snapshot_is_the_last_that_succeeded_or_as_old_as_its_cronjob() -> None:
    release = Release()
    await release.etcd.look(0)
    assert release.etcd.snapshot_at is None
    made, succeeded = "2026-11-29T10:00:00Z", "2026-11-29T11:17:40Z"
    cron: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "seriatim-etcd-snapshots", "namespace": "shop", "creationTimestamp": made},
    }
    for status, expected in (({}, made), ({"lastSuccessfulTime": succeeded}, succeeded)):
        release.kube.put({**cron, "status": status})
        release.kube.objects["CronJob", "shop", "seriatim-etcd-snapshots"]["metadata"]["creationTimestamp"] = made
        await release.etcd.look(USE_S * (1 + bool(status)))
        assert release.etcd.snapshot_at == datetime.fromisoformat(expected).astimezone(UTC)
