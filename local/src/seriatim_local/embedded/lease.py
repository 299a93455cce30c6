"""The leases: how long each has left, and which keys end with it.

This module has only data. Its callers give it the time, in seconds of a monotonic clock. `store` makes leases durable
and ends those whose time is up. After a restart it gives each lease its whole time again, as etcd does, because it
cannot know how long the coordinator was away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

TTL_S_MIN: Final = 2
"""Shortest lease, as in etcd with its default election time-out. A shorter time is rounded up."""

TTL_S_MAX: Final = 9_000_000_000
"""Longest lease that etcd takes."""


@dataclass(slots=True)
class LeaseState:
    """A lease that has not ended."""

    id: int
    ttl_s: int
    deadline_s: float
    keys: dict[bytes, None] = field(default_factory=dict)  # a dict, for its order


class Leases:
    """All leases by id."""

    def __init__(self) -> None:
        self._by_id: dict[int, LeaseState] = {}
        self._of_key: dict[bytes, int] = {}

    def add(self, lease_id: int, ttl_s: int, now_s: float) -> LeaseState:
        """Make a lease that counts from `now_s` on."""
        assert lease_id not in self._by_id
        assert TTL_S_MIN <= ttl_s <= TTL_S_MAX
        state = LeaseState(lease_id, ttl_s, now_s + ttl_s)
        self._by_id[lease_id] = state
        return state

    def find(self, lease_id: int, now_s: float) -> LeaseState | None:
        """The lease; None if there is none or its time is up, because then it can be neither used nor renewed."""
        state = self._by_id.get(lease_id)
        return state if state is not None and state.deadline_s > now_s else None

    def exists(self, lease_id: int) -> bool:
        """Whether there is a lease with this id, also if its time is up."""
        return lease_id in self._by_id

    def remove(self, lease_id: int) -> tuple[bytes, ...]:
        """Forget a lease. Returns its keys, ascending, which the caller must delete."""
        state = self._by_id.pop(lease_id)
        for key in state.keys:
            del self._of_key[key]
        return tuple(sorted(state.keys))

    def attach(self, key: bytes, lease_id: int) -> None:
        """Note that `key` was written with lease `lease_id` (0: without a lease)."""
        self.detach(key)
        if lease_id:
            self._by_id[lease_id].keys[key] = None
            self._of_key[key] = lease_id

    def detach(self, key: bytes) -> None:
        """Note that `key` does not end with its lease any more."""
        holder = self._of_key.pop(key, 0)
        if holder:
            del self._by_id[holder].keys[key]

    def due(self, now_s: float) -> list[int]:
        """The ids of the leases whose time is up, ascending."""
        return sorted(state.id for state in self._by_id.values() if state.deadline_s <= now_s)

    def next_deadline_s(self) -> float | None:
        """The time at which the next lease is due; None if there are no leases."""
        return min((state.deadline_s for state in self._by_id.values()), default=None)

    def ids(self) -> list[int]:
        """The ids of all leases, ascending."""
        return sorted(self._by_id)
