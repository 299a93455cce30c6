"""From nothing to the first accepted message, and a Topic from `kubectl apply` to Ready."""

from __future__ import annotations

import time
from typing import Final

from e2e.kubernetes.release import topic_manifest
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import first_message, wait_topic_ready

INSTALL_LIMIT_S: Final = 60.0
TOPIC_LIMIT_S: Final = 2.0
DEADLINE_S: Final = 240.0


async def install(stage: Stage) -> None:
    """`helm install`, `kubectl apply` of a topic, and the first message. Only the images are on the nodes before."""
    await stage.release.prepare()
    began = time.monotonic()
    await stage.release.install(stage.directory)
    stage.figure("helm install", time.monotonic() - began)
    await stage.place.apply(topic_manifest(stage.place.namespace, "first", 1))
    await wait_topic_ready(stage.place, "first", DEADLINE_S)
    stage.figure("topic Ready after", time.monotonic() - began)
    await first_message(stage.place, "first", await stage.certificates(), DEADLINE_S)
    stage.figure("first message accepted after", time.monotonic() - began, limit=INSTALL_LIMIT_S)


async def topic_applied(stage: Stage) -> None:
    """Apply a Topic to a running cluster, and measure the time from `kubectl apply` to Ready."""
    began = time.monotonic()
    await stage.place.apply(topic_manifest(stage.place.namespace, "applied", 4))
    applied = time.monotonic()
    await wait_topic_ready(stage.place, "applied")
    stage.figure("kubectl apply", applied - began)
    stage.figure("applied to Ready", time.monotonic() - began, limit=TOPIC_LIMIT_S)
    await stage.place.kubectl("delete", "topic", "applied")
