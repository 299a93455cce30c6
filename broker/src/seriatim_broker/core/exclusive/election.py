"""The election of the owner of one name, at its host: the master of partition 0 of the topic.

Programs that want the name are *candidates*, in the order in which they came. The owner is one of them.

    READING -> IDLE -> RAISING -> LISTING -> ANNOUNCING -> OWNED -> IDLE

A host that begins knows nothing, so it reads the record. Two brokers may believe that they are the host. Then each
change of the record is still one compare-and-swap, and masters refuse the lower epoch.

Rule `nocas` (E2): the epoch is raised by compare-and-swap. Without it:
  1. The master of partition 0 is replaced while it elects. Both hosts have read epoch 5.
  2. Both write epoch 6, for two programs. All partitions have a control batch of epoch 6.
  3. The hosts report to both programs that they are the owner.

Rule `own-acquire` (E2): after a write without an answer the record is read, and the own epoch in it counts. Without it:
  1. The host writes that program A is the owner, in epoch 6. The answer is lost.
  2. The host raises the epoch once more, and so on as long as answers are lost. No program becomes the owner.

Rule `partitions-after-raise` (E4): the partitions are listed after the epoch was raised. Without it:
  1. The host lists 4 partitions. The topic grows. Owner 4 sends to partition 4, whose master reads that it may.
  2. The host raises the epoch to 5, and announces it in partitions 0 to 3. The host reports that to its program.
  3. Partition 4 still takes messages of owner 4.

Rule `onepart` (E4): the control batch goes to all partitions. Without it: 1. Owner 6 is announced in partition 0 only.
2. Program 5 wakes up, and partition 1 takes its messages.

Rule `toldfirst` (E3): a program hears that it is the owner when the control batches of all partitions are committed.
Without it: 1. The host reports to program 6 that it is the owner. 2. Partition 1 has no control batch yet, and takes
messages of owner 5.

Rule `owner-keeps`: a new host gives the owner in the record one session to come with its epoch. Without it: the owner
changes with each switch of partition 0.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from seriatim_api.ids import PartitionId

from ..values.owners import (
    AnnounceOwner,
    Claim,
    ElectionEffect,
    ListOwned,
    OwnerStanding,
    ReadClaim,
    Standing,
    TellCandidate,
    WriteClaim,
)
from ..values.states import State

CHANGE_PAUSE_US: Final = 1_000_000
"""An owner changes at most once in this time."""

RETRY_US: Final = 100_000
"""Pause before the coordinator, or a partition that has no master, is asked again."""

KEEP_US_DEFAULT: Final = 2_000_000
"""How long a new host waits for the owner, if the record does not say how long its session is."""

LONG_AGO_US: Final = -(1 << 60)


class Phase(enum.Enum):
    """What the election waits for."""

    READING = 1
    IDLE = 2
    RAISING = 3
    LISTING = 4
    ANNOUNCING = 5
    OWNED = 6
    RELEASING = 7


@dataclass(slots=True)
class Candidate(State):
    """A program that wants the name, or has it.

    Attributes:
        owner: Its 16 random bytes.
        text: What it calls itself.
        session_us: How long it may be silent.
        heard_us: When it was heard last.
        told_epoch: The epoch in which it heard that it is the owner; 0: it did not hear that.
        takes_over: It does not wait for the owner.
        standing: What it heard last.
    """

    owner: bytes
    text: str
    session_us: int
    heard_us: int
    told_epoch: int = 0
    takes_over: bool = False
    standing: Standing | None = None


class Election(State):
    """The owner of one name, and the programs that wait. All times are of the host's monotonic clock, in us."""

    __slots__ = (
        "again_us",
        "begun_us",
        "candidates",
        "changed_us",
        "claim",
        "floor",
        "left",
        "now_us",
        "out",
        "phase",
        "reason",
        "revision",
        "stored",
        "wanted",
    )

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.phase = Phase.READING
        self.claim: Claim | None = None  # as the record says
        self.revision = 0
        self.floor = 0  # partitions, or owners, know this epoch
        self.candidates: dict[bytes, Candidate] = {}
        self.wanted = b""  # the candidate that is to become the owner
        self.left: list[int] = []  # numbers of the partitions without its control batch
        self.stored: set[PartitionId] = set()  # partitions that have the control batch of the epoch in the record
        self.reason = ""  # why a partition could not be reached
        self.begun_us = now_us  # from here on the owner in the record has one session to come
        self.changed_us = LONG_AGO_US
        self.again_us: int | None = None  # the record is read again then
        self.out: list[ElectionEffect] = [ReadClaim()]

    def take(self) -> list[ElectionEffect]:
        """What is to be done, since the last call."""
        out, self.out = self.out, []
        return out

    @property
    def owner(self) -> Candidate | None:
        """The owner, if its program is here."""
        return self.candidates.get(self.claim.owner) if self.phase is Phase.OWNED and self.claim is not None else None

    # ---- candidates -------------------------------------------------------------------------------------

    def came(self, owner: bytes, text: str, session_us: int, *, told_epoch: int = 0, takes_over: bool = False) -> None:
        """A program wants the name. One that comes a second time keeps its place."""
        known = self.candidates.get(owner)
        if known is not None and not told_epoch:
            told_epoch = known.told_epoch  # the answer was lost on its way
        self.candidates[owner] = Candidate(owner, text, session_us, self.now_us, told_epoch, takes_over)
        self._look()

    def gone(self, owner: bytes, *, is_released: bool = False) -> None:
        """The program's stream has ended, or it has given the name up. The next one need not wait."""
        left = self.candidates.pop(owner, None)
        claim = self.claim
        if left is not None and claim is not None and owner == claim.owner:
            self.begun_us = LONG_AGO_US
            if self.phase is Phase.OWNED:
                self.phase = Phase.IDLE
                if is_released and not self.candidates:
                    self._release(claim)
        self._look()

    def heard(self, owner: bytes) -> None:
        """A heartbeat came."""
        if (candidate := self.candidates.get(owner)) is not None:
            candidate.heard_us = self.now_us
            candidate.standing = None  # it hears it again
            self._tell()

    def released(self) -> None:
        """An administrator takes the name away from its owner."""
        if self.phase is Phase.OWNED and self.claim is not None:
            self._lose(self.claim.owner, self.claim.epoch, "")
            self._release(self.claim)
        elif self.phase is Phase.IDLE and self.claim is not None:
            self._release(self.claim)

    def tick(self, now_us: int) -> None:
        """Time has passed."""
        self.now_us = now_us
        for candidate in list(self.candidates.values()):
            if now_us - candidate.heard_us > candidate.session_us:
                self.out.append(TellCandidate(candidate.owner, Standing(OwnerStanding.SILENT)))
                self.gone(candidate.owner)
        if self.again_us is not None and now_us >= self.again_us:
            self.again_us = None
            self.out.append(ReadClaim())
        self._look()

    # ---- answers of the coordinator and of masters ----------------------------------------------------------

    def read(self, claim: Claim | None, revision: int, *, failed: bool = False) -> None:
        """The record was read."""
        if self.phase is not Phase.READING or self.again_us is not None:
            return
        if failed:
            self._read_later()
            return
        self._take(claim, revision)
        is_own = claim is not None and claim.owner == self.wanted and not claim.is_released
        if is_own and self.wanted in self.candidates:  # rule `own-acquire`
            self._list()
        else:
            self.wanted = b""
            self.phase = Phase.IDLE
            self._look()

    def written(self, done: bool | None, claim: Claim, revision: int) -> None:
        """The record was written. `done` None: that is not known; False: it was changed by another broker."""
        if self.phase not in (Phase.RAISING, Phase.RELEASING):
            return
        if not done:
            self._read_later()
            return
        was_released = self.phase is Phase.RELEASING
        self._take(claim, revision)
        if was_released:
            self.phase = Phase.IDLE
            self._look()
        else:
            self._list()

    def listed(self, epoch: int, partitions: tuple[PartitionId, ...]) -> None:
        """The topic has these partitions; none: that could not be read."""
        if self.phase is not Phase.LISTING or self.claim is None or epoch != self.claim.epoch:
            return
        if not partitions:
            self._read_later()
            return
        self.phase = Phase.ANNOUNCING
        self.left = [number for number, partition in enumerate(partitions) if partition not in self.stored]
        for number in self.left:
            self.out.append(AnnounceOwner(number, partitions[number], epoch))
        self._all_announced()

    def announced(
        self, number: int, partition: PartitionId, epoch: int, *, known_epoch: int | None = None, reason: str = ""
    ) -> None:
        """A partition has the control batch, or not. `known_epoch`: of an owner that it knows. `reason`: why not."""
        if self.claim is None or epoch != self.claim.epoch:
            return
        if known_epoch is None and not reason:
            self.stored.add(partition)
        if self.phase is not Phase.ANNOUNCING:
            return
        if known_epoch is None and not reason:
            if number in self.left:
                self.left.remove(number)
            self._all_announced()
            return
        if known_epoch is not None:  # another host was faster, or the coordinator has lost what the partition knows
            self.floor = max(self.floor, known_epoch)
            self.wanted = b""
        self.reason = reason
        self._read_later()
        self._tell()

    # ---- steps ----------------------------------------------------------------------------------------------

    def _take(self, claim: Claim | None, revision: int) -> None:
        if claim is None or self.claim is None or claim.epoch != self.claim.epoch:
            self.stored = set()
        self.claim, self.revision = claim, revision

    def _read_later(self) -> None:
        self.phase = Phase.READING
        self.again_us = self.now_us + RETRY_US

    def _list(self) -> None:
        assert self.claim is not None
        self.phase = Phase.LISTING
        self.out.append(ListOwned(self.claim.epoch))  # rule `partitions-after-raise`
        self._tell()

    def _release(self, claim: Claim) -> None:
        self.phase = Phase.RELEASING
        self.out.append(WriteClaim(replace(claim, is_released=True), self.revision))

    def _lose(self, owner: bytes, epoch: int, text: str) -> None:
        """A program was the owner, and is not any more. `epoch` and `text` are those of the newest owner."""
        self.out.append(TellCandidate(owner, Standing(OwnerStanding.LOST, epoch, text)))
        self.candidates.pop(owner, None)
        if self.claim is not None and self.claim.owner == owner:
            self.begun_us = LONG_AGO_US
            if self.phase is Phase.OWNED:
                self.phase = Phase.IDLE

    def _all_announced(self) -> None:
        """Rule `toldfirst`: only now the program hears that it is the owner."""
        assert self.claim is not None
        if self.left:
            self._tell()
            return
        candidate = self.candidates.get(self.wanted)
        self.wanted, self.reason = b"", ""
        self.begun_us = LONG_AGO_US
        self.phase = Phase.IDLE
        if candidate is not None:
            candidate.told_epoch, candidate.takes_over = self.claim.epoch, False
        self._look()

    def _drop_replaced(self, claim: Claim | None) -> None:
        """Programs that heard an epoch which does not count any more are no candidates: they were owners."""
        for candidate in list(self.candidates.values()):
            if candidate.told_epoch and (
                claim is None
                or claim.is_released
                or (claim.owner, claim.epoch) != (candidate.owner, candidate.told_epoch)
            ):
                self.floor = max(self.floor, candidate.told_epoch)
                is_other = claim is not None and claim.owner != candidate.owner
                self._lose(candidate.owner, claim.epoch if claim else 0, claim.text if claim and is_other else "")

    def _look(self) -> None:
        """Do what is next, and tell each candidate where it stands."""
        if self.phase in (Phase.IDLE, Phase.OWNED):
            self._drop_replaced(self.claim)
            self._elect()
        self._tell()

    def _elect(self) -> None:
        claim = self.claim
        waiting = [one for one in self.candidates.values() if not one.told_epoch]
        taker = next((one for one in waiting if one.takes_over), None)
        if claim is not None and not claim.is_released:
            owner = self.candidates.get(claim.owner)
            if owner is not None and owner.told_epoch:
                self.phase = Phase.OWNED
            is_awaited = owner is None and self.now_us - self.begun_us <= (claim.session_us or KEEP_US_DEFAULT)
            if taker is None and (self.phase is Phase.OWNED or is_awaited):  # rule `owner-keeps`
                return
        if not waiting or self.now_us - self.changed_us < CHANGE_PAUSE_US:
            return
        chosen = taker or waiting[0]
        self.wanted, self.reason, self.left = chosen.owner, "", []
        epoch = max(claim.epoch if claim is not None else 0, self.floor) + 1
        if self.phase is Phase.OWNED and claim is not None:
            self._lose(claim.owner, epoch, chosen.text)
        self.changed_us = self.now_us
        self.phase = Phase.RAISING
        self.out.append(WriteClaim(Claim(epoch, chosen.owner, chosen.text, chosen.session_us), self.revision))

    def _tell(self) -> None:
        claim = self.claim
        position = 0
        for candidate in self.candidates.values():
            epoch, text = (claim.epoch, claim.text) if claim is not None else (0, "")
            if candidate.told_epoch:
                standing = Standing(OwnerStanding.OWNED, candidate.told_epoch)
            elif candidate.owner == self.wanted:
                standing = Standing(OwnerStanding.STARTING, epoch, partitions=tuple(self.left), reason=self.reason)
            else:
                standing = Standing(OwnerStanding.QUEUED, epoch, text, position)
            position += candidate.told_epoch == 0
            if standing != candidate.standing:
                candidate.standing = standing
                self.out.append(TellCandidate(candidate.owner, standing))
