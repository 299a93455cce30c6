"""Faults of disks: slow, full, failing, emptied, replaced by an older copy, and a power cut. (`damage` has damaged
disks.)

`tools/slowdisk` below one broker's process makes its disk slow, full or failing. A power cut is `kill -9` of both
members at once. A kill leaves the page cache, and a power cut does not. So `tools/lossydisk` then cuts their files to
the flushed part.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import ClassVar, Final, Literal

from seriatim import Segment
from seriatim_api.errors import SeriatimError

from e2e.faults.kinds.fault import ENDED_DEADLINE_S, Fault, NotStruckError, Scene
from e2e.faults.kinds.processes import BrokerRole, brokers_of
from e2e.faults.schedule import DELAYED, among

REPORT_DEADLINE_S: Final = 30.0
BRING_DEADLINE_S: Final = 30.0
BRING_PAUSE_S: Final = 0.2
RESERVE_BYTES_MIN: Final = 2 << 30
"""The least that brokers keep free of new messages, unless a fifth of the disk is less."""

SLOW_FLUSH: Final = "sync_ms=250"
SLOW_FLUSH_S: Final = 0.6
"""How long flushes are slow before the kill.

Slow flushes take so little time that no member counts as dead, and so much that a flush is under way all the time.
"""

HUNG: Final = "sync_ms=600000"
"""No flush ends until the disk is healed. The library reads its settings again every 50 ms."""

SLOW: Final = "write_ms=10 sync_ms=80"


class SlowDisk(Fault):
    """Each write takes 10 ms, each flush 80 ms."""

    needs_shims: ClassVar[bool] = True

    def __init__(self, role: BrokerRole) -> None:
        self.name = f"slow disk of {role}"
        self._role: BrokerRole = role
        self._struck: tuple[str, ...] = ()
        self._flushes = 0

    async def inject(self, scene: Scene) -> None:
        self._struck = brokers_of(await scene.open_segment(), self._role)
        scene.note(f"slowed {', '.join(self._struck)}")
        self._flushes = len(scene.shims.flushed(self._struck[0]))
        for broker in self._struck:
            scene.shims.set_disk(broker, SLOW)

    async def hold(self, scene: Scene) -> None:
        """Check that messages are accepted, on this disk or on others."""
        await super().hold(scene)
        flushes = len(scene.shims.flushed(self._struck[0])) - self._flushes
        scene.note(f"{flushes} flushes while slow")
        if not flushes:
            raise NotStruckError(f"{self._struck[0]} flushed nothing while its disk was slow")

    async def heal(self, scene: Scene) -> None:
        for broker in self._struck:
            scene.shims.set_disk(broker, "")


class HungDisk(Fault):
    """A disk completes no flush, while its process runs and answers heartbeats.

    The process reports no error. The other members notice it, the partition moves, and the member says that it is not
    ready. It must not end. When the disk works again, the member takes part again.
    """

    needs_shims: ClassVar[bool] = True
    workloads = among("ordered", "late", DELAYED)

    def __init__(self, role: Literal["master", "slave"]) -> None:
        self.name = f"hung disk of {role}"
        self._role: BrokerRole = role
        self._struck = ""

    async def inject(self, scene: Scene) -> None:
        """Stop all flushes, and wait until the partition has moved."""
        open_segment = await scene.open_segment()
        self._struck = brokers_of(open_segment, self._role)[0]
        since = scene.log_size(self._struck)
        scene.shims.set_disk(self._struck, HUNG)
        await scene.moved_past(open_segment)
        await scene.says(self._struck, ["disk_hangs"], since, REPORT_DEADLINE_S)
        if scene.cluster.pid(self._struck) is None:
            raise NotStruckError(f"{self._struck} ended because its disk hung")

    async def heal(self, scene: Scene) -> None:
        if self._struck:
            scene.shims.set_disk(self._struck, "")
            await scene.cluster.wait_ready(self._struck)


class FailingDisk(Fault):
    """Flushes fail (EIO), or writes find no room (ENOSPC). The process must end, because it cannot know what is stored.

    Args:
        role: The role of the broker.
        what: `fail_sync` or `full`.
    """

    needs_shims: ClassVar[bool] = True
    ends: ClassVar[bool] = True

    def __init__(self, role: Literal["master", "slave"], what: Literal["fail_sync", "full"]) -> None:
        self.name = f"{'fsync error' if what == 'fail_sync' else 'no space for a write'} of {role}"
        self._role: BrokerRole = role
        self._what = what
        self._struck = ""

    async def inject(self, scene: Scene) -> None:
        """Make it fail. Wait until the process has ended and the partition has moved."""
        open_segment = await scene.open_segment()
        self._struck = brokers_of(open_segment, self._role)[0]
        since = scene.log_size(self._struck)
        scene.shims.set_disk(self._struck, f"{self._what}=1")
        await scene.ended(self._struck)
        if "disk failed, the process ends" not in scene.log_since(self._struck, since):
            raise NotStruckError(f"{self._struck} ended, and did not say that its disk failed")
        scene.note(f"{self._struck} ended")
        await scene.moved_past(open_segment)

    async def heal(self, scene: Scene) -> None:
        """Start the broker again on a disk that works."""
        if self._struck:
            scene.shims.set_disk(self._struck, "")
            await scene.cluster.start_again(self._struck)


class PowerCut(Fault):
    """Both members end at once, and lose everything that the disks did not report as flushed.

    If a message was acknowledged before both members had flushed it, it is lost here. The checker finds that, because a
    group that was behind, or begins afterwards, does not get the message. (A reader at the end of the partition already
    has it.)
    """

    needs_shims: ClassVar[bool] = True
    workloads = among("late", "slow", DELAYED)

    def __init__(self, role: BrokerRole = "both") -> None:
        self.name = f"power cut of {role}"
        self._role: BrokerRole = role
        self._struck: tuple[str, ...] = ()

    async def inject(self, scene: Scene) -> None:
        """Kill both members, drop what was not flushed, and wait until the partition has moved."""
        open_segment = await scene.open_segment()
        self._struck = brokers_of(open_segment, self._role)
        for broker in self._struck:  # so that a flush is under way at any moment
            scene.shims.set_disk(broker, SLOW_FLUSH)
        await asyncio.sleep(SLOW_FLUSH_S)
        await scene.cluster.kill(*self._struck)
        for broker in self._struck:
            scene.shims.set_disk(broker, "")
            lost = scene.shims.lose_unsynced(broker)
            scene.note(f"{broker} lost {lost:,} bytes that were not flushed")
            if not scene.shims.flushed(broker):
                raise NotStruckError(f"{broker} never flushed anything: nothing was acknowledged there")
        await scene.moved_past(open_segment)

    async def heal(self, scene: Scene) -> None:
        for broker in self._struck:
            scene.shims.set_disk(broker, "")
        await scene.cluster.start_again(*self._struck)


class FullDisk(Fault):
    """The free space of a disk falls below the reserve, then to nothing. The disk is a small file system of its own.

    Before a write fails, a planned switch moves the partition to a group with room. The partition still accepts
    messages.
    """

    own_cluster: ClassVar[bool] = True
    needs_root: ClassVar[bool] = True
    small_disks: ClassVar[tuple[str, ...]] = ("g0-0", "g0-1")
    workloads = among("ordered", "keys", "late", DELAYED)
    ends: ClassVar[bool] = True

    def __init__(self, role: Literal["master", "slave"]) -> None:
        self.name = f"full disk of {role}"
        self._role: BrokerRole = role
        self._struck = ""
        self._ballast: Path | None = None

    async def inject(self, scene: Scene) -> None:
        """Bring the partition to that group, and fill its small disk until less than the reserve is free."""
        open_segment = await _bring_to(scene, "g0")
        self._struck = brokers_of(open_segment, self._role)[0]
        since = scene.log_size(self._struck)
        self._ballast = scene.cluster.data_directory(self._struck) / "ballast"
        await asyncio.to_thread(_fill, self._ballast, leave=_reserve_bytes(self._ballast.parent) // 2)
        await scene.says(self._struck, ["disk reserve"], since, REPORT_DEADLINE_S)
        await scene.moved_past(open_segment)

    async def hold(self, scene: Scene) -> None:
        """Check that messages are accepted, first with less than the reserve free, then without a free byte."""
        before = scene.load.counts.ok
        await super().hold(scene)
        scene.note(f"{scene.load.counts.ok - before} messages accepted below the reserve of {self._struck}")
        assert self._ballast is not None
        await asyncio.to_thread(_fill, self._ballast, leave=0)
        await super().hold(scene)
        alive = scene.cluster.pid(self._struck) is not None
        scene.note(f"{self._struck} {'runs on' if alive else 'ended'} without a free byte")

    async def heal(self, scene: Scene) -> None:
        """Delete the file that fills the disk, and start the broker if it ended."""
        if self._ballast is not None:
            self._ballast.unlink(missing_ok=True)
            await scene.cluster.start_again(self._struck)


def _reserve_bytes(directory: Path) -> int:
    """Return the bytes that a broker keeps free, as `disk_reserve_percent` and `disk_reserve_size_bytes_min` say."""
    disk = os.statvfs(directory)
    size_bytes = disk.f_blocks * disk.f_frsize
    return max(size_bytes * 5 // 100, min(RESERVE_BYTES_MIN, size_bytes // 5))


def _fill(ballast: Path, *, leave: int) -> None:
    """Make the file so large that `leave` bytes of the file system stay free. On ext4 this writes nothing."""
    with ballast.open("ab") as file:
        while True:
            disk = os.statvfs(ballast.parent)
            room = disk.f_bavail * disk.f_frsize - leave
            step = min(room, 256 << 20)
            if step < disk.f_frsize:
                return
            begin = file.seek(0, os.SEEK_END)
            try:
                os.posix_fallocate(file.fileno(), begin, step)
            except OSError:  # the file system keeps the rest for itself
                return


async def _bring_to(scene: Scene, group: str) -> Segment:
    """Switch the first partition until that broker group has it.

    At first the switcher may leave this broker group out, because the group's members are not linked yet.
    """
    partition = (await scene.admin.describe_chain(scene.load.topic, 0)).partition_id
    until = time.monotonic() + BRING_DEADLINE_S
    while (open_segment := await scene.open_segment()).group != group:
        if time.monotonic() > until:
            raise NotStruckError(f"the partition does not come to {group} within {BRING_DEADLINE_S:g} s")
        with contextlib.suppress(SeriatimError):  # the partition may have moved by itself
            await scene.admin.switch_partition(partition)
        await asyncio.sleep(BRING_PAUSE_S)
    return open_segment


class WipedDisk(Fault):
    """A member's directory is emptied, and its start is refused.

    Then the option `--replace-disk` says that the slot has a new disk. The other members fill it.
    """

    own_cluster: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("--set", "heal_after_s=2")
    ends: ClassVar[bool] = True

    def __init__(self, role: Literal["master", "slave"]) -> None:
        self.name = f"wiped disk of {role}"
        self._role: BrokerRole = role
        self._struck = ""

    async def inject(self, scene: Scene) -> None:
        """Kill the member, empty its directory, and check that its start is refused."""
        open_segment = await scene.open_segment()
        self._struck = brokers_of(open_segment, self._role)[0]
        await scene.cluster.kill(self._struck)
        await scene.moved_past(open_segment)
        await wipe(scene, self._struck)
        await _refused(scene, self._struck, ["703", "the directory is empty"])

    async def heal(self, scene: Scene) -> None:
        if self._struck and scene.cluster.pid(self._struck) is None:
            await start_with_new_disk(scene, self._struck)


class OldCopy(Fault):
    """A member's directory is replaced by a copy from before its last run. Its start must be refused."""

    ends: ClassVar[bool] = True

    def __init__(self, role: Literal["master", "slave"]) -> None:
        self.name = f"older copy of the disk of {role}"
        self._role: BrokerRole = role
        self._struck = ""
        self._aside: Path | None = None

    async def inject(self, scene: Scene) -> None:
        """Copy the directory, let the member run again, put the copy in place, and check that it is refused."""
        open_segment = await scene.open_segment()
        self._struck = brokers_of(open_segment, self._role)[0]
        data = scene.cluster.data_directory(self._struck)
        copy = data.with_name(f"{self._struck}.copy")
        await scene.cluster.kill(self._struck)
        await asyncio.to_thread(shutil.copytree, data, copy)
        await scene.cluster.start_again(self._struck)
        await scene.cluster.wait_ready(self._struck)
        await scene.cluster.kill(self._struck)
        self._aside = data.with_name(f"{self._struck}.newest")
        data.rename(self._aside)
        copy.rename(data)
        await _refused(scene, self._struck, ["702", "older copy"])

    async def heal(self, scene: Scene) -> None:
        """Bring the newest directory back."""
        if not self._struck:
            return
        await scene.cluster.kill(self._struck)
        data = scene.cluster.data_directory(self._struck)
        if self._aside is not None:
            await asyncio.to_thread(shutil.rmtree, data)
            self._aside.rename(data)
        await scene.cluster.start_again(self._struck)


async def _refused(scene: Scene, broker: str, words: list[str]) -> None:
    """Start a broker, and check that it ends by itself and says why."""
    since = scene.log_size(broker)
    await scene.cluster.start_again(broker)
    await scene.ended(broker)
    text = scene.log_since(broker, since)
    if not all(word in text for word in words):
        raise NotStruckError(f"{broker} ended within {ENDED_DEADLINE_S:g} s, and did not say {words}: {text[-500:]}")
    scene.note(f"{broker} was refused")


async def wipe(scene: Scene, broker: str) -> None:
    """Empty the directory of a broker that is stopped."""
    data = scene.cluster.data_directory(broker)
    await asyncio.to_thread(shutil.rmtree, data)
    data.mkdir(mode=0o700)


async def start_with_new_disk(scene: Scene, *brokers: str) -> None:
    """Start brokers with empty directories, as an operator does if their disks are lost."""
    for broker in brokers:
        scene.programs.once[broker] = ("--replace-disk",)
    await scene.cluster.start_again(*brokers)
    await scene.cluster.wait_ready(*brokers)
