"""Owners of exclusive producers: what masters read about them in the coordinator, and how hosts elect them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from seriatim_api.ids import PartitionId


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """Who owns a name in a topic.

    Attributes:
        topic: The name of the topic.
        name: The name.
        epoch: How often the owner has changed. It is the producer epoch of the owner's batches.
        owner: What the owner calls itself, for humans.
    """

    topic: str
    name: str
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True)
class ReadOwner:
    """An effect: read the record of the owner with this producer id; answered by `OwnerRead(serial)`."""

    serial: int
    partition: PartitionId
    producer: bytes


@dataclass(frozen=True, slots=True)
class OwnerRead:
    """An event: the answer to `ReadOwner`. `record`: None if there is none. `failed`: no answer came."""

    serial: int
    partition: PartitionId
    record: OwnerRecord | None
    failed: bool = False


# ---- the election -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """What the host reads and writes in the record of a name.

    Attributes:
        epoch: How often the owner has changed.
        owner: 16 random bytes of its program.
        text: What it calls itself.
        session_us: How long it may be silent.
        is_released: It has given the name up.
    """

    epoch: int
    owner: bytes
    text: str
    session_us: int
    is_released: bool = False


class OwnerStanding(enum.Enum):
    """Where a program stands. LOST and SILENT end its stream. SILENT: no heartbeat of it came in time."""

    QUEUED = 1
    STARTING = 2
    OWNED = 3
    LOST = 4
    SILENT = 5


@dataclass(frozen=True, slots=True)
class Standing:
    """What the host says to a program.

    Attributes:
        kind: Where it stands.
        epoch: OWNED: that of this program; otherwise that of the newest owner.
        text: QUEUED, LOST: what the newest owner calls itself.
        position: QUEUED: how many programs are before this one.
        partitions: STARTING: the numbers of the partitions that have no control batch yet.
        reason: STARTING: why one of them could not be reached.
    """

    kind: OwnerStanding
    epoch: int = 0
    text: str = ""
    position: int = 0
    partitions: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReadClaim:
    """Read the record of the name; answered by `Election.read`."""


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """Write the record, if it still has this revision (0: if there is none); answered by `Election.written`."""

    claim: Claim
    revision: int


@dataclass(frozen=True, slots=True)
class ListOwned:
    """List the partitions of the topic, those that were just added too; answered by `Election.listed`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AnnounceOwner:
    """Have the master of a partition append a control batch; answered by `Election.announced`."""

    number: int
    partition: PartitionId
    epoch: int


@dataclass(frozen=True, slots=True)
class TellCandidate:
    """Tell a program where it stands."""

    owner: bytes
    standing: Standing


ElectionEffect: TypeAlias = ReadClaim | WriteClaim | ListOwned | AnnounceOwner | TellCandidate
