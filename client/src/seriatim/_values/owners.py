"""Names that one program at a time has, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NameOwner:
    """The owner of a name in a topic, as the coordinator has it.

    Attributes:
        topic: The topic.
        name: The name.
        epoch: How often the owner has changed.
        owner: What the program calls itself.
        acquired_at_ms: When it became the owner, or gave the name up, in ms since 1970.
        is_released: It has given the name up.
        session_ms: How long it may be silent.
    """

    topic: str
    name: str
    epoch: int
    owner: str
    acquired_at_ms: int
    is_released: bool
    session_ms: int


@dataclass(frozen=True, slots=True)
class OwnerDescription:
    """A name with the programs that have it or wait for it.

    Attributes:
        owner: The newest owner; None: the name never had one.
        is_here: The owner's program has a call at the broker that elects.
        waiting: What the programs that wait call themselves, the next one first.
        partitions: Numbers of partitions that the next owner waits for, 100 of them at most.
        reason: Why one of them could not be reached; empty: all may still answer.
    """

    owner: NameOwner | None
    is_here: bool
    waiting: tuple[str, ...]
    partitions: tuple[int, ...]
    reason: str
