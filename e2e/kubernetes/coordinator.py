"""The chart's etcd: its members, and how one whose disk is lost comes in anew, as the runbook says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from e2e.cluster.errors import ClusterError
from e2e.kubernetes.place import Manifest, Place, is_true
from e2e.kubernetes.release import RELEASE, Release

NAME: Final = f"{RELEASE}-etcd"
SELECTOR: Final = "app.kubernetes.io/component=etcd"
READY_S: Final = 180.0
FILES: Final = "/etc/etcd/server"


async def members(place: Place) -> list[Manifest]:
    """The pods."""
    return await place.list("pods", SELECTOR)


async def wait_ready(place: Place) -> None:
    """Wait until all members are ready.

    Raises:
        StillNotError: They are not.
    """

    async def ready() -> bool:
        found = await members(place)
        return len(found) == 3 and all(is_true(pod, "Ready", current=False) for pod in found)

    await place.wait_until("etcd's members are ready", ready, READY_S)


async def replace_lost_member(release: Release, node: str, directory: Path) -> None:
    """Have a member take part again whose volume went with a node; nothing to do if none did.

    Raises:
        ClusterError, StillNotError: It does not.
    """
    place = release.place
    lost = await _lost(place, node)
    if lost is None:
        await wait_ready(place)
        return
    helper = next(
        pod["metadata"]["name"]
        for pod in await members(place)
        if pod["metadata"]["name"] != lost and is_true(pod, "Ready", current=False)
    )
    listed = json.loads(await _etcdctl(place, helper, "member", "list", "-w=json", "--hex=false"))
    ids = [f"{member['ID']:x}" for member in listed["members"] if member.get("name") == lost]
    for member_id in ids:
        await _etcdctl(place, helper, "member", "remove", member_id)
    address = f"https://{lost}.{NAME}.{place.namespace}.svc:2380"
    await _etcdctl(place, helper, "member", "add", lost, f"--peer-urls={address}")
    await release.upgrade(directory, {"etcd": {"extraArgs": ["--initial-cluster-state=existing"]}})
    await place.kubectl("delete", "persistentvolumeclaim", f"data-{lost}", "--wait=false")
    await place.kubectl("delete", "pod", lost, "--wait=false")
    await wait_ready(place)
    await release.upgrade(directory, {"etcd": {"extraArgs": []}})
    await wait_ready(place)


async def _lost(place: Place, node: str) -> str | None:
    """The member whose volume was on that node."""
    for claim in await place.list("persistentvolumeclaims", SELECTOR):
        volume = str(claim["spec"].get("volumeName") or "")
        if volume.startswith(f"{node}-") and await place.read(f"/api/v1/persistentvolumes/{volume}") is not None:
            name = claim["metadata"]["name"].removeprefix("data-")
            pods = {pod["metadata"]["name"]: pod for pod in await members(place)}
            if not is_true(pods.get(name), "Ready", current=False):
                return str(name)
    return None


async def _etcdctl(place: Place, pod: str, *arguments: str) -> str:
    """Run etcdctl in a member.

    Raises:
        ClusterError: It failed.
    """
    options = (
        f"--cacert={FILES}/ca.crt", f"--cert={FILES}/tls.crt", f"--key={FILES}/tls.key",
        "--endpoints=https://localhost:2379",
    )  # fmt: skip
    try:
        return await place.kubectl("exec", pod, "--", "etcdctl", *options, *arguments)
    except ClusterError as error:
        raise ClusterError(f"etcdctl {' '.join(arguments)} in {pod}: {error}") from error
