"""Decides which of several objects has a topic or a consumer group that all of them name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from ..spec.base import Resource

_Claimant = TypeVar("_Claimant", bound=Resource)

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


def first_claimant(claimants: Sequence[_Claimant], has: Callable[[_Claimant], bool]) -> _Claimant | None:
    """The object that has the topic or consumer group; None if there is no object.

    It is the oldest that is not being deleted, or else the oldest. Of two objects of the same second it is the first by
    UID. An object that is being deleted comes last, so that no topic is deleted that another object names. There is one
    exception: an object of the same name was made after the deletion, to start over. It waits for the deletion.

    Args:
        claimants: All objects that name the topic or consumer group.
        has: Whether an object has it already. Such an object does not wait.
    """

    def rank(claimant: _Claimant) -> tuple[int, datetime, str]:
        stage = 2 if _waits(claimant, claimants) and not has(claimant) else int(claimant.metadata.is_deleted)
        return stage, claimant.metadata.creation_timestamp or _NEVER, claimant.uid

    return min(claimants, key=rank, default=None)


def succeeds(claimant: Resource, owner: Resource) -> bool:
    """Whether `claimant` has the name of `owner`, whose deletion has begun, and is another object."""
    is_namesake = (claimant.namespace, claimant.name) == (owner.namespace, owner.name) and claimant.uid != owner.uid
    return is_namesake and owner.metadata.is_deleted and not claimant.metadata.is_deleted


def _waits(claimant: Resource, claimants: Sequence[Resource]) -> bool:
    return any(succeeds(claimant, other) for other in claimants)
