"""Two objects that claim the same thing among the brokers: one of them has it, and the other is told who."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from ..spec.base import Resource

_Claimant = TypeVar("_Claimant", bound=Resource)

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


def first_claimant(claimants: Sequence[_Claimant], has: Callable[[_Claimant], bool]) -> _Claimant | None:
    """The one that has it: the oldest that is to stay, else the oldest; of two of one second, the first by UID.

    An object that is being deleted gives way, so that nothing is deleted that somebody else still wants. Only one of
    the same name does not want it: that was made after the deletion, to begin anew.

    Args:
        claimants: All of them.
        has: Whether one has been given the thing already; that is never taken from it.
    """

    def rank(claimant: _Claimant) -> tuple[int, datetime, str]:
        stage = 2 if _waits(claimant, claimants) and not has(claimant) else int(claimant.metadata.is_deleted)
        return stage, claimant.metadata.creation_timestamp or _NEVER, claimant.uid

    return min(claimants, key=rank, default=None)


def succeeds(claimant: Resource, owner: Resource) -> bool:
    """Whether the one was made after the other, which had its name, was deleted."""
    is_namesake = (claimant.namespace, claimant.name) == (owner.namespace, owner.name) and claimant.uid != owner.uid
    return is_namesake and owner.metadata.is_deleted and not claimant.metadata.is_deleted


def _waits(claimant: Resource, claimants: Sequence[Resource]) -> bool:
    return any(succeeds(claimant, other) for other in claimants)
