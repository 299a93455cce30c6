"""Changes while messages flow: settings and size, one member at a time."""

from __future__ import annotations

import time
from typing import Final

from e2e.kubernetes.place import condition
from e2e.kubernetes.release import CLUSTER, GROUPS, topic_manifest
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import wait_topic_ready

ROLL_GAP_LIMIT_S: Final = 0.1
ROLL_S: Final = 600.0
SCALE_S: Final = 600.0


async def settings_rolled(stage: Stage) -> None:
    """Another value of a broker setting: every member restarts, one after another; no send fails."""
    async with stage.traffic() as traffic:
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await stage.pods()}
        value = "61" if (await stage.cluster())["spec"].get("settings", {}).get("heal_after_s") == "60" else "60"
        began = time.monotonic()
        async with traffic.struck("roll settings", "all"):
            await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"settings": {"heal_after_s": value}}})
            await stage.wait_until("every member has restarted", lambda: _all_new(stage, before), ROLL_S)
            await stage.wait_healthy(ROLL_S)
            stage.figure("rolled after", time.monotonic() - began)
            stage.figure("gap", await traffic.gap_s(), limit=ROLL_GAP_LIMIT_S)
        names = {pod["metadata"]["name"] for pod in await stage.pods()}
        if names != set(before):
            stage.problem(f"disks changed: {sorted(before)}, then {sorted(names)}")
        stage.figure("two copies again", await traffic.has_two_copies())
    if stage.counts["failed"]:
        stage.problem(f"{stage.counts['failed']} sends failed")


async def scaled_out_and_in(stage: Stage) -> None:
    """Two groups more, and two fewer: heads spread over the new ones, and leave before they go."""
    async with stage.traffic() as traffic:
        async with traffic.struck("scale out", f"{GROUPS} to {GROUPS + 2}"):
            began = time.monotonic()
            await stage.place.kubectl("scale", f"brokercluster/{CLUSTER}", f"--replicas={GROUPS + 2}")
            await stage.wait_until("the new groups are there", lambda: _has_groups(stage, GROUPS + 2), SCALE_S)
            await stage.wait_healthy(SCALE_S)
            stage.figure(f"{GROUPS} to {GROUPS + 2} groups after", time.monotonic() - began)
            stage.figure("gap while it grows", await traffic.gap_s())
        async with traffic.struck("grow partitions", "4 to 8"):
            await _grow(stage)
        async with traffic.struck("scale in", f"{GROUPS + 2} to {GROUPS}"):
            began = time.monotonic()
            await stage.place.kubectl("scale", f"brokercluster/{CLUSTER}", f"--replicas={GROUPS}")
            await stage.wait_until("the groups are gone", lambda: _has_groups(stage, GROUPS), SCALE_S)
            await stage.wait_healthy(SCALE_S)
            stage.figure(f"{GROUPS + 2} to {GROUPS} groups after", time.monotonic() - began)
            stage.figure("gap while it shrinks", await traffic.gap_s())
        stage.figure("two copies again", await traffic.has_two_copies())


async def _grow(stage: Stage) -> None:
    """A topic of its own grows, for the producer of the traffic has its partitions from its begin."""
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
    if not set(groups) - {f"g{number}" for number in range(GROUPS)}:
        stage.problem(f"no head of {name} stands on a new group: {groups}")


async def _all_new(stage: Stage, before: dict[str, str]) -> bool:
    pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await stage.pods()}
    return len(pods) == len(before) and not set(pods.values()) & set(before.values())


async def _has_groups(stage: Stage, count: int) -> bool:
    groups = await stage.place.list("brokergroups")
    cluster = await stage.cluster()
    quiet = condition(cluster, "Quiesced").get("status") == "True"
    return len(groups) == count and quiet
