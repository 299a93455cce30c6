"""Events of real passes: none of what is planned is a Warning, and what the kubelet says of a disk is one."""

from __future__ import annotations

import time

from .fake_cluster import NAMESPACE
from .place import Place, started


def warnings(place: Place) -> list[tuple[str, str]]:
    return [(reason, note) for _, type_, reason, note in place.kube.events if type_ == "Warning"]


async def test_a_cluster_that_comes_grows_rolls_and_shrinks_gives_no_warning() -> None:
    place = await started()
    for spec in ({"groups": 4}, {"image": "seriatim.dev/broker:next"}, {"groups": 2}):
        place.edit(**spec)
        count = 2 * int(place.kube.of("BrokerCluster")[0]["spec"]["groups"])
        await place.run(passes=300, until=lambda count=count: len(place.pods()) == count)  # type: ignore[misc]
    assert "ClaimDeleted" in {reason for _, _, reason, _ in place.kube.events}
    assert warnings(place) == []


async def test_a_pod_of_a_deleted_node_is_not_ready_before_kubernetes_says_so() -> None:
    place = await started()
    pod = place.kube.of("Pod")[0]
    del place.kube.objects["Node", "", pod["spec"]["nodeName"]]
    reconciler, cache = place.operator()
    await place.a_pass(reconciler, cache)
    name = pod["metadata"]["name"]
    assert place.condition("Ready", "Broker", name)["reason"] == "NodeGone"
    assert place.kube.objects["Broker", NAMESPACE, name]["status"]["phase"] == "Stopped"
    assert place.condition("Ready")["status"] == "False"
    assert [reason for reason, _ in warnings(place)] == ["NodeGone"]


async def test_what_a_kubelet_says_of_a_disk_is_a_warning_with_the_remedy() -> None:
    place = await started()
    pod = place.kube.of("Pod")[0]
    name = pod["metadata"]["name"]
    volume = place.kube.objects["PersistentVolumeClaim", NAMESPACE, name]["spec"]["volumeName"]
    node = place.kube.objects["Node", "", pod["spec"]["nodeName"]]
    place.kube.put({**node, "metadata": {**node["metadata"], "uid": "made-again"}})
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))
    pod["metadata"]["creationTimestamp"] = began
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "broker", "state": {"waiting": {}}}]}
    place.kube.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "said", "namespace": NAMESPACE},
            "involvedObject": {"uid": pod["metadata"]["uid"]},
            "type": "Warning",
            "reason": "FailedMount",
            "message": f'MountVolume failed for volume "{volume}" : path "/mnt/d" does not exist',
            "lastTimestamp": began,
        }
    )
    reconciler, cache = place.operator()
    await place.a_pass(reconciler, cache)
    found = place.condition("DiskHealthy", "Broker", name)
    assert (found["status"], found["reason"]) == ("False", "NodeReplaced")
    assert "annotate sbroker" in found["message"]
    notes = dict(warnings(place))
    assert "does not exist" in notes["NodeReplaced"]
