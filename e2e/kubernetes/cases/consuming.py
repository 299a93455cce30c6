"""A key-ordered consumer group of an object: a message that fails parks its key, and an administrator releases it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any, Final

from seriatim import Client, Message, Tls

from e2e.kubernetes.place import Manifest, condition, is_true
from e2e.kubernetes.release import CLUSTER, topic_manifest
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import bootstrap_of, wait_topic_ready

MESSAGES: Final = 400
KEYS: Final = 20
POISON: Final = b"k7"
"""The key whose second message fails until the case mends it."""

PARKING: Final = {"attempts": 2, "backOff": "Fixed", "delays": ["100ms"], "whenExhausted": "ParkKey"}
BLOCKING: Final = {"attempts": 7, "backOff": "List", "delays": ["200ms", "1s"], "whenExhausted": "Block"}

READY_S: Final = 60.0
TOLD_S: Final = 60.0
"""The operator looks at a consumer group every 30 s."""

TOLD_LIMIT_S: Final = 40.0
EDITED_LIMIT_S: Final = 5.0
DONE_S: Final = 60.0


class Application:
    """A handler that fails on one message until it is mended, and the values that it finished, by key."""

    def __init__(self) -> None:
        self.finished: dict[bytes, list[int]] = defaultdict(list)
        self.is_mended = False

    async def handle(self, message: Message) -> None:
        """Work on one message."""
        assert message.key is not None
        if message.key == POISON and int(message.value) >= KEYS and not self.is_mended:
            raise ValueError("no price in this order")
        self.finished[message.key].append(int(message.value))

    @property
    def count(self) -> int:
        """How many messages are finished."""
        return sum(map(len, self.finished.values()))

    def problems(self) -> list[str]:
        """What is wrong at the end."""
        found = [f"{key!r} out of order: {done}" for key, done in self.finished.items() if done != sorted(set(done))]
        return found if self.count == MESSAGES else [*found, f"{self.count} of {MESSAGES} messages were finished"]


async def key_parked(stage: Stage) -> None:
    """Park a key, read of it in the object and its events, change the policy by editing the object, and release it."""
    place, name = stage.place, f"orders-by-key-{stage.number}"
    await place.apply(topic_manifest(place.namespace, name, 2))
    await wait_topic_ready(place, name)
    began = time.monotonic()
    await place.apply(_group(stage, name))
    await stage.wait_until("the consumer group is ready", lambda: _is_ready(stage, name), READY_S)
    stage.figure("applied to Ready", time.monotonic() - began)
    app = Application()
    async with Client.connect(bootstrap_of(place), name="orders", tls=Tls(**await stage.certificates())) as client:
        async with client.producer(name) as producer:
            for number in range(MESSAGES):
                await producer.send(b"%d" % number, key=b"k%d" % (number % KEYS))
        consumer = await client.consumer(name, name, mode="key_ordered")
        running = asyncio.create_task(consumer.run(app.handle, 8))
        try:
            await _park_and_release(stage, name, client, app)
        finally:
            await consumer.close()
            await asyncio.gather(running, return_exceptions=True)
    for problem in app.problems():
        stage.problem(problem)
    await place.kubectl("delete", "consumergroup", name)
    await place.kubectl("delete", "topic", name)


async def _park_and_release(stage: Stage, name: str, client: Client, app: Application) -> None:
    place, admin = stage.place, client.admin()
    others = MESSAGES - MESSAGES // KEYS + 1  # the first message of the key is no poison

    async def others_are_done() -> bool:
        return app.count == others

    await stage.wait_until("all other messages are finished", others_are_done, DONE_S)
    began = time.monotonic()
    await stage.wait_until("the object says that a key is parked", lambda: _parks(stage, name, "True"), TOLD_S)
    stage.figure("reported that a key is parked", time.monotonic() - began, limit=TOLD_LIMIT_S)
    said = await _events(stage, name)
    if not any(reason == "KeyParked" and "k7" in note and "no price in this order" in note for reason, note in said):
        stage.problem(f"no event reports the parked key and its error: {said}")
    stage.note(await place.kubectl("get", "scg", name, "-o", "wide"))

    began = time.monotonic()
    await place.patch("consumergroups", name, {"spec": {"retry": BLOCKING}})
    await stage.wait_until(
        "the new policy is there", lambda: _has_policy(stage, name, "7 attempts, then Block"), READY_S
    )
    stage.figure("policy edited", time.monotonic() - began, limit=EDITED_LIMIT_S)
    settings = (await admin.describe_group(name, name)).settings
    if settings is None or settings.retry is None or settings.retry.delays_ms != (200, 1_000):
        stage.problem(f"the brokers have another policy: {settings}")

    app.is_mended = True
    keys = [key async for key in admin.group_keys(name, name)]
    stage.note(f"parked: {', '.join(f'{key.key!r} on {key.partition}, {key.messages} messages' for key in keys)}")
    for result in await admin.release_keys(name, name, keys):
        if result.error is not None:
            stage.problem(f"a key is not released: {result.error}")

    async def all_are_done() -> bool:
        return app.count >= MESSAGES

    began = time.monotonic()
    await stage.wait_until("all messages are finished", all_are_done, DONE_S)
    await stage.wait_until("the object says that no key is parked", lambda: _parks(stage, name, "False"), TOLD_S)
    stage.figure("reported that no key is parked", time.monotonic() - began, limit=TOLD_LIMIT_S)
    reasons = {reason for reason, _ in await _events(stage, name)}
    if not {"GroupCreated", "GroupConfigured", "KeysReleased"} <= reasons:
        stage.problem(f"events are missing: {sorted(reasons)}")


def _group(stage: Stage, name: str) -> Manifest:
    return {
        "apiVersion": "seriatim.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name, "namespace": stage.place.namespace},
        "spec": {
            "cluster": CLUSTER, "topic": name, "mode": "KeyOrdered", "retry": PARKING, "deletionPolicy": "Delete",
        },
    }  # fmt: skip


async def _is_ready(stage: Stage, name: str) -> bool:
    return is_true(await stage.place.get("consumergroups", name), "Ready")


async def _parks(stage: Stage, name: str, status: str) -> bool:
    return condition(await stage.place.get("consumergroups", name), "KeysParked").get("status") == status


async def _has_policy(stage: Stage, name: str, text: str) -> bool:
    found = await stage.place.get("consumergroups", name)
    status: dict[str, Any] = (found or {}).get("status") or {}
    return is_true(found, "Ready") and str(status.get("policy", "")).startswith(text)


async def _events(stage: Stage, name: str) -> list[tuple[str, str]]:
    """Reason and note of each event of the object."""
    found = await stage.place.list("events")
    return [
        (str(event.get("reason")), str(event.get("message")))
        for event in found
        if (event.get("involvedObject") or {}).get("name") == name
    ]
