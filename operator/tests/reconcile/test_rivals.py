"""Two operators with different Leases over one cluster: one acts, the other leaves it alone until that one is gone."""

from __future__ import annotations

from typing import NoReturn

import pytest
from seriatim_api.errors import StaleOperatorError
from seriatim_operator.cluster.kinds import LEASE, Kind
from seriatim_operator.cluster.kube import KubeError
from seriatim_operator.cluster.lease import LeaseLostError
from seriatim_operator.reconcile.cache import Cache
from seriatim_operator.reconcile.rivals import OTHER_OPERATOR, REPORT_S, Rivals
from seriatim_operator.resources.names import ANNOTATION_OPERATOR

from ..memory_kube import MemoryKube
from .fake_cluster import NAMESPACE, broker_cluster
from .place import started


class Two:
    """Two operators `a/op` and `b/op` over one cluster, with caches that know everything at once."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.kube = MemoryKube(NAMESPACE)
        self.cache = Cache()
        self.kube.watch = lambda _type, manifest: self.cache.put(manifest["kind"], manifest)
        self.kube.put(broker_cluster())
        for namespace in "ab":
            self.renew(namespace)
        self.a, self.b = (self.operator(namespace) for namespace in "ab")

    def operator(self, namespace: str) -> Rivals:
        return Rivals(self.kube, self.cache, f"{namespace}/op", lambda: self.now_s)

    def renew(self, namespace: str, holder: str = "a-pod") -> None:
        """Write the Lease of an operator."""
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15}
        metadata = {"name": "op", "namespace": namespace}
        self.kube.put({"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec})

    @property
    def noted(self) -> str:
        annotations = self.kube.objects["BrokerCluster", NAMESPACE, "orders"]["metadata"].get("annotations") or {}
        return str(annotations.get(ANNOTATION_OPERATOR, ""))

    async def look(self, rivals: Rivals, *, for_s: float, renewing: str = "") -> list[bool]:
        """What is reported to an operator every second."""
        told = []
        for _ in range(int(for_s)):
            self.now_s += 1.0
            if renewing:
                self.renew(renewing)
            told.append(await rivals.may_act(NAMESPACE, "orders"))
        return told


async def test_the_first_acts_and_the_second_writes_nothing_but_one_event() -> None:
    two = Two()
    assert await two.a.may_act(NAMESPACE, "orders")
    assert two.noted == "a/op"
    writes = len(two.kube.writes)
    assert not any(await two.look(two.b, for_s=120, renewing="a"))
    assert all([await two.a.may_act(NAMESPACE, "orders") for _ in range(3)])
    assert len(two.kube.writes) == writes
    [(name, level, reason, note)] = two.kube.events
    assert (name, level, reason) == ("orders", "Warning", OTHER_OPERATOR)
    assert "b/op" in note
    assert "a/op" in note


async def test_the_second_acts_when_the_first_is_silent_for_as_long_as_its_lease() -> None:
    two = Two()
    await two.a.may_act(NAMESPACE, "orders")
    told = await two.look(two.b, for_s=25)
    assert not any(told[:15])
    assert told[-1]
    assert two.noted == "b/op"


@pytest.mark.parametrize("end", ["given back", "gone"])
async def test_the_second_acts_at_once_when_the_first_has_ended(end: str) -> None:
    two = Two()
    await two.a.may_act(NAMESPACE, "orders")
    if end == "gone":
        del two.kube.objects[LEASE.kind, "a", "op"]
    else:
        two.renew("a", holder="")
    assert await two.b.may_act(NAMESPACE, "orders")


async def test_the_one_that_lost_a_cluster_ends() -> None:
    two = Two()
    await two.a.may_act(NAMESPACE, "orders")
    await two.look(two.b, for_s=25)
    two.renew("b")
    with pytest.raises(LeaseLostError, match="b/op looks after shop/orders now"):
        await two.a.may_act(NAMESPACE, "orders")
    assert not await two.operator("a").may_act(NAMESPACE, "orders"), "when it has started again"


async def test_one_of_two_that_begin_at_once_gets_the_cluster() -> None:
    two = Two()
    stale = Cache()
    stale.put("BrokerCluster", two.kube.objects["BrokerCluster", NAMESPACE, "orders"])
    late = Rivals(two.kube, stale, "b/op", lambda: two.now_s)
    assert await two.a.may_act(NAMESPACE, "orders")
    assert not await late.may_act(NAMESPACE, "orders")
    assert two.noted == "a/op"


async def test_an_edit_meanwhile_does_not_keep_an_operator_away() -> None:
    two = Two()
    stale = Cache()
    stale.put("BrokerCluster", two.kube.objects["BrokerCluster", NAMESPACE, "orders"])
    two.kube.change("BrokerCluster", "orders", groups=3)
    assert await Rivals(two.kube, stale, "a/op", lambda: two.now_s).may_act(NAMESPACE, "orders")
    assert two.noted == "a/op"


async def test_without_a_right_to_read_the_lease_the_reports_count() -> None:
    two = Two()
    await two.a.may_act(NAMESPACE, "orders")

    def refuse(_call: str, kind: Kind) -> KubeError | None:
        return KubeError(403, "Forbidden", "not yours") if kind is LEASE else None

    two.kube.refuse = refuse
    assert not any(await two.look(two.b, for_s=REPORT_S - 1))
    cluster = two.kube.objects["BrokerCluster", NAMESPACE, "orders"]
    two.kube.put({**cluster, "status": {"reportedAt": "2026-11-29T10:00:00Z"}})
    told = await two.look(two.b, for_s=REPORT_S + 10)
    assert not any(told[: int(REPORT_S) - 1])
    assert told[-1]


async def test_a_stale_operator_is_told_so_and_not_that_brokers_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    place = await started()
    reconciler, cache = place.operator()
    place.refresh(cache)

    async def refuse(*, with_counts: bool) -> NoReturn:
        raise StaleOperatorError("an operator with epoch 9 was here", epoch=1, newest=9)

    monkeypatch.setattr(place.brokers, "list_broker_groups", refuse)
    events = len(place.kube.events)
    with pytest.raises(StaleOperatorError):
        await reconciler.reconcile(NAMESPACE, "orders")
    assert len(place.kube.events) == events, "no alarm"


@pytest.mark.parametrize("value", ["nonsense", "/op", "b/", "b/../../secrets/x", "b/op?watch=1", "B/op", "b/op/status"])
async def test_an_annotation_that_names_no_lease_is_replaced_and_asks_the_api_nothing(value: str) -> None:
    two = Two()
    cluster = two.kube.objects["BrokerCluster", NAMESPACE, "orders"]
    cluster["metadata"]["annotations"] = {ANNOTATION_OPERATOR: value}
    two.cache.put("BrokerCluster", cluster)
    two.kube.calls.clear()
    assert await two.look(two.a, for_s=1) == [True]
    assert two.noted == "a/op"
    assert "get" not in two.kube.calls
