"""Members that end one by one: a pod is deleted, a container is killed."""

from __future__ import annotations

from typing import Final

from e2e.kubernetes.machines import kill_container
from e2e.kubernetes.place import Manifest, is_true
from e2e.kubernetes.stage import Stage

GAP_LIMIT_S: Final = 0.3
BACK_S: Final = 120.0


async def master_pod_deleted(stage: Stage) -> None:
    """`kubectl delete pod` of a master: it hands over before it ends, and starts again on the same disk."""
    async with stage.traffic() as traffic:
        victim = await traffic.master()
        before = await stage.pod_of(victim)
        name = before["metadata"]["name"]
        async with traffic.struck("delete pod", victim):
            await stage.place.kubectl("delete", "pod", name, "--wait=false")
            stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
            await _wait_back(stage, victim, before["metadata"]["uid"])
        after = await stage.pod_of(victim)
        if after["metadata"]["name"] != name:
            stage.problem(f"{victim} came back on another disk: {name}, then {after['metadata']['name']}")
        stage.figure("two copies again", await traffic.has_two_copies())
        await stage.wait_healthy()


async def container_killed(stage: Stage) -> None:
    """SIGKILL of a master's container: it cannot notify other brokers. The kubelet starts it again on the same disk."""
    async with stage.traffic() as traffic, stage.recorded():
        victim = await traffic.master()
        before = await stage.pod_of(victim)
        await stage.look("before")
        async with traffic.struck("kill container", victim):
            kill_container(before)
            stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
            await stage.look("container-killed")
        await stage.wait_until(f"{victim} has restarted", lambda: has_restarted(stage, victim, before), BACK_S)
        stage.figure("two copies again", await traffic.has_two_copies())
        await stage.wait_healthy()


async def _wait_back(stage: Stage, broker: str, old_uid: str) -> None:
    async def back() -> bool:
        try:
            pod = await stage.pod_of(broker)
        except LookupError:
            return False
        return pod["metadata"]["uid"] != old_uid and is_true(pod, "Ready", current=False)

    await stage.wait_until(f"{broker} is back", back, BACK_S)


async def has_restarted(stage: Stage, broker: str, before: Manifest) -> bool:
    """Whether a broker's container has started again in the same pod, and is ready."""
    now = await stage.pod_of(broker)
    return restarts(now) > restarts(before) and is_true(now, "Ready", current=False)


def restarts(pod: Manifest) -> int:
    """Return how often a pod's container was started again."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    return int(statuses[0].get("restartCount") or 0)
