"""Specs with a wrong word, and the correction: the cluster says what is wrong, and heals without a hand.

Each case makes a small cluster of its own beside the installed one, with the same etcd, and deletes it at the end.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from e2e.kubernetes.place import Manifest, condition, is_true
from e2e.kubernetes.sight import DOCTOR, PLUGIN, output
from e2e.kubernetes.stage import Stage

NOWHERE: Final = "seriatim.dev/broker:9.9.9"
TOLD_S: Final = 60.0
TOLD_LIMIT_S: Final = 10.0
CORRECTED_S: Final = 120.0
CORRECTED_LIMIT_S: Final = 30.0
NODE_PORT: Final = 80
"""A node port that no Kubernetes gives by default."""


async def image_corrected(stage: Stage) -> None:
    """A new cluster with an image that is nowhere, then a roll to one, in which one more pod is lost."""
    async with small_cluster(stage, image=NOWHERE) as it:
        await it.wait_told("NoImage", NOWHERE)
        await it.correct("image", image=None)
        pods = await it.pods()
        await it.patch(image=NOWHERE)
        await stage.wait_until("the roll stands", lambda: it.is_told_that_blocks(NOWHERE), TOLD_S)
        (other,) = [pod["metadata"]["name"] for pod in pods if not await it.has_image(pod, NOWHERE)]
        await stage.place.kubectl("delete", "pod", other)
        took_s = await stage.wait_until("the lost pod serves", lambda: it.serves(other), CORRECTED_S)
        stage.figure("lost pod with the image that worked after", took_s, limit=CORRECTED_LIMIT_S)
        await it.correct("image in a roll", image=None)


async def placement_corrected(stage: Stage) -> None:
    """A new cluster with a node selector that no node meets."""
    async with small_cluster(stage, podTemplate={"nodeSelector": {"disk": "nowhere"}}) as it:
        await it.wait_told("NoNode", "node affinity/selector")
        await it.correct("node selector", podTemplate=None)


async def child_refused(stage: Stage) -> None:
    """A node port outside of the range and a priority class that does not exist, while a pod is lost."""
    external = {"type": "NodePort", "bootstrap": {"nodePort": NODE_PORT}}
    async with small_cluster(stage, external=external) as it:
        await it.wait_told("ChildRefused", "provided port is not in the valid range")
        await stage.wait_until("its pods serve", it.all_serve, CORRECTED_S)
        lost = (await it.pods())[0]["metadata"]["name"]
        await stage.place.kubectl("delete", "pod", lost)
        took_s = await stage.wait_until("the lost pod serves", lambda: it.serves(lost), CORRECTED_S)
        stage.figure("lost pod beside a refused Service after", took_s, limit=CORRECTED_LIMIT_S)
        await it.correct("node port", external={"type": "NodePort", "bootstrap": None})
        await it.patch(podTemplate={"priorityClassName": "no-such"})
        await stage.place.kubectl("delete", "pod", lost)
        await it.wait_told("ChildRefused", "no PriorityClass with name no-such was found")
        if is_true(await it.manifest(), "Ready", current=False):
            stage.problem("the cluster says Ready while a pod is refused")
        await it.correct("priority class", podTemplate=None)


async def quota_corrected(stage: Stage) -> None:
    """A quota of the namespace has no room for the pods of a new cluster, and then it has."""
    place, name = stage.place, f"quota{stage.number}"
    await place.apply({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": place.namespace},
        "spec": {"hard": {"pods": str(len(await place.list("pods")))}},
    })  # fmt: skip
    try:
        await stage.wait_until("the quota counts", lambda: _counts(stage, name), TOLD_S)
        async with small_cluster(stage) as it:
            await it.wait_told("ChildRefused", "exceeded quota")
            began = time.monotonic()
            await place.patch("resourcequotas", name, {"spec": {"hard": {"pods": "100"}}})
            await stage.wait_until("it is Ready with a larger quota", it.is_ready, CORRECTED_S)
            stage.figure("larger quota: Ready after", time.monotonic() - began, limit=CORRECTED_LIMIT_S)
    finally:
        await place.kubectl("delete", "resourcequota", name)


async def _counts(stage: Stage, name: str) -> bool:
    found = await stage.place.get("resourcequotas", name)
    return found is not None and "pods" in ((found.get("status") or {}).get("used") or {})


async def pull_secret_corrected(stage: Stage) -> None:
    """A new cluster names a pull secret that does not exist. No registry of this machine asks for one, so the case only
    looks whether pods that wait for their image are made again with the right name.
    """
    async with small_cluster(stage, image=NOWHERE, podTemplate={"imagePullSecrets": [{"name": "no-such"}]}) as it:
        await it.wait_told("NoImage", NOWHERE)
        began = time.monotonic()
        await it.patch(podTemplate={"imagePullSecrets": [{"name": "right"}]})

        async def have_it() -> bool:
            return [pod["spec"].get("imagePullSecrets") for pod in await it.pods()] == [[{"name": "right"}]] * 2

        await stage.wait_until("its pods name the right pull secret", have_it, CORRECTED_S)
        stage.figure("right pull secret after", time.monotonic() - began, limit=CORRECTED_LIMIT_S)
        await it.correct("image", image=None)


class SmallCluster:
    """A cluster of one broker group."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self.name = name

    async def manifest(self) -> Manifest:
        found = await self._stage.place.get("brokerclusters", self.name)
        assert found is not None
        return found

    async def pods(self) -> list[Manifest]:
        return await self._stage.place.list("pods", f"seriatim.dev/cluster={self.name}")

    async def patch(self, **spec: object) -> None:
        await self._stage.place.patch("brokerclusters", self.name, {"spec": spec})

    async def is_ready(self) -> bool:
        found = await self.manifest()
        return is_true(found, "Ready") and is_true(found, "Stable")

    async def serves(self, pod: str) -> bool:
        found = await self._stage.place.get("pods", pod)
        is_going = found is None or bool(found["metadata"].get("deletionTimestamp"))
        return not is_going and is_true(found, "Ready", current=False)

    async def all_serve(self) -> bool:
        pods = await self.pods()
        return len(pods) == 2 and all(is_true(pod, "Ready", current=False) for pod in pods)

    async def has_image(self, pod: Manifest, image: str) -> bool:
        found = await self._stage.place.get("pods", pod["metadata"]["name"])
        return found is not None and found["spec"]["containers"][0]["image"] == image

    async def is_told_that_blocks(self, words: str) -> bool:
        return words in ((await self.manifest()).get("status") or {}).get("blockedBy", "")

    async def wait_told(self, reason: str, words: str) -> None:
        """Wait until `Degraded` and an Event have the reason and the words; so must `plan` and `doctor`."""
        stage = self._stage

        async def told() -> bool:
            degraded = condition(await self.manifest(), "Degraded")
            is_there = words in degraded.get("message", "") and reason in degraded["reason"]
            return is_there and bool([
                event for event in await stage.place.list("events")
                if event["involvedObject"]["name"] == self.name and event["type"] == "Warning"
                and event["reason"] == reason and words in event["message"]
            ])  # fmt: skip

        took_s = await stage.wait_until(f"{reason} is reported", told, TOLD_S)
        stage.figure(
            f"{reason} reported after", took_s, limit=2 * TOLD_LIMIT_S if reason != "ChildRefused" else TOLD_LIMIT_S
        )
        for command in (DOCTOR, (PLUGIN, "plan")):
            said = " ".join((await output(stage.place, (*command, self.name))).split())  # lines are wrapped anywhere
            if words not in said:
                stage.problem(f"{command[-1]} does not say {words!r}: {said}")

    async def correct(self, what: str, **spec: object) -> None:
        """Patch the spec, and measure how long it takes until the cluster is Ready and Stable."""
        began = time.monotonic()
        await self.patch(**spec)
        await self._stage.wait_until(f"it is Ready with the corrected {what}", self.is_ready, CORRECTED_S)
        self._stage.figure(f"corrected {what}: Ready after", time.monotonic() - began, limit=CORRECTED_LIMIT_S)


@asynccontextmanager
async def small_cluster(stage: Stage, **spec: object) -> AsyncIterator[SmallCluster]:
    place, name = stage.place, f"small{stage.number}"
    installed = (await stage.cluster())["spec"]
    kept = {field: installed[field] for field in ("etcd", "storage")}
    manifest: Manifest = {
        "apiVersion": "seriatim.dev/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": name, "namespace": place.namespace},
        "spec": {**kept, "groups": 1, "deletionPolicy": "Delete", **spec},
    }
    await place.apply(manifest)
    try:
        yield SmallCluster(stage, name)
    finally:
        await place.kubectl("delete", "brokercluster", name)

        async def is_gone() -> bool:
            selector = f"seriatim.dev/cluster={name}"
            return not await place.list("pods", selector) and not await place.list("persistentvolumeclaims", selector)

        await stage.wait_until(f"nothing is left of {name}", is_gone, CORRECTED_S)
