"""Disks that are not what they were: swapped, emptied, older, cloned, another cluster's.

The member says so by name and serves nothing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from seriatim_broker.local import LocalCluster

from e2e.cluster.errors import ClusterError
from e2e.kubernetes.place import condition, is_true
from e2e.kubernetes.release import CLUSTER
from e2e.kubernetes.stage import Stage

NAMED_S: Final = 90.0
GONE_S: Final = 90.0


async def disks_swapped(stage: Stage) -> None:
    """Two members wake up with each other's disks."""
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
    """A member wakes up with an empty disk; afterwards it has its own again."""
    async with stage.traffic() as traffic:
        name, _ = await _pair(stage)
        disk = await _disk_of(stage, name)
        aside = _beside(disk, "aside")
        async with (
            traffic.struck("empty disk", name),
            _exchanged(stage, [name], lambda: _move_all(disk, aside), lambda: _put_back(disk, aside)),
        ):
            await _refuses(stage, name, "WipedDisk")
            stage.figure("gap", await traffic.gap_s())
        await stage.wait_healthy()
        stage.figure("two copies again", await traffic.has_two_copies())


async def disk_older(stage: Stage) -> None:
    """A member wakes up with a copy of its disk that was made a run ago: a snapshot that somebody brought back."""
    async with stage.traffic() as traffic:
        name, _ = await _pair(stage)
        disk = await _disk_of(stage, name)
        copy = _beside(disk, "copy")
        aside = _beside(disk, "aside")
        async with _exchanged(stage, [name], lambda: _copy(disk, copy), lambda: None):
            pass  # it runs on from here; the copy is as old as this
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
    """A member wakes up with a copy of another member's disk, which that one still has; then with another cluster's."""
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


async def _make_foreign(directory: Path, broker: str, disk: Path) -> None:
    """A disk that a broker of the same name has used, in some other cluster; the name is one of the first group's."""
    async with LocalCluster(directory, groups=1, proxy=False, name="elsewhere") as cluster:
        source = cluster.data_directory(broker)
    await asyncio.to_thread(shutil.copytree, source, disk / "data")


async def _broker_of(stage: Stage, name: str) -> str:
    """How the brokers call the member of an object."""
    pod = await stage.place.get("pods", name)
    assert pod is not None
    labels = pod["metadata"]["labels"]
    return f"{labels['seriatim.dev/group']}-{labels['seriatim.dev/slot']}"


async def _pair(stage: Stage) -> tuple[str, str]:
    """Two members of two groups, by their objects' names."""
    names = {pod["metadata"]["labels"]["seriatim.dev/group"]: pod["metadata"]["name"] for pod in await stage.pods()}
    first, second, *_ = sorted(names)
    return names[first], names[second]


async def _disk_of(stage: Stage, broker: str) -> Path:
    """Where a member's disk is on this host."""
    claim = await stage.place.get("persistentvolumeclaims", broker)
    assert claim is not None
    volume = await stage.place.read(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    assert volume is not None
    return Path(volume["spec"]["local"]["path"])


@asynccontextmanager
async def _exchanged(
    stage: Stage, names: list[str], change: Callable[[], None], restore: Callable[[], None]
) -> AsyncIterator[None]:
    """Members stopped, their disks changed, and started; at the end the same the other way round.

    The cluster is paused while they are stopped, or the operator would start them again at once.
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
    """The condition says why, and the pod serves nothing."""
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
    """A directory on the same file system that is no disk on offer."""
    return disk.parent.parent / f"e2e-{what}-{disk.name}"


def _swap(one: Path, other: Path) -> None:
    aside = _beside(one, "aside")
    _move_all(one, aside)
    _move_all(other, one)
    _move_all(aside, other)
    aside.rmdir()


def _move_all(source: Path, target: Path) -> None:
    """Move what is in a directory; the directories themselves are what volumes name."""
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
    """Copy what is in a directory, for a broker; what vanishes meanwhile is a log file that its owner has done with."""
    with suppress(shutil.Error):
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    for path in (target, *target.rglob("*")):
        shutil.chown(path, 10001, 10001)
