"""The words of a kubelet about volumes."""

from __future__ import annotations

import pytest
from seriatim_operator.cluster.kinds import Kind
from seriatim_operator.cluster.kube import KubeError
from seriatim_operator.cluster.mounting import why_not_mounted
from seriatim_operator.plan.observed import PodView, pod_view, seconds

from ..memory_kube import MemoryKube


def event(name: str, reason: str, message: str, at: str, pod: str = "p", type_: str = "Warning") -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "shop"},
        "involvedObject": {"uid": pod},
        "type": type_,
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }


async def test_the_newest_words_about_volumes_of_that_pod_are_found() -> None:
    kube = MemoryKube("shop")
    kube.put(event("a", "FailedMount", "old", "2026-11-29T10:00:00Z"))
    kube.put(event("b", "FailedAttachVolume", "new", "2026-11-29T10:00:09Z"))
    kube.put(event("c", "FailedMount", "of another pod", "2026-11-29T10:00:10Z", pod="q"))
    kube.put(event("d", "Unhealthy", "no volume", "2026-11-29T10:00:11Z"))
    kube.put(event("e", "FailedMount", "no Warning", "2026-11-29T10:00:12Z", type_="Normal"))
    assert await why_not_mounted(kube, "shop", "p") == "new"
    assert await why_not_mounted(kube, "shop", "r") == ""


async def test_words_from_before_the_wait_began_do_not_count() -> None:
    kube = MemoryKube("shop")
    kube.put(event("a", "FailedMount", "its first start", "2026-11-29T10:00:00Z"))
    since_s = seconds("2026-11-29T10:30:00Z")
    assert await why_not_mounted(kube, "shop", "p", since_s) == ""
    kube.put(event("b", "FailedMount", "the disk", "2026-11-29T10:30:00Z"))
    assert await why_not_mounted(kube, "shop", "p", since_s) == "the disk"


def made_again(**state: object) -> PodView:
    """A pod that served, as the API had it after its machine was made again under its name with empty disks."""
    ended = {"exitCode": 137, "finishedAt": None, "reason": "ContainerStatusUnknown"}
    container = {"name": "broker", "ready": False, "lastState": {"terminated": ended}, "state": state}
    since = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": "2026-11-29T16:49:49Z"}
    status = {"phase": "Running", "conditions": [since], "containerStatuses": [container]}
    metadata = {"name": "orders-g0-0-fbkw", "uid": "p", "creationTimestamp": "2026-11-29T16:48:31Z"}
    return pod_view({"metadata": metadata, "spec": {"nodeName": "node1"}, "status": status})


def test_a_pod_whose_machine_was_made_again_waits_for_its_volumes() -> None:
    pod = made_again(waiting={"reason": "ContainerCreating"})
    assert pod.ended
    assert pod.waits_for_volumes
    assert pod.waits_since_s == seconds("2026-11-29T16:49:49Z")


@pytest.mark.parametrize(
    "state", [{"waiting": {"reason": "CrashLoopBackOff"}}, {"running": {}}, {"terminated": {"exitCode": 1}}]
)
def test_a_container_that_starts_again_waits_for_no_volume(state: dict[str, object]) -> None:
    assert not made_again(**state).waits_for_volumes


@pytest.mark.parametrize("status", [403, 0])
async def test_events_that_cannot_be_read_say_nothing(status: int) -> None:
    def refuse(_call: str, _kind: Kind) -> KubeError:
        return KubeError(status, "Forbidden", "no")

    assert await why_not_mounted(MemoryKube("shop", refuse), "shop", "p") == ""
