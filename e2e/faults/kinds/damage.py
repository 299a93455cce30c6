"""Bits that flip on a disk. The broker must find the damage, report it and repair it from the other copy. The suite
does not flip the bit back.

If the damage is in a table, a reader or a scrub finds it. The broker rewrites the segment from the other member. If
it is in the write-ahead log, the broker finds it at its start. It refuses to start, because a log that is cut at the
damage may lack acknowledged messages. The operator gives the slot a new, empty disk, and the other members fill it. A
start also reads some places of tables. If the damage is there, the broker refuses to start too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import ClassVar, Final, Literal

from seriatim import Damage
from seriatim_api.errors import PreconditionError

from e2e.faults.kinds.disks import start_with_new_disk, wipe
from e2e.faults.kinds.fault import Fault, NotStruckError, Scene
from e2e.faults.traffic.client import marker_of
from e2e.faults.traffic.load import LATE_GROUP, PROGRESS_DEADLINE_S
from e2e.observe import Observer, Snapshot

HEAL_AFTER_S: Final = 15
"""How long the controller waits until it copies what a lost disk held.

A restart takes less here, so only a loss makes it act.
"""

FOUND_DEADLINE_S: Final = 30.0
REPAIRED_DEADLINE_S: Final = 30.0
DAMAGE_WORDS: Final = ("what was read from the disk is not what was written", "checksum", "Corruption", "damaged")
READ_FAILED: Final = "log_read_failed"
REPAIRED: Final = "copy_repaired"
DIFFERS: Final = "copy_differs"

MESSAGES_BEFORE: Final = 200
"""The number of messages that must be acknowledged before the flip, so that there is a message to hit."""


class BitFlip(Fault):
    """One bit of a stored message flips while its broker is stopped.

    Args:
        where: `log`: the damage is in the write-ahead log, and the start finds it. `table`: it is in a table.
        by: What finds a damaged table, unless the start reads this place: a scrub, or a group that reads from the
            beginning while only this member can serve it.
    """

    reads_all: ClassVar[bool] = True

    workloads = ("ordered", "keys")
    own_cluster: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("--set", f"heal_after_s={HEAL_AFTER_S}")
    ends: ClassVar[bool] = True

    def __init__(self, where: Literal["log", "table"], by: Literal["reader", "scrub"] = "reader") -> None:
        self.name = f"bit flip in a {where}" + (" found by scrub" if by == "scrub" else "")
        self._where = where
        self._by = by
        self._struck = ""
        self._since = 0
        self._refused = False

    async def inject(self, scene: Scene) -> None:
        """Stop a member that holds a part of the topic, flip a bit on its disk, start it, and wait until the damage is
        found.
        """
        open_segment = await scene.open_segment()
        self._struck = open_segment.members[0]
        await scene.load.goes_on(MESSAGES_BEFORE)
        if self._where == "table":
            await scene.cluster.stop_gracefully(self._struck)  # this writes the memtables to tables
        else:
            await scene.cluster.kill(self._struck)
        await scene.moved_past(open_segment)
        await _flip_a_message(scene, self._struck, "*.sst" if self._where == "table" else "*.log")
        self._since = scene.log_size(self._struck)
        await scene.cluster.start_again(self._struck)
        self._refused = await self._is_refused(scene)
        if self._refused:
            return
        await scene.has_copies()  # so that this member may serve its segments
        if self._by == "reader":
            await self._found_by_reader(scene)
        else:
            await self._found_by_scrub(scene)

    async def _is_refused(self, scene: Scene) -> bool:
        """Whether the start found the damage and said so."""
        try:
            await scene.cluster.wait_ready(self._struck)
        except PreconditionError:
            text = scene.log_since(self._struck, self._since)
            if not any(word in text for word in DAMAGE_WORDS):
                raise NotStruckError(f"{self._struck} refused to start and did not say why: {text[-500:]}") from None
            scene.note("refused to start, and said why")
            return True
        return False

    async def _found_by_reader(self, scene: Scene) -> None:
        """Let a reader find the damage while no other member can serve it. The repair waits for the other member."""
        await scene.cluster.kill(self._other(scene))
        try:
            scene.load.tell_reader(LATE_GROUP)
            found = await scene.says(self._struck, [READ_FAILED], self._since, FOUND_DEADLINE_S)
        finally:
            await scene.cluster.start_again(self._other(scene))
        scene.note(f"reported: {found}")
        await self._is_repaired(scene)

    async def _found_by_scrub(self, scene: Scene) -> None:
        """Let a scrub find the damage, and wait for the repair.

        Then a group reads it while no other member can serve it.
        """
        found = await scene.admin.scrub(self._struck)
        if not found.damages:
            raise NotStruckError(f"a scrub read {found.segments} segments of {self._struck} and found no damage")
        scene.note(f"reported: {found.damages[0].reason}")
        await self._is_repaired(scene)
        other = self._other(scene)
        await scene.cluster.kill(other)
        try:
            scene.load.tell_reader(LATE_GROUP)
            await _read_past(scene, found.damages)
        finally:
            await scene.cluster.start_again(other)
        scene.note("a group read it from the repaired copy alone")

    async def _is_repaired(self, scene: Scene) -> None:
        words = [REPAIRED, DIFFERS]
        if await scene.says(self._struck, words, self._since, REPAIRED_DEADLINE_S) == DIFFERS:
            raise NotStruckError(f"{self._struck} wrote the segment again, and it is not what was sealed")
        scene.note("repaired")

    def _other(self, scene: Scene) -> str:
        group = scene.cluster.plan.broker(self._struck).group
        names = [broker.name for broker in scene.cluster.plan.brokers if broker.group == group]
        return next(name for name in names if name != self._struck)

    async def heal(self, scene: Scene) -> None:
        """Start the member again. If it was refused, give it a new, empty disk, as its message advises the
        operator."""
        if not self._struck:
            return
        if self._refused:
            await wipe(scene, self._struck)
            await start_with_new_disk(scene, self._struck)
        else:
            await scene.cluster.start_again(self._struck)

    async def confirm(self, scene: Scene) -> None:
        """Check that scrubs find no damage.

        If the member got a new disk, all brokers are scrubbed, because other brokers may have its share now.
        """
        brokers = scene.cluster.broker_names if self._refused else (self._struck,)
        found = [await scene.admin.scrub(broker) for broker in brokers]
        damages = [damage for scrubbed in found for damage in scrubbed.damages]
        segments = sum(scrubbed.segments for scrubbed in found)
        if damages:
            raise NotStruckError(f"{damages[0].broker} is still damaged: {damages[0].reason}")
        if not segments:
            raise NotStruckError(f"nothing was scrubbed: {', '.join(brokers)} hold nothing")
        scene.note(f"a scrub of {', '.join(brokers)} read {segments} segments: all well")


async def _read_past(scene: Scene, damages: Sequence[Damage]) -> None:
    """Wait until the late group has read past the damaged segments."""
    topic = await scene.admin.describe_topic(scene.load.topic)
    numbers = {chain.partition_id: chain.partition for chain in topic.chains}
    wanted = {numbers[damage.partition_id]: damage.segment for damage in damages if damage.partition_id in numbers}

    def past(now: Snapshot) -> bool:
        return bool(now.readers) and all(
            reader.segment > wanted[reader.partition] for reader in now.readers if reader.partition in wanted
        )

    observer = Observer(scene.admin, scene.load.topic, LATE_GROUP)
    await observer.wait_until(past, f"{LATE_GROUP} has read what was damaged", PROGRESS_DEADLINE_S)


async def _flip_a_message(scene: Scene, broker: str, pattern: str) -> None:
    """Flip one bit of a message of this case in the files of a broker that does not run."""
    data = scene.cluster.data_directory(broker)
    path, at = await asyncio.to_thread(choose_byte, data, pattern, marker_of(scene.load.topic), scene.dice)
    bit = 1 << scene.dice.randrange(8)
    flip(path, at, bit)
    scene.note(f"{broker}: bit {bit:#04x} of byte {at:,} of {path.stat().st_size:,} in {path.name}")


def choose_byte(data: Path, pattern: str, marker: bytes, dice: Random) -> tuple[Path, int]:
    """Choose a byte of a message in the first half of the messages of a file. The end of a log may not be flushed, and
    a broker drops damage there as it drops a torn record.

    Args:
        data: The directory to search, with all below it.
        pattern: The pattern of the files' names.
        marker: Bytes that the messages contain.
        dice: The dice to choose with.

    Raises:
        NotStruckError: No file has such a byte.
    """
    found: list[tuple[Path, int]] = []
    for path in sorted(data.rglob(pattern)):
        content, at, places = path.read_bytes(), -1, []
        while (at := content.find(marker, at + 1)) >= 0:
            places.append((path, at))
        found += places[: (len(places) + 1) // 2]
    if not found:
        raise NotStruckError(f"{data} has no message with {marker!r} in any {pattern}")
    return dice.choice(found)


def flip(path: Path, at: int, bit: int) -> None:
    """Flip the bits of the mask `bit` in one byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ bit]))
