"""The words of a kubelet about volumes."""

from __future__ import annotations

import pytest
from seriatim_operator.cluster.kinds import Kind
from seriatim_operator.cluster.kube import KubeError
from seriatim_operator.cluster.mounting import why_not_mounted

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


@pytest.mark.parametrize("status", [403, 0])
async def test_events_that_cannot_be_read_say_nothing(status: int) -> None:
    def refuse(_call: str, _kind: Kind) -> KubeError:
        return KubeError(status, "Forbidden", "no")

    assert await why_not_mounted(MemoryKube("shop", refuse), "shop", "p") == ""
