"""The chart's etcd: its members, and how to replace a member whose disk is lost, as the runbook says."""

from __future__ import annotations

from typing import Final

from e2e.kubernetes.place import Manifest, Place, is_true

SELECTOR: Final = "app.kubernetes.io/component=etcd"
READY_S: Final = 180.0
METRICS_PORT: Final = 2381


async def members(place: Place) -> list[Manifest]:
    """Return the pods of etcd."""
    return await place.list("pods", SELECTOR)


async def wait_ready(place: Place) -> None:
    """Wait until all members are ready.

    Raises:
        StillNotError: They are not ready in time.
    """

    async def ready() -> bool:
        found = [pod for pod in await members(place) if not pod["metadata"].get("deletionTimestamp")]
        return len(found) == 3 and all(is_true(pod, "Ready", current=False) for pod in found)

    await place.wait_until("etcd's members are ready", ready, READY_S)


async def etcd_leader(place: Place) -> Manifest:
    """Wait until all members are ready, and return the pod of the one that leads.

    Without the wait, a case could begin while the third member starts for the first time: the brokers need only two.

    Raises:
        ClusterError: A member does not answer.
        StillNotError: The members are not ready in time.
        LookupError: No member leads.
    """
    await wait_ready(place)
    for pod in await members(place):
        path = f"/api/v1/namespaces/{place.namespace}/pods/{pod['metadata']['name']}:{METRICS_PORT}/proxy/metrics"
        if "\netcd_server_is_leader 1\n" in await place.kubectl("get", "--raw", path):
            return pod
    raise LookupError("no member of etcd leads")


async def replace_lost_member(place: Place, node: str) -> None:
    """Give another disk to the member whose volume was on a lost node. If there is none, only wait until all are ready.

    Raises:
        ClusterError, StillNotError: The member does not take part again.
    """
    lost = await _lost(place, node)
    if lost is None:
        await wait_ready(place)
        return
    await replace_disk(place, lost)


async def replace_disk(place: Place, member: str) -> None:
    """Delete a member's volume and pod, and wait until it takes part again with a new volume.

    Raises:
        ClusterError, StillNotError: The member does not take part again.
    """
    before = {pod["metadata"]["uid"] for pod in await members(place)}
    await place.kubectl("delete", "persistentvolumeclaim", f"data-{member}", "--wait=false")
    await place.kubectl("delete", "pod", member, "--wait=false")

    async def is_another() -> bool:
        pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await members(place)}
        return member in pods and pods[member] not in before

    await place.wait_until(f"{member} is another pod", is_another, READY_S)
    await wait_ready(place)


async def _lost(place: Place, node: str) -> str | None:
    """Return the member whose volume was on that node."""
    for claim in await place.list("persistentvolumeclaims", SELECTOR):
        volume = str(claim["spec"].get("volumeName") or "")
        if volume.startswith(f"{node}-") and await place.read(f"/api/v1/persistentvolumes/{volume}") is not None:
            name = claim["metadata"]["name"].removeprefix("data-")
            pods = {pod["metadata"]["name"]: pod for pod in await members(place)}
            if not is_true(pods.get(name), "Ready", current=False):
                return str(name)
    return None
