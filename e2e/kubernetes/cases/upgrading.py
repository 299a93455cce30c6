"""An upgrade from the version before to this one: its chart, its images, and the disks that it wrote."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from e2e.kubernetes.delayed import DelayedTraffic, delayed_traffic
from e2e.kubernetes.place import Place
from e2e.kubernetes.release import Release
from e2e.kubernetes.stage import Stage

SMALL: Final = {"etcd": {"members": 1}, "cluster": {"spec": {"groups": 2}}}
CHANGED_S: Final = 300.0
GAP_LIMIT_S: Final = 0.3
FIRED: Final = 100
"""Delayed messages that must come after the upgrade."""


async def upgraded(stage: Stage) -> None:
    """Install the version before, and send and read.

    Meanwhile upgrade the definitions and the chart. Then all must be read. Delayed messages, which the version before
    does not know, are refused until all brokers know them; then each comes once, and not early.
    """
    assert stage.previous is not None, "else the case is skipped"
    place = Place(stage.place.cluster, f"{stage.place.namespace}-old")
    release = Release(place, stage.previous, dict(SMALL))
    own = replace(stage, release=release)
    await release.prepare()
    try:
        await release.install(stage.directory)
        await own.wait_healthy(CHANGED_S)
        before = {pod["metadata"]["name"] for pod in await own.pods()}
        async with own.traffic() as traffic, delayed_traffic(own) as delayed:
            await traffic.load.goes_on(2_000)
            async with traffic.struck("upgrade", stage.previous.tag):
                began = time.monotonic()
                release.images = stage.release.images
                await release.prepare()
                await release.upgrade(stage.directory, {})
                await own.wait_until(
                    "every member runs this version", lambda: _runs(own, release.images.tag), CHANGED_S
                )
                await own.wait_healthy(CHANGED_S)
                stage.figure("upgraded after", time.monotonic() - began)
                stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
            stage.figure("two copies again", await traffic.has_two_copies())
            await own.wait_until("delayed messages come", lambda: _come(delayed), CHANGED_S)
        if not delayed.refused_count:
            stage.problem("brokers of the version before took delayed messages")
        if (names := {pod["metadata"]["name"] for pod in await own.pods()}) != before:
            stage.problem(f"members came with other disks: {sorted(before)}, then {sorted(names)}")
        if stage.counts["failed"]:
            stage.problem(f"{stage.counts['failed']} sends failed")
    finally:
        await release.remove()
        await stage.release.prepare()  # in any case, restore the definitions of this version


async def _come(delayed: DelayedTraffic) -> bool:
    return len(delayed.arrivals.came) >= FIRED


async def _runs(stage: Stage, tag: str) -> bool:
    pods = await stage.pods()
    return bool(pods) and all(pod["spec"]["containers"][0]["image"].endswith(f":{tag}") for pod in pods)
