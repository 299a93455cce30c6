"""Two things that go wrong at once: each is reported, what is right continues, and both heal when they are mended."""

from __future__ import annotations

import contextlib

import pytest
from seriatim_operator.cluster.kinds import BROKER_CLUSTER, CONFIG_MAP, NODE, POD, SERVICE, Kind
from seriatim_operator.cluster.kube import ConflictError, InvalidError, KubeError
from seriatim_operator.resources.config import settings_in
from seriatim_operator.resources.names import ANNOTATION_REPLACE_AUTHORITY, CONFIG_FILE

from .fake_cluster import NAMESPACE, broker_cluster
from .place import Place, started
from .test_refusals import Refusing, _lose_pod, _refusing
from .test_taken import foreign

DENIED = 'admission webhook "guard" denied the request: no status today'
CONFIG = "orders-config"


def _uids(place: Place) -> set[str]:
    return {pod["metadata"]["uid"] for pod in place.kube.of("Pod")}


async def test_a_status_that_is_refused_holds_up_nothing_and_is_told() -> None:
    it = await _refusing()
    it.refuse("apply_status", BROKER_CLUSTER, KubeError(403, "Forbidden", DENIED))
    lost = _lose_pod(it.place)
    await it.passes(8, each_s=2.0)
    assert lost in it.place.pods()
    assert it.events("ChildRefused") == [f"status of BrokerCluster orders is refused: {DENIED}"]
    assert it.place.condition("Ready", "Broker", lost)["status"] == "True", "other statuses are written"
    assert it.calls <= 8
    it.refuse_nothing()
    await it.passes(3, each_s=10.0)
    assert it.place.is_stable()


async def test_a_status_of_an_object_that_was_made_anew_is_no_refusal() -> None:
    it = await _refusing()
    it.refuse("apply_status", BROKER_CLUSTER, ConflictError(409, "Conflict", "another uid"))
    _lose_pod(it.place)
    with pytest.raises(ConflictError):
        await it.passes()
    it.refuse_nothing()
    await it.place.run(until=lambda: len(it.place.pods()) == 4)


async def test_settings_that_cannot_be_written_restart_no_broker_and_count_later() -> None:
    it = await _refusing()
    before = _uids(it.place)
    it.refuse("apply", CONFIG_MAP, KubeError(403, "Forbidden", "exceeded quota: configmaps"))
    it.place.edit(settings={"heal_after_s": "400"})
    await it.passes(8, each_s=2.0)
    assert _uids(it.place) == before, "each would have the settings from before"
    assert "exceeded quota" in it.place.condition("Degraded")["message"]
    it.refuse_nothing()
    await it.passes(40, each_s=10.0)
    file = it.place.kube.objects["ConfigMap", NAMESPACE, CONFIG]["data"][CONFIG_FILE]
    assert float(settings_in(file)["heal_after_s"]) == 400
    assert not _uids(it.place) & before
    assert it.place.is_stable()


async def test_a_pod_made_while_settings_cannot_be_written_is_restarted_with_them() -> None:
    it = await _refusing()
    it.refuse("apply", CONFIG_MAP, KubeError(403, "Forbidden", "exceeded quota: configmaps"))
    it.place.edit(settings={"heal_after_s": "400"})
    lost = _lose_pod(it.place)
    await it.passes(8, each_s=2.0)
    assert lost in it.place.pods(), "with the settings that there are"
    made = _uids(it.place)
    it.refuse_nothing()
    await it.passes(40, each_s=10.0)
    assert not _uids(it.place) & made
    assert it.place.is_stable()


async def test_a_name_that_is_taken_during_a_roll_takes_no_member_away() -> None:
    it = await _refusing()
    it.place.kube.remove("ConfigMap", CONFIG)
    it.place.kube.put(foreign("ConfigMap", CONFIG, data={"page": "hello"}))
    it.operator = it.place.operator()
    before = _uids(it.place)
    it.place.edit(image="seriatim.dev/broker:next")
    await it.passes(8, each_s=2.0)
    assert _uids(it.place) == before, "its pod could not be made again"
    assert f"ConfigMap {CONFIG}" in it.place.status()["blockedBy"]
    it.place.kube.remove("ConfigMap", CONFIG)
    await it.place.run(until=lambda: not _uids(it.place) & before)


async def test_a_wrong_image_and_a_refused_service_are_both_told_and_corrected() -> None:
    it = await _refusing()
    it.refuse("apply", SERVICE, InvalidError(422, "Invalid", "PATCH", "nodePort: Invalid value: 80"))
    it.place.edit(image="seriatim.dev/broker:next", external={"type": "NodePort", "bootstrap": {"nodePort": 80}})
    await it.passes(30, each_s=2.0)
    message = it.place.condition("Degraded")["message"]
    assert "nodePort: Invalid value: 80" in message
    images = {pod["spec"]["containers"][0]["image"] for pod in it.place.kube.of("Pod")}
    assert images == {"seriatim.dev/broker:next"}, "the change continues all the same"
    it.refuse_nothing()
    it.place.edit(external={"type": "NodePort"})
    await it.passes(6, each_s=10.0)
    assert it.place.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize(("call", "kind"), [("apply", POD), ("list", NODE), ("apply_status", BROKER_CLUSTER)])
async def test_an_api_server_that_is_busy_is_asked_again(call: str, kind: Kind) -> None:
    it = await _refusing()
    it.refuse(call, kind, KubeError(429, "TooManyRequests", "please try again later"))
    lost, before = _lose_pod(it.place), len(_uids(it.place))
    it.place.edit(image="seriatim.dev/broker:next")
    for _ in range(6):
        it.now_s += 2.0
        with contextlib.suppress(KubeError):
            await it.passes()
    assert len(_uids(it.place)) >= before
    it.refuse_nothing()
    await it.place.run(until=lambda: lost in it.place.pods())


async def test_access_from_outside_that_ends_and_comes_back_leaves_the_authority() -> None:
    it = Refusing(Place(tls={"enabled": True}, external={"type": "NodePort"}))
    await it.passes(20, each_s=1.0)
    before = it.place.kube.objects["Secret", NAMESPACE, "orders-ca"]["data"]["tls.crt"]
    cluster = it.place.kube.objects["BrokerCluster", NAMESPACE, "orders"]
    asked = cluster["spec"].pop("external")
    cluster["metadata"]["generation"] += 1
    await it.passes(10, each_s=3.0)
    assert "orders-external" not in {each["metadata"]["name"] for each in it.place.kube.of("Service")}
    it.place.edit(external=asked)
    await it.passes(30, each_s=10.0)
    assert "orders-external" in {each["metadata"]["name"] for each in it.place.kube.of("Service")}
    assert it.place.kube.objects["Secret", NAMESPACE, "orders-ca"]["data"]["tls.crt"] == before
    assert it.place.condition("AuthoritySettled")["status"] == "True"


NONSENSE = ["", "true", "../../secrets/x", "a/b/c", "%00", "\u2028" * 300, "9" * 200, "2026-13-45T99:00:00Z"]


@pytest.mark.parametrize("value", NONSENSE)
async def test_annotations_with_nonsense_take_nothing_away(value: str) -> None:
    place = await started(tls={"enabled": True})
    before = _uids(place)
    names = ["approve", "spread-mended", "disk-lost"]
    asked = {f"seriatim.dev/{name}": value for name in names} | {ANNOTATION_REPLACE_AUTHORITY: value}
    for kind in ("BrokerCluster", "BrokerGroup", "Broker"):
        for item in place.kube.of(kind):
            item["metadata"].setdefault("annotations", {}).update(asked)
    for pod in place.kube.of("Pod"):
        pod["metadata"].setdefault("annotations", {})["seriatim.dev/placement-hash"] = value
    it = Refusing(place)
    await it.passes(8, each_s=2.0)
    assert _uids(place) == before
    assert len(place.kube.of("PersistentVolumeClaim")) == 4
    assert place.condition("Ready")["status"] == "True"


async def test_a_second_cluster_of_the_name_with_other_groups_takes_its_own_kept_disks() -> None:
    place = await started(groups=3)
    kept = {claim["metadata"]["name"] for claim in place.kube.of("PersistentVolumeClaim")}
    for kind in ("BrokerCluster", "BrokerGroup", "Broker", "Pod"):
        for item in list(place.kube.of(kind)):
            del place.kube.objects[kind, NAMESPACE, item["metadata"]["name"]]
    for member in place.brokers.members.values():
        member.live = False
    place.kube.put(broker_cluster(groups=2))
    await place.run(until=lambda: len(place.pods()) == 4)
    claims = {claim["metadata"]["name"] for claim in place.kube.of("PersistentVolumeClaim")}
    assert claims == kept, "no new disk, and none of g2 is deleted"
    assert {name.split("-")[1] for name in place.pods()} == {"g0", "g1"}
    place.edit(groups=3)
    await place.run(until=lambda: len(place.pods()) == 6)
    assert {claim["metadata"]["name"] for claim in place.kube.of("PersistentVolumeClaim")} == kept
