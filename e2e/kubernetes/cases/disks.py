"""Disks that changed (swapped, emptied, older, cloned, another cluster's), and disks that an administrator declares
lost.

The member names the problem and serves nothing. A disk is not given up while the process on it lives.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from seriatim_local import LocalCluster

from e2e.kubernetes import coordinator
from e2e.kubernetes.place import Manifest, condition, is_true
from e2e.kubernetes.release import CLUSTER, NODE_LOSS_S
from e2e.kubernetes.sight import DOCTOR, output
from e2e.kubernetes.stage import Stage
from tools.kubernetes.errors import ClusterError

NAMED_S: Final = 90.0
GONE_S: Final = 90.0
REPLACED_S: Final = 300.0
LATE_LOSS_S: Final = 900
HELD_S: Final = 20.0
"""For how long the case checks that a disk is not given up.

In this time the operator makes forty passes, and a live key expires.
"""

QUIET_GAP_LIMIT_S: Final = 1.0
ANNOTATION_LOST: Final = "seriatim.dev/disk-lost"


async def disks_swapped(stage: Stage) -> None:
    """Two members start with each other's disks."""
    async with stage.traffic() as traffic:
        one, other = await _pair(stage)
        async with traffic.struck("swap disks", f"{one}, {other}"):
            places = [await _disk_of(stage, name) for name in (one, other)]
            async with _exchanged(stage, [one, other], lambda: _swap(*places), lambda: _swap(*places)):
                for name in (one, other):
                    await _refuses(stage, name, "ForeignDisk")
                stage.figure("gap", await traffic.gap_s())
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


async def disk_emptied(stage: Stage) -> None:
    """A member starts with an empty disk. Afterwards it gets its own disk back."""
    async with stage.traffic() as traffic, stage.recorded():
        await stage.look("before")
        name, _ = await _pair(stage)
        disk = await _disk_of(stage, name)
        aside = _beside(disk, "aside")
        async with (
            traffic.struck("empty disk", name),
            _exchanged(stage, [name], lambda: _move_all(disk, aside), lambda: _put_back(disk, aside)),
        ):
            await _refuses(stage, name, "WipedDisk")
            stage.figure("gap", await traffic.gap_s())
            await stage.look("disk-emptied")
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


async def disk_older(stage: Stage) -> None:
    """A member starts with a copy of its disk from an earlier member run, as if an administrator had restored a
    snapshot."""
    async with stage.traffic() as traffic:
        name, _ = await _pair(stage)
        disk = await _disk_of(stage, name)
        copy = _beside(disk, "copy")
        aside = _beside(disk, "aside")
        async with _exchanged(stage, [name], lambda: _copy(disk, copy), lambda: None):
            pass  # the member runs on, and the copy becomes old
        await stage.wait_healthy()
        await traffic.load.goes_on(500)
        async with traffic.struck("older disk", name):

            def bring_back() -> None:
                _move_all(disk, aside)
                _move_all(copy, disk)

            async with _exchanged(stage, [name], bring_back, lambda: _put_back(disk, aside)):
                await _refuses(stage, name, "OldDisk")
                stage.figure("gap", await traffic.gap_s())
        await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


async def disk_of_others(stage: Stage) -> None:
    """A member starts with a copy of another member's disk, which that member still has. Then it starts with a disk of
    another cluster.
    """
    async with stage.traffic() as traffic:
        name, other = await _pair(stage)
        disk, others = await _disk_of(stage, name), await _disk_of(stage, other)
        aside, foreign = _beside(disk, "aside"), _beside(disk, "foreign")
        await _make_foreign(stage.directory / "foreign", await _broker_of(stage, name), foreign)

        def take(source: Path) -> Callable[[], None]:
            def change() -> None:
                _move_all(disk, aside)
                _copy_all(source, disk)

            return change

        for what, source in (("clone", others), ("another cluster's disk", foreign)):
            async with (
                traffic.struck(what, name),
                _exchanged(stage, [name], take(source), lambda: _put_back(disk, aside)),
            ):
                await _refuses(stage, name, "ForeignDisk")
                stage.figure(f"gap with {what}", await traffic.gap_s())
            await stage.wait_healthy()
        await asyncio.to_thread(shutil.rmtree, foreign)
        stage.figure("two copies again", await traffic.has_two_copies())


async def disk_declared_lost(stage: Stage) -> None:
    """A node's kubelet is silent, its pods run on, and an administrator declares the disk of one of them lost.

    While the process lives, its run gets no certificate and its disk is kept, whatever the administrator writes. When
    the kubelet is back and the pod is deleted, the declaration takes effect: a certificate is written, the claim is
    deleted, and the slot gets another disk.
    """
    async with stage.traffic() as traffic:
        victim = await traffic.master()
        pod = await stage.pod_of(victim)
        name, node = pod["metadata"]["name"], await stage.node_of(victim)
        incarnation = await _incarnation(stage, name)
        async with traffic.struck("silent kubelet, disk declared lost", f"{name} on {node}"):
            async with stage.machines.silent_kubelet(node):
                await stage.wait_until("the pod is not ready", lambda: _is_not_ready(stage, name), NAMED_S)
                for said, answer in (("true", f"{ANNOTATION_LOST}={incarnation}"), (incarnation, "still hear from")):
                    await stage.place.kubectl("annotate", "--overwrite", "broker", name, f"{ANNOTATION_LOST}={said}")
                    await _is_held(stage, name, answer)
                await asyncio.sleep(HELD_S)
                if await _is_given_up(stage, name):
                    stage.problem(f"the disk of {name} was given up while its process serves")
                if [pod["metadata"]["uid"]] != [p["metadata"]["uid"] for p in await _pods_of(stage, name)]:
                    stage.problem(f"pod {name} was deleted while its kubelet was silent")
            stage.figure("gap while the kubelet is silent", await traffic.gap_s(), limit=QUIET_GAP_LIMIT_S)
            await stage.wait_until("the pod is ready", lambda: _is_ready(stage, name), NAMED_S)
            began = time.monotonic()
            await stage.place.kubectl("delete", "pod", name, "--wait=false")
            await stage.wait_until("the disk is given up", lambda: _is_given_up(stage, name), GONE_S)
            await stage.wait_until("another disk serves", lambda: _is_followed(stage, victim, name), REPLACED_S)
            stage.figure("another disk serves after", time.monotonic() - began)
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


async def node_back_without_disks(stage: Stage) -> None:
    """A machine is made again under its name, with empty disks. Its Node is Ready, and no volume can be mounted.

    The operator says that the disks are gone, and what to annotate. An administrator does so for each, and gives etcd's
    member another disk with the two commands that doctor shows. The Node object is deleted too, as with a new machine.
    It is back before `nodeLossTimeoutSeconds` proves its loss.
    """
    async with stage.traffic() as traffic, _late_loss(stage):
        operators = await stage.place.list("pods", "app.kubernetes.io/component=operator")
        taken = {pod["spec"].get("nodeName") for pod in operators}
        pods = await stage.pods()
        node = next(name for name in sorted({pod["spec"]["nodeName"] for pod in pods}) if name not in taken)
        names = sorted(pod["metadata"]["name"] for pod in pods if pod["spec"]["nodeName"] == node)
        brokers = {name: await _broker_of(stage, name) for name in names}
        async with traffic.struck("a node comes back without its disks", f"{node}: {', '.join(names)}"):
            await stage.machines.delete(node)
            began = time.monotonic()
            await stage.machines.start(node)
            stage.figure("the node is Ready again after", time.monotonic() - began)
            for name in names:
                await _says_gone(stage, name)
            doctor = await output(stage.place, DOCTOR)
            (stage.directory / "doctor.txt").write_text(doctor)
            for name in names:
                incarnation = await _incarnation(stage, name)
                if f"annotate sbroker {name} {ANNOTATION_LOST}={incarnation}" not in doctor.replace("\n", " "):
                    stage.note(f"doctor does not have the command for {name} in one line")
                began = time.monotonic()
                await stage.place.kubectl("annotate", "broker", name, f"{ANNOTATION_LOST}={incarnation}")
                await stage.wait_until("the disk is given up", partial(_is_given_up, stage, name), GONE_S)
                followed = partial(_is_followed, stage, brokers[name], name)
                await stage.wait_until("another disk serves", followed, REPLACED_S)
                stage.figure("another disk serves after", time.monotonic() - began)
            await coordinator.replace_lost_member(stage.place, node)
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


@asynccontextmanager
async def _late_loss(stage: Stage) -> AsyncIterator[None]:
    """Give a node that is gone more time than it needs to come back."""
    await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"nodeLossTimeoutSeconds": LATE_LOSS_S}})
    try:
        yield
    finally:
        await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"nodeLossTimeoutSeconds": NODE_LOSS_S}})


async def _says_gone(stage: Stage, name: str) -> None:
    seen: Manifest = {}

    async def told() -> bool:
        seen.update(await stage.broker_condition(name, "DiskHealthy"))
        return (seen.get("status"), seen.get("reason")) == ("False", "NodeReplaced")

    waited = await stage.place.wait_until(f"{name} says NodeReplaced", told, NAMED_S, lambda: str(seen))
    stage.figure("NodeReplaced named after", waited)
    stage.note(f"{name}: {seen.get('message')}")


async def _incarnation(stage: Stage, name: str) -> str:
    broker = await stage.place.get("brokers", name)
    assert broker is not None
    return str(broker["status"]["incarnation"])


async def _pods_of(stage: Stage, name: str) -> list[Manifest]:
    """Return the pod of a Broker, unless it is being deleted."""
    pods = [pod for pod in await stage.pods() if pod["metadata"]["name"] == name]
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


async def _is_ready(stage: Stage, name: str) -> bool:
    return any(is_true(pod, "Ready", current=False) for pod in await _pods_of(stage, name))


async def _is_not_ready(stage: Stage, name: str) -> bool:
    return not await _is_ready(stage, name)


async def _is_held(stage: Stage, name: str, words: str) -> None:
    """Wait until the Broker's condition says why the operator does not follow the declaration."""
    seen = {}

    async def told() -> bool:
        seen.update(await stage.broker_condition(name, "DiskHealthy"))
        return words in str(seen.get("message"))

    await stage.place.wait_until(f"{name} says {words}", told, NAMED_S, lambda: str(seen))
    stage.note(f"{name}: {seen.get('message')}")


async def _is_given_up(stage: Stage, name: str) -> bool:
    broker = await stage.place.get("brokers", name)
    return broker is not None and bool((broker.get("status") or {}).get("diskLost"))


async def _is_followed(stage: Stage, broker: str, before: str) -> bool:
    """Whether the slot has another pod, and this pod is ready."""
    try:
        pod = await stage.pod_of(broker)
    except LookupError:
        return False
    return pod["metadata"]["name"] != before and is_true(pod, "Ready", current=False)


async def _make_foreign(directory: Path, broker: str, disk: Path) -> None:
    """Make a disk that a broker of the same name has used in another cluster. The broker must be of the first group."""
    async with LocalCluster(directory, groups=1, proxy=False, name="elsewhere") as cluster:
        source = cluster.data_directory(broker)
    await asyncio.to_thread(shutil.copytree, source, disk / "data")


async def _broker_of(stage: Stage, name: str) -> str:
    """Return the name that the brokers use for the member of an object."""
    pod = await stage.place.get("pods", name)
    assert pod is not None
    labels = pod["metadata"]["labels"]
    return f"{labels['seriatim.dev/group']}-{labels['seriatim.dev/slot']}"


async def _pair(stage: Stage) -> tuple[str, str]:
    """Return the names of two members of different groups."""
    names = {pod["metadata"]["labels"]["seriatim.dev/group"]: pod["metadata"]["name"] for pod in await stage.pods()}
    first, second, *_ = sorted(names)
    return names[first], names[second]


async def _disk_of(stage: Stage, broker: str) -> Path:
    """Return the directory of a member's disk on this host."""
    claim = await stage.place.get("persistentvolumeclaims", broker)
    assert claim is not None
    volume = await stage.place.read(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    assert volume is not None
    return Path(volume["spec"]["local"]["path"])


@asynccontextmanager
async def _exchanged(
    stage: Stage, names: list[str], change: Callable[[], None], restore: Callable[[], None]
) -> AsyncIterator[None]:
    """Stop members, change their disks, and start them. After the block, restore the disks in the same way.

    The cluster is paused while members are stopped, because otherwise the operator would start them again at once.
    """
    await _stopped(stage, names, change)
    try:
        yield
    finally:
        await _stopped(stage, names, restore)


async def _stopped(stage: Stage, names: list[str], act: Callable[[], None]) -> None:
    await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"paused": True}})
    try:
        await stage.wait_until("the operator pauses", lambda: _paused(stage), GONE_S)
        await stage.place.kubectl("delete", "pod", *names, "--wait=false")
        await stage.wait_until("they have ended", lambda: _gone(stage, names), GONE_S)
        await asyncio.to_thread(act)
    finally:
        await stage.place.patch("brokerclusters", CLUSTER, {"spec": {"paused": False}})


async def _paused(stage: Stage) -> bool:
    return condition(await stage.cluster(), "Progressing").get("reason") == "Paused"


async def _gone(stage: Stage, names: list[str]) -> bool:
    return not {pod["metadata"]["name"] for pod in await stage.pods()}.intersection(names)


async def _refuses(stage: Stage, name: str, reason: str) -> None:
    """Wait until the condition gives this reason. Check that the pod serves nothing."""
    seen = {}

    async def named() -> bool:
        seen.update(await stage.broker_condition(name, "DiskHealthy"))
        return seen.get("status") == "False" and seen.get("reason") == reason

    waited = await stage.place.wait_until(f"{name} says {reason}", named, NAMED_S, lambda: str(seen))
    stage.figure(f"{reason} named after", waited)
    stage.note(f"{name}: {seen.get('message')}")
    if is_true(await stage.place.get("pods", name), "Ready", current=False):
        stage.problem(f"{name} serves with a disk that is not its own ({reason})")


def _beside(disk: Path, what: str) -> Path:
    """Return a directory on the same file system that the cluster does not offer as a disk."""
    return disk.parent.parent / f"e2e-{what}-{disk.name}"


def _swap(one: Path, other: Path) -> None:
    aside = _beside(one, "aside")
    _move_all(one, aside)
    _move_all(other, one)
    _move_all(aside, other)
    aside.rmdir()


def _move_all(source: Path, target: Path) -> None:
    """Move the content of a directory. The directory itself stays, because a volume names it."""
    target.mkdir(exist_ok=True)
    for entry in list(source.iterdir()):
        shutil.move(str(entry), str(target / entry.name))


def _put_back(disk: Path, aside: Path) -> None:
    for entry in list(disk.iterdir()):
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    _move_all(aside, disk)
    aside.rmdir()


def _copy(disk: Path, copy: Path) -> None:
    if copy.exists():
        raise ClusterError(f"{copy} is there already")
    _copy_all(disk, copy)


def _copy_all(source: Path, target: Path) -> None:
    """Copy the content of a directory for a broker.

    A file that vanishes meanwhile is a log file that its broker deleted.
    """
    with suppress(shutil.Error):
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    for path in (target, *target.rglob("*")):
        shutil.chown(path, 10001, 10001)
