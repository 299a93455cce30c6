"""What the passes over a cluster and the passes over its topics pass to each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ..plan.chains import ChainsView
from .dispatch import ClusterKey, TopicsKey

SOON_S = 0.5
"""Seconds for which changes are collected before the other side makes a pass, because a failover changes many."""


class Known:
    """Which brokers of each cluster answer, and what its chains say.

    The passes over clusters learn the first, those over topics the second, and each uses both. What has changed starts
    a pass of the other side.

    Args:
        add: Adds a key to the work queue, due after a number of seconds.
    """

    def __init__(self, add: Callable[[Hashable, float], None]) -> None:
        self._add = add
        self._live: dict[tuple[str, str], frozenset[str]] = {}
        self._told: dict[tuple[str, str], frozenset[str]] = {}
        self._planned: dict[tuple[str, str], frozenset[str]] = {}
        self._chains: dict[tuple[str, str], ChainsView] = {}

    def live(self, namespace: str, cluster: str) -> frozenset[str] | None:
        """Names of the brokers that answer, and their disks, as last heard; None if that was never heard."""
        return self._live.get((namespace, cluster))

    def planned(self, namespace: str, cluster: str) -> frozenset[str]:
        """Names of the brokers that are away as planned, and their disks."""
        return self._planned.get((namespace, cluster), frozenset())

    def told_live(self, namespace: str, cluster: str) -> frozenset[str] | None:
        """Names of the brokers that answered when brokers last reported it, and their disks; None if they never did."""
        return self._told.get((namespace, cluster))

    def chains(self, namespace: str, cluster: str) -> ChainsView | None:
        """What the chains say; None until the brokers have reported all of them."""
        return self._chains.get((namespace, cluster))

    def note_live(
        self,
        namespace: str,
        cluster: str,
        live: frozenset[str],
        planned: frozenset[str] = frozenset(),
        *,
        is_told: bool = True,
    ) -> None:
        """Note which brokers answer, which are away as planned, and whether brokers reported the first or it was
        concluded from their pods.
        """
        place = (namespace, cluster)
        if is_told:
            self._told[place] = live
        if (self._live.get(place), self.planned(*place)) != (live, planned):
            self._live[place], self._planned[place] = live, planned
            self._add(TopicsKey(namespace, cluster), 0.0)

    def note_chains(self, namespace: str, cluster: str, chains: ChainsView) -> None:
        """Note what the chains say. A change of numbers alone starts no pass, because they move with the traffic."""
        before = self._chains.get((namespace, cluster))
        self._chains[namespace, cluster] = chains
        if before is None or _what_matters(before) != _what_matters(chains):
            self._add(ClusterKey(namespace, cluster), SOON_S)

    def forget(self, namespace: str, cluster: str) -> None:
        """Forget a cluster that is gone."""
        self._live.pop((namespace, cluster), None)
        self._told.pop((namespace, cluster), None)
        self._planned.pop((namespace, cluster), None)
        self._chains.pop((namespace, cluster), None)


def _what_matters(chains: ChainsView) -> tuple[object, ...]:
    return chains.troubles, set(chains.masters)
