"""Owners of exclusive producers: what a master reads about them in the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

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
