"""The passport of a data directory in memory: whose disk it is, which run began on it last, how that one ended.

Judged as `adapters.passport` judges the real one (the same errors for the same reasons), so that `runtime.membership`
meets wiped disks, foreign ones and older copies in the simulation too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seriatim_api.errors import ForeignDiskError, OldDiskError, WipedDiskError
from seriatim_api.ids import MemberId

from seriatim_broker.runtime.membership import NEVER_SEEN, KnownDisk, Seen


@dataclass(slots=True)
class SimulatedDirectory:
    """What `runtime.membership.Disk` asks for.

    Attributes:
        seen: Of the coordinator.
        broker: Whose slot it is.
        incarnation: Empty while the directory is.
        next_incarnation: What it becomes when a process takes it.
        boot_now: The machine's boot.
        clean: Whether the last run ended in order.
        has_data: Whether a run got so far as to open its storage.
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

    @property
    def member(self) -> MemberId:
        """Whose disk it is."""
        return MemberId(self.broker, self.incarnation)

    def open(self, _cluster_id: str, known: KnownDisk | None, may_replace: bool) -> SimulatedDirectory:
        """`runtime.membership.OpenDisk`.

        Raises:
            WipedDiskError, ForeignDiskError, OldDiskError: As the real one.
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

    def raise_run(self) -> int:
        """Begin a run."""
        self.run += 1
        if not self.clean:
            self.suspect_before_run = self.run
        self.clean = False
        return self.run

    def note_seen(self, seen: Seen) -> None:
        """Keep what was seen of the coordinator."""
        self.seen = seen

    def twin(self) -> SimulatedDirectory:
        """A copy, as one takes it for a backup."""
        return replace(self)

    def wipe(self, next_incarnation: str) -> None:
        """Another, empty disk."""
        self.incarnation, self.next_incarnation = "", next_incarnation
        self.run = self.suspect_before_run = 0
        self.clean = True
        self.has_data = False
        self.seen = NEVER_SEEN
