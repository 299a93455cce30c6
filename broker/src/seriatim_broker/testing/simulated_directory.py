"""The identity file of a data directory in memory: its member, its last member run, and how that ended.

It gives the same errors as `adapters.identity_file`, under the same conditions. So the simulation meets emptied disks,
foreign disks and older copies too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seriatim_api.errors import ForeignDiskError, OldDiskError, WipedDiskError
from seriatim_api.ids import MemberId

from seriatim_broker.runtime.membership.registration import NEVER_SEEN, KnownDisk, Seen


@dataclass(slots=True)
class SimulatedDirectory:
    """A `runtime.membership.registration.Disk`.

    Attributes:
        broker: The broker's name.
        next_incarnation: The incarnation that an empty directory gets when a process takes it.
        incarnation: The incarnation; empty for an empty directory.
        run: The number of the last member run.
        clean: Whether the last member run ended cleanly.
        suspect_before_run: The member run after the last one that did not end cleanly; 0: all ended cleanly.
        boot_now: The number of the machine's boot.
        has_data: Whether a member run has opened its storage here.
        seen: What the identity file keeps about the coordinator.
        sequence: How far the storage is durable when a process starts on it.
    """

    broker: str
    next_incarnation: str
    incarnation: str = ""
    run: int = 0
    clean: bool = True
    suspect_before_run: int = 0
    boot_now: int = 0
    has_data: bool = False
    seen: Seen = NEVER_SEEN
    sequence: int = 0

    @property
    def member(self) -> MemberId:
        """The member to which this disk belongs."""
        return MemberId(self.broker, self.incarnation)

    def open(self, _cluster_id: str, known: KnownDisk | None, may_replace: bool) -> SimulatedDirectory:
        """Check the directory against what the cluster knows of its slot, as `registration.OpenDisk`.

        Raises:
            WipedDiskError: The directory is empty, but the slot belongs to a disk.
            ForeignDiskError: The slot belongs to another disk.
            OldDiskError: The directory is a copy from before the newest member run.
        """
        is_other = known is not None and self.incarnation != known.incarnation
        is_new = not self.incarnation or (is_other and not self.has_data)
        if not (may_replace and is_new) and known is not None:
            if not self.incarnation:
                raise WipedDiskError("the directory is empty", expected=known.incarnation)
            if self.incarnation != known.incarnation:
                raise ForeignDiskError("another disk", found=self.incarnation, expected=known.incarnation)
            if self.run < known.run:
                raise OldDiskError("an older copy", found=self.run, expected=known.run)
        if not self.incarnation:
            self.incarnation = self.next_incarnation
        return self

    def log_end(self, _enough: int) -> int:
        """Up to which sequence number the storage has writes."""
        return self.sequence

    def raise_run(self) -> int:
        """Begin a member run. Returns its number."""
        self.run += 1
        if not self.clean:
            self.suspect_before_run = self.run
        self.clean = False
        return self.run

    def note_seen(self, seen: Seen) -> None:
        """Keep what this broker has seen of the coordinator."""
        self.seen = seen

    def twin(self) -> SimulatedDirectory:
        """A copy, as in a backup."""
        return replace(self)

    def wipe(self, next_incarnation: str) -> None:
        """Replace the disk by an empty one."""
        self.incarnation, self.next_incarnation = "", next_incarnation
        self.run = self.suspect_before_run = 0
        self.clean = True
        self.has_data = False
        self.seen = NEVER_SEEN
