"""Changes of settings, image and size while messages flow. They reach one member at a time."""

from __future__ import annotations

import time
from typing import Final

from e2e.bench.measures.machine import machine_cpu
from e2e.kubernetes.place import Manifest, condition
from e2e.kubernetes.release import CLUSTER, GROUPS, topic_manifest
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import Traffic, wait_topic_ready

ROLL_GAP_LIMIT_S: Final = 0.1
SCALE_GAP_LIMIT_S: Final = 0.3
ROLL_S: Final = 600.0
STUCK_MESSAGES: Final = 5_000
"""Messages that must pass while a roll hangs. They take 10 s, in which no other member may be touched."""

SCALE_S: Final = 600.0


async def settings_rolled(stage: Stage) -> None:
    """Change a broker setting: every member restarts, one after another, and no send fails."""
    async with stage.traffic() as traffic:
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await stage.pods()}
        value = "61" if (await stage.cluster())["spec"].get("settings", {}).get("heal_after_s") == "60" else "60"
        began, before_cpu = time.monotonic(), machine_cpu()
        async with traffic.struck("roll settings", "all"):
            await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"settings": {"heal_after_s": value}}})
            await stage.wait_until("every member has restarted", lambda: _all_new(stage, before), ROLL_S)
            await stage.wait_healthy(ROLL_S)
            stage.figure("rolled after", time.monotonic() - began)
            stage.figure("gap", await traffic.gap_s(), limit=ROLL_GAP_LIMIT_S)
            stage.figure("longest hand-over", traffic.hand_over_s(), limit=ROLL_GAP_LIMIT_S)
            stage.processors(machine_cpu() - before_cpu)
        names = {pod["metadata"]["name"] for pod in await stage.pods()}
        if names != set(before):
            stage.problem(f"disks changed: {sorted(before)}, then {sorted(names)}")
        stage.figure("two copies again", await traffic.has_two_copies())
    if stage.counts["failed"]:
        stage.problem(f"{stage.counts['failed']} sends failed")


async def image_rolled(stage: Stage) -> None:
    """Change the image of the brokers: first to an image that does not exist, then to one that does.

    The first change stops one member and loses no message. At the end the operator's own image comes back.
    """
    pods = await stage.pods()
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
    image = _image_of(pods[0])
    other = f"{image}-again"
    await stage.machines.tag_image(image, other)
    async with stage.traffic() as traffic:
        async with traffic.struck("roll to no image", "all"):
            await _use_image(stage, f"{image}-nowhere")
            await stage.wait_until("a member waits for the image", lambda: _waits_for_image(stage), ROLL_S)
            await traffic.load.goes_on(STUCK_MESSAGES)
            stage.figure("gap at an image that is nowhere", await traffic.gap_s(), limit=ROLL_GAP_LIMIT_S)
            touched = [pod["metadata"]["name"] for pod in await stage.pods()
                       if pod["metadata"]["uid"] != before[pod["metadata"]["name"]]]  # fmt: skip
            await stage.wait_until("the cluster says so", lambda: _says_that_it_waits(stage), ROLL_S)
            said = condition(await stage.cluster(), "Progressing").get("message")
            stage.note(f"waiting for the image: {', '.join(touched)}; the cluster says: {said}")
            if len(touched) != 1:
                stage.problem(f"an image that is nowhere stopped {len(touched)} members: {touched}")
        began, before_cpu = time.monotonic(), machine_cpu()
        async with traffic.struck("roll image", "all"):
            await _use_image(stage, other)
            await stage.wait_until("every member runs it", lambda: _all_run(stage, other), ROLL_S)
            await stage.wait_healthy(ROLL_S)
            stage.figure("rolled after", time.monotonic() - began)
            stage.figure("gap", await traffic.gap_s(), limit=ROLL_GAP_LIMIT_S)
            stage.figure("longest hand-over", traffic.hand_over_s(), limit=ROLL_GAP_LIMIT_S)
            stage.processors(machine_cpu() - before_cpu)
        async with traffic.struck("roll image back", "all"):
            await _use_image(stage, None)
            await stage.wait_until("every member runs the former", lambda: _all_run(stage, image), ROLL_S)
            await stage.wait_healthy(ROLL_S)
            stage.figure("gap on the way back", await traffic.gap_s(), limit=ROLL_GAP_LIMIT_S)
        stage.figure("two copies again", await traffic.has_two_copies())
    if stage.counts["failed"]:
        stage.problem(f"{stage.counts['failed']} sends failed")


def _image_of(pod: Manifest) -> str:
    return str(pod["spec"]["containers"][0]["image"])


async def _use_image(stage: Stage, image: str | None) -> None:
    await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"image": image}})


async def _waits_for_image(stage: Stage) -> bool:
    statuses = [status for pod in await stage.pods() for status in pod["status"].get("containerStatuses") or ()]
    reasons = {((status.get("state") or {}).get("waiting") or {}).get("reason") for status in statuses}
    return bool(reasons & {"ErrImagePull", "ImagePullBackOff"})


async def _says_that_it_waits(stage: Stage) -> bool:
    return "image cannot be pulled" in condition(await stage.cluster(), "Progressing").get("message", "")


async def _all_run(stage: Stage, image: str) -> bool:
    pods = await stage.pods()
    return bool(pods) and all(_image_of(pod) == image for pod in pods)


async def scaled_out_and_in(stage: Stage) -> None:
    """Scale to two groups, to four, and back to two.

    Open segments spread over new groups, and leave a group before it goes.
    """
    async with stage.traffic() as traffic:
        await _scale(stage, traffic, GROUPS, 2)
        stay = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await stage.pods()}
        await _scale(stage, traffic, 2, 4)
        async with traffic.struck("grow partitions", "4 to 8"):
            await _grow(stage)
        await _scale(stage, traffic, 4, 2)
        if (now := {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await stage.pods()}) != stay:
            stage.problem(f"members that had no reason to move are others: {sorted(stay)}, then {sorted(now)}")
        await _scale(stage, traffic, 2, GROUPS)
        stage.figure("two copies again", await traffic.has_two_copies())
    if stage.counts["failed"]:
        stage.problem(f"{stage.counts['failed']} sends failed")


async def _scale(stage: Stage, traffic: Traffic, before: int, after: int) -> None:
    """Change the number of groups, and wait until the cluster is healthy."""
    async with traffic.struck("scale", f"{before} to {after}"):
        began = time.monotonic()
        await stage.place.kubectl("scale", f"brokercluster/{CLUSTER}", f"--replicas={after}")
        await stage.wait_until(f"there are {after} groups", lambda: _has_groups(stage, after), SCALE_S)
        await stage.wait_healthy(SCALE_S)
        stage.figure(f"{before} to {after} groups after", time.monotonic() - began)
        stage.figure(f"gap, {before} to {after}", await traffic.gap_s(), limit=SCALE_GAP_LIMIT_S)


async def _grow(stage: Stage) -> None:
    """Add partitions to another topic, because the producer of the traffic knows only the partitions of its start."""
    name = f"grows-{stage.number}"
    await stage.place.apply(topic_manifest(stage.place.namespace, name, 4))
    await wait_topic_ready(stage.place, name)
    began = time.monotonic()
    await stage.place.apply(topic_manifest(stage.place.namespace, name, 8))

    async def grown() -> bool:
        topic = await stage.place.get("topics", name)
        return topic is not None and (topic.get("status") or {}).get("partitions") == 8

    await stage.wait_until(f"{name} has 8 partitions", grown, 60.0)
    await wait_topic_ready(stage.place, name)
    stage.figure("partitions grown after", time.monotonic() - began)
    topic = await stage.place.get("topics", name)
    assert topic is not None
    groups = topic["status"].get("groups") or []
    stage.note(f"8 partitions stand on {', '.join(groups)}")
    if not set(groups) - {"g0", "g1"}:
        stage.problem(f"no head of {name} stands on a new group: {groups}")


async def _all_new(stage: Stage, before: dict[str, str]) -> bool:
    pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await stage.pods()}
    return len(pods) == len(before) and not set(pods.values()) & set(before.values())


async def _has_groups(stage: Stage, count: int) -> bool:
    groups = await stage.place.list("brokergroups")
    cluster = await stage.cluster()
    quiet = condition(cluster, "Quiesced").get("status") == "True"
    return len(groups) == count and quiet
