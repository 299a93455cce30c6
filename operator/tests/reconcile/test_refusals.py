"""Passes while the API refuses some of their calls: the rest is done, and the statuses say what is refused."""

from __future__ import annotations

from seriatim_operator.cluster.kinds import NODE, POD, SECRET, SERVICE, STORAGE_CLASS, Kind
from seriatim_operator.cluster.kube import InvalidError, KubeError
from seriatim_operator.reconcile.cache import Cache
from seriatim_operator.reconcile.cluster import NOT_RENEWED_S, ClusterReconciler
from seriatim_operator.reconcile.refusals import TOLD_AFTER_S

from .fake_cluster import NAMESPACE
from .place import Place, started

PORT = 'Service "orders-external" is invalid: spec.ports[0].nodePort: Invalid value: 80'
CLASS = 'pods "x" is forbidden: no PriorityClass with name no-such was found'


class Refusing:
    """One operator over a place whose API refuses some calls, and a clock that the test moves."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.now_s = 1000.0
        place.clock = lambda: self.now_s
        self.operator: tuple[ClusterReconciler, Cache] = place.operator()
        self.calls = 0
        self.again_s: float | None = None

    def refuse(self, call: str, kind: Kind, error: KubeError) -> None:
        """From now on, this call for this kind gets this error, and no other does."""

        def answer(asked: str, about: Kind) -> KubeError | None:
            is_meant = (asked, about) == (call, kind)
            self.calls += is_meant
            return error if is_meant else None

        self.place.kube.refuse = answer

    def refuse_nothing(self) -> None:
        """The API is well again."""
        self.place.kube.refuse = lambda _call, _kind: None

    async def passes(self, count: int = 1, *, each_s: float = 0.0) -> None:
        """Some passes, each a while after the other."""
        reconciler, cache = self.operator
        for _ in range(count):
            self.now_s += each_s
            self.place.refresh(cache)
            self.again_s = await reconciler.reconcile(NAMESPACE, "orders")
            self.place.machines.step()

    def events(self, reason: str) -> list[str]:
        """The notes of the Warnings with this reason."""
        return [note for _, type_, why, note in self.place.kube.events if (type_, why) == ("Warning", reason)]


async def _refusing(**spec: object) -> Refusing:
    """A cluster that serves, and an operator that has seen it."""
    made = Refusing(await started(**spec))
    await made.passes()
    return made


def _lose_pod(place: Place) -> str:
    name = str(place.kube.of("Pod")[0]["metadata"]["name"])
    del place.kube.objects["Pod", NAMESPACE, name]
    return name


async def test_a_refused_service_holds_up_no_pod_and_is_reported() -> None:
    it = await _refusing()
    it.refuse("apply", SERVICE, InvalidError(422, "Invalid", f"PATCH /api/v1: {PORT}", PORT))
    it.place.edit(external={"type": "NodePort", "bootstrap": {"nodePort": 80}})
    lost = _lose_pod(it.place)
    await it.passes(3)
    assert lost in it.place.pods()
    assert not it.events("ChildRefused"), "many refusals end by themselves"
    await it.passes(4, each_s=TOLD_AFTER_S)
    told = f"Service orders-external is refused: {PORT}"
    degraded = it.place.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ChildRefused")
    assert told in degraded["message"]
    assert told in it.place.status()["blockedBy"]
    assert it.place.condition("Progressing")["reason"] == "Waiting"
    assert it.events("ChildRefused").count(told) == 1
    it.refuse_nothing()
    it.place.edit(external={"type": "NodePort"})
    await it.passes(2)
    assert it.place.condition("Degraded")["status"] == "False"
    assert not it.place.status().get("blockedBy")


async def test_a_refused_pod_is_told_by_its_broker_and_is_made_right_after_a_correction() -> None:
    it = await _refusing()
    it.refuse("apply", POD, KubeError(403, "Forbidden", CLASS))
    it.place.edit(podTemplate={"priorityClassName": "no-such"})
    lost = _lose_pod(it.place)
    await it.passes(4, each_s=TOLD_AFTER_S)
    assert it.place.condition("Ready")["message"] == "1 of 2 groups"
    for type_ in ("Ready", "Scheduled"):
        condition = it.place.condition(type_, "Broker", lost)
        assert (condition["status"], condition["message"]) == ("False", CLASS)
    it.refuse_nothing()
    it.place.edit(podTemplate={"priorityClassName": "system-cluster-critical"})
    await it.passes(2)
    assert lost in it.place.pods()


async def test_a_refused_child_is_tried_again_every_ten_seconds() -> None:
    it = await _refusing()
    it.refuse("apply", POD, KubeError(403, "Forbidden", 'exceeded quota: "brokers"'))
    _lose_pod(it.place)
    await it.passes(100, each_s=0.5)
    assert 6 <= it.calls <= 9, "after 1, 2, 4 and 8 s, and then every 10 s"
    assert it.again_s is not None
    assert it.again_s <= 10.0


async def test_a_webhook_that_hangs_holds_up_two_calls_of_a_pass() -> None:
    it = await _refusing(groups=3)
    it.place.edit(external={"type": "NodePort"})
    it.refuse("apply", SERVICE, KubeError(0, "Unreachable", "timed out"))
    lost = _lose_pod(it.place)
    await it.passes()
    assert it.calls == 2
    assert ("Pod", NAMESPACE, lost) in it.place.kube.objects, "pods come before Services"


async def test_a_refused_deletion_is_reported_and_paced() -> None:
    it = await _refusing()
    it.refuse("delete", POD, KubeError(403, "Forbidden", "admission webhook denied the request"))
    it.place.edit(image="seriatim.dev/broker:next")
    await it.passes(20, each_s=0.5)
    assert it.calls <= 5
    assert "admission webhook denied the request" in it.place.condition("Degraded")["message"]
    it.refuse_nothing()
    await it.place.run(until=lambda: len(it.place.pods()) == 4)


async def test_refused_certificates_hold_up_no_pod_and_are_reported() -> None:
    it = Refusing(Place(tls={"enabled": True}))
    it.refuse("apply", SECRET, KubeError(403, "Forbidden", 'secrets "orders-ca" is forbidden: exceeded quota'))
    await it.passes(5, each_s=TOLD_AFTER_S)
    assert len(it.place.kube.of("Pod")) == 4
    assert "exceeded quota" in it.place.condition("Degraded")["message"]
    it.refuse_nothing()
    await it.passes(2, each_s=10.0)
    assert it.place.kube.of("Secret")


async def test_statuses_do_not_say_ready_while_passes_fail() -> None:
    it = await _refusing()
    it.refuse("get", STORAGE_CLASS, KubeError(500, "InternalError", "etcdserver: request timed out"))
    reconciler, cache = it.operator
    names = [("BrokerCluster", "orders"), ("BrokerGroup", "orders-g0"), ("Broker", it.place.pods()[0])]

    async def failing_pass() -> list[str]:
        it.place.refresh(cache)
        try:
            await reconciler.reconcile(NAMESPACE, "orders")
        except KubeError:
            return [it.place.condition("Ready", kind, name)["status"] for kind, name in names]
        raise AssertionError("the pass did not fail")

    assert await failing_pass() == ["True"] * 3, "a moment proves nothing"
    it.now_s += NOT_RENEWED_S
    for _ in range(3):
        assert await failing_pass() == ["Unknown"] * 3
    assert "etcdserver: request timed out" in it.place.condition("Ready")["message"]
    assert len(it.events("NotRenewed")) == 1
    assert it.place.condition("Whole", "BrokerGroup", "orders-g0")["status"] == "Unknown"
    assert it.place.condition("DiskHealthy", *names[2])["status"] == "True", "as it was"
    it.refuse_nothing()
    await it.passes(2)
    assert it.place.is_stable()


async def test_a_fresh_look_that_fails_takes_nothing_away_and_is_reported() -> None:
    it = await _refusing()
    it.refuse("list", NODE, KubeError(500, "InternalError", "no leader"))
    it.place.edit(image="seriatim.dev/broker:next")
    before = {pod["metadata"]["uid"] for pod in it.place.kube.of("Pod")}
    await it.passes(6, each_s=TOLD_AFTER_S)
    assert {pod["metadata"]["uid"] for pod in it.place.kube.of("Pod")} == before
    assert "no leader" in it.place.condition("Degraded")["message"]
