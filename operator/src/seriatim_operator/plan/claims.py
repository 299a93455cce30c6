"""Two objects that claim the same thing among the brokers: one of them has it, and the other is told who."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, TypeVar

from ..spec.base import Resource

_Claimant = TypeVar("_Claimant", bound=Resource)

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


def first_claimant(claimants: Iterable[_Claimant]) -> _Claimant | None:
    """The one that has it: the oldest that is to stay, else the oldest; of two of one second, the first by UID.

    An object that is being deleted gives way, so that nothing is deleted that somebody else still wants.
    """
    return min(claimants, key=_rank, default=None)


def _rank(claimant: Resource) -> tuple[bool, datetime, str]:
    created = claimant.metadata.creation_timestamp or _NEVER
    return claimant.metadata.is_deleted, created, claimant.uid
