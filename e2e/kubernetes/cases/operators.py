"""The operator: it is dead during a failover, there are two of them, or it has two thousand topics."""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from pathlib import Path
from typing import Final

from seriatim import Client, Tls

from e2e.kubernetes.cases.pods import BACK_S, GAP_LIMIT_S, has_restarted
from e2e.kubernetes.machines import container_pids, kill_container
from e2e.kubernetes.place import Manifest, is_true
from e2e.kubernetes.release import RELEASE, topic_manifest
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import bootstrap_of

OPERATOR: Final = f"{RELEASE}-operator"
SELECTOR: Final = "app.kubernetes.io/component=operator"
READY_S: Final = 120.0

TOPIC_COUNT: Final = 2_000
TOPICS_READY_S: Final = 600.0
COLD_START_LIMIT_S: Final = 5.0
RSS_LIMIT_MB: Final = 150.0
QUIET_S: Final = 30.0
"""For how long no status may be written if nothing happens."""

MANY: Final = "e2e.seriatim.dev/many"


async def operator_dead(stage: Stage) -> None:
    """Kill the operator, then a master's container. The failover needs no operator. Then the operator comes back."""
    async with stage.traffic() as traffic:
        victim = await traffic.master()
        before = await stage.pod_of(victim)
        async with traffic.struck("kill operator and container", victim):
            await stage.place.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=0")
            try:
                await stage.wait_until("no operator is there", lambda: _count(stage, 0), READY_S)
                kill_container(before)
                stage.figure("gap without operator", await traffic.gap_s(), limit=GAP_LIMIT_S)
            finally:
                await stage.place.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=1")
        await stage.wait_until(f"{victim} has restarted", lambda: has_restarted(stage, victim, before), BACK_S)
        await stage.wait_until("the operator is back", lambda: _count(stage, 1), READY_S)
        stage.figure("two copies again", await traffic.has_two_copies())


async def operator_deleted(stage: Stage) -> None:
    """Delete the operator's pod in the middle of a failover."""
    async with stage.traffic() as traffic:
        victim = await traffic.master()
        before = await stage.pod_of(victim)
        async with traffic.struck("kill container, delete operator", victim):
            kill_container(before)
            await stage.place.kubectl("delete", "pod", f"--selector={SELECTOR}", "--wait=false", "--force")
            stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
        await stage.wait_until(f"{victim} has restarted", lambda: has_restarted(stage, victim, before), BACK_S)
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


async def two_operators(stage: Stage) -> None:
    """A second operator waits, and acts after the first has gone. It also looks after a member that dies meanwhile."""
    async with stage.traffic() as traffic:
        await stage.place.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=2")
        try:
            await stage.wait_until("two operators are ready", lambda: _count(stage, 2), READY_S)
            lease = await _lease(stage)
            holder = str(lease["spec"]["holderIdentity"])
            holding_pod = next(p for p in await _operators(stage) if holder.startswith(p["metadata"]["name"]))
            victim = await traffic.master()
            before = await stage.pod_of(victim)
            async with traffic.struck("kill container and the acting operator", victim):
                began = time.monotonic()
                kill_container(holding_pod)
                kill_container(before)
                stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
                await stage.wait_until("another acts", lambda: _holder_changed(stage, holder), READY_S)
                stage.figure("another acts after", time.monotonic() - began)
            after = await _lease(stage)
            if after["spec"]["leaseTransitions"] <= lease["spec"]["leaseTransitions"]:
                stage.problem("the Lease changed hands and its epoch did not grow")
            await stage.wait_until(f"{victim} has restarted", lambda: has_restarted(stage, victim, before), BACK_S)
            await stage.wait_healthy()
        finally:
            await stage.place.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=1")
        await stage.wait_until("one operator is left", lambda: _count(stage, 1), READY_S)
        stage.figure("two copies again", await traffic.has_two_copies())


async def many_topics(stage: Stage) -> None:
    """Apply 2,000 Topics at once.

    Then start an operator again, and check that it writes nothing while nothing happens.
    """
    path = stage.directory / "topics.json"
    await asyncio.to_thread(path.write_text, _many(stage.place.namespace))
    began = time.monotonic()
    await stage.place.kubectl("apply", "--server-side", "-f", path, timeout_s=TOPICS_READY_S)
    stage.figure(f"kubectl apply of {TOPIC_COUNT:,}", time.monotonic() - began)
    try:
        await stage.wait_until("all are Ready", lambda: _all_ready(stage), TOPICS_READY_S)
        stage.figure("all Ready after", time.monotonic() - began)
        stage.figure("operator's memory", await _rss_mb(stage), "MB", RSS_LIMIT_MB)
        await _restart_operator(stage)
        stage.figure("operator's memory after a cold start", await _rss_mb(stage), "MB", RSS_LIMIT_MB)
        await _watch_quiet(stage)
    finally:
        began = time.monotonic()
        await stage.place.kubectl("delete", "topics", f"--selector={MANY}", "--wait=false", timeout_s=TOPICS_READY_S)
        await stage.wait_until("the brokers have none of them", lambda: _none_left(stage), TOPICS_READY_S)
        stage.figure("deleted after", time.monotonic() - began)


def _many(namespace: str) -> str:
    items = []
    for number in range(TOPIC_COUNT):
        manifest = topic_manifest(namespace, f"many-{number:04}", 1, deletionPolicy="Delete")
        manifest["metadata"]["labels"] = {MANY: "true"}
        items.append(manifest)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


async def _all_ready(stage: Stage) -> bool:
    found = await stage.place.list("topics", MANY)
    ready = sum(is_true(topic, "Ready") for topic in found)
    await asyncio.sleep(1.0)  # so large a list costs the API some work
    return ready >= TOPIC_COUNT


async def _none_left(stage: Stage) -> bool:
    """Whether the brokers have none of these topics any more. The objects may be gone before their topics."""
    await asyncio.sleep(1.0)
    if await stage.place.list("topics", MANY):
        return False
    tls = Tls(**await stage.certificates())
    async with Client.connect(bootstrap_of(stage.place), name="suite", tls=tls) as client:
        return not any(topic.name.startswith("many-") for topic in await client.admin().list_topics())


async def _restart_operator(stage: Stage) -> None:
    """End the operator, which gives its Lease back. A new operator starts and looks at all objects."""
    before = (await _operators(stage))[0]["metadata"]["uid"]
    # This Topic is applied while no operator runs. It becomes Ready when the new operator has looked at all objects.
    probe = f"probe-{stage.number}"
    await stage.place.kubectl("delete", "pod", f"--selector={SELECTOR}", "--wait=false")
    await stage.place.apply(topic_manifest(stage.place.namespace, probe, 1, deletionPolicy="Delete"))

    async def ready() -> bool:
        return is_true(await stage.place.get("topics", probe), "Ready")

    await stage.wait_until("a new topic is Ready", ready, READY_S)
    ready_at = time.time()
    found = [pod for pod in await _operators(stage) if pod["metadata"]["uid"] != before]
    if not found:
        stage.note("the operator that was told to end made the new topic Ready before it ended: no cold start was seen")
    else:
        started = _time(found[0]["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
        # The API has whole seconds, so the figure may be up to 1 s too high.
        stage.figure("operator's start to a new topic Ready", ready_at - started, limit=COLD_START_LIMIT_S)
    await stage.place.kubectl("delete", "topic", probe, "--wait=false")
    await stage.wait_until("the topic is gone", lambda: _is_gone(stage, probe), READY_S)


async def _is_gone(stage: Stage, topic: str) -> bool:
    return await stage.place.get("topics", topic) is None


async def _watch_quiet(stage: Stage) -> None:
    """Check that no Topic is written to while nothing happens."""
    before = await _versions(stage)
    await asyncio.sleep(QUIET_S)  # this waits for no state: nothing may happen in this time
    after = await _versions(stage)
    written = sorted(name for name, version in after.items() if before.get(name) != version)
    stage.figure(f"objects written in {QUIET_S:g} s of rest", len(written), "", 0)
    if written:
        stage.problem(f"written without a transition: {', '.join(written[:10])}")


async def _versions(stage: Stage) -> dict[str, str]:
    found = {}
    for plural in ("topics", "brokerclusters", "brokergroups", "brokers"):
        for item in await stage.place.list(plural):
            found[f"{plural}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    return found


async def _rss_mb(stage: Stage) -> float:
    """Return the memory of the operator's process in MB. It is the largest process: an init process runs beside it."""
    pids = container_pids((await _operators(stage))[0])
    return max([await asyncio.to_thread(_rss_of, pid) for pid in pids])


def _rss_of(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0.0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(found[0]) / 1024 if found else 0.0


async def _operators(stage: Stage) -> list[Manifest]:
    found = await stage.place.list("pods", SELECTOR)
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


async def _count(stage: Stage, wanted: int) -> bool:
    found = await stage.place.list("pods", SELECTOR)
    return len(found) == wanted and all(is_true(pod, "Ready", current=False) for pod in found)


async def _lease(stage: Stage) -> Manifest:
    found = await stage.place.get("leases", OPERATOR)
    assert found is not None, "an operator runs"
    return found


async def _holder_changed(stage: Stage, before: str) -> bool:
    holder = str((await _lease(stage))["spec"].get("holderIdentity") or "")
    return bool(holder) and holder != before


def _time(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
