"""Remembers between two passes which objects claim what, and which claims are due.

A pass looks only at what changed. It compares objects by their versions in the cache, which takes about 1 µs for each.
If the brokers report something, the pass that gets it marks the claim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from .cache import Cache
from .departed import Departed

FIRST_PAUSE_S = 0.2
LAST_PAUSE_S = 60.0

Manifest = dict[str, Any]
_Claim = TypeVar("_Claim", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Seen(Generic[_Claim]):
    """Name, version and claim of an object when the claim was noted."""

    name: str
    version: str
    claim: _Claim


@dataclass(slots=True, eq=False)
class Claims(Generic[_Claim]):
    """The objects of one kind of one cluster, by what they claim.

    Args:
        cache: The objects that the watches reported.
        departed: Objects that are gone and still claim something.
        kind: The kind of the objects.
        namespace: The namespace of the objects and of the cluster.
        cluster: The name of the cluster that the objects belong to.
        claim_of: Returns what an object claims.
    """

    _cache: Cache
    _departed: Departed
    _kind: str
    _namespace: str
    _cluster: str
    _claim_of: Callable[[Manifest], _Claim]
    _seen: dict[str, _Seen[_Claim]] = field(
        default_factory=dict
    )  # by UID, because a new object may have the name of a departed one
    _claimants: defaultdict[_Claim, set[str]] = field(default_factory=lambda: defaultdict(set))
    _due: dict[_Claim, float] = field(default_factory=dict)
    _failures: dict[_Claim, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._seen)

    def scan(self, now_s: float) -> bool:
        """Find objects that were made, changed or deleted. Their claims are due at once. Returns whether any was."""
        found: set[str] = set()
        is_changed = False
        for manifest in self._of_namespace():
            if (manifest.get("spec") or {}).get("cluster") != self._cluster:
                continue
            uid, version = manifest["metadata"]["uid"], self._version(manifest)
            found.add(uid)
            known = self._seen.get(uid)
            if known is not None and known.version == version:
                continue
            is_changed = True
            if known is not None:
                self._drop(uid, known.claim, now_s)
            claim = self._claim_of(manifest)
            self._seen[uid] = _Seen(manifest["metadata"]["name"], version, claim)
            self._claimants[claim].add(uid)
            self.mark(claim, now_s)
        for uid in self._seen.keys() - found:
            is_changed = True
            self._drop(uid, self._seen.pop(uid).claim, now_s)
        return is_changed

    def _of_namespace(self) -> Iterator[Manifest]:
        """The departed objects, and those of the cache without the departed ones, which the cache may still have."""
        yield from self._departed.of(self._kind, self._namespace)
        yield from (each for each in self._cache.of(self._kind, self._namespace) if each not in self._departed)

    def _version(self, manifest: Manifest) -> str:
        end = "gone" if manifest in self._departed else "there"
        return f"{manifest['metadata'].get('resourceVersion')}/{end}"

    def _drop(self, uid: str, claim: _Claim, now_s: float) -> None:
        uids = self._claimants[claim]
        uids.discard(uid)
        self.mark(claim, now_s)  # another object may have what this one claimed
        if not uids:
            del self._claimants[claim]
            self._due.pop(claim, None)
            self._failures.pop(claim, None)

    def seen(self, manifest: Manifest) -> None:
        """Note the version of an object that the operator has just written, so that it does not count as a change."""
        uid = manifest["metadata"]["uid"]
        known = self._seen.get(uid)
        if known is not None:
            self._seen[uid] = replace(known, version=self._version(manifest))

    def objects(self, claim: _Claim) -> list[Manifest]:
        """The objects with this claim, as they are known now."""
        found = (self._object(uid) for uid in sorted(self._claimants.get(claim, ())))
        return [manifest for manifest in found if manifest is not None]

    def _object(self, uid: str) -> Manifest | None:
        departed = self._departed.get(uid)
        if departed is not None:
            return departed
        found = self._cache.get(self._kind, self._namespace, self._seen[uid].name)
        return found if found is not None and found["metadata"]["uid"] == uid else None

    def claimed(self) -> Set[_Claim]:
        """Everything that any object claims."""
        return self._claimants.keys()

    # ---- what is due ----

    def mark(self, claim: _Claim, at_s: float) -> None:
        """Make a claim due at that time, unless it is due earlier. A claim without objects is ignored."""
        if claim in self._claimants:
            self._due[claim] = min(self._due.get(claim, at_s), at_s)

    def mark_all(self, at_s: float) -> None:
        """Make every claim due at that time, unless it is due earlier."""
        for claim in self._claimants:
            self.mark(claim, at_s)

    def take(self, now_s: float, count_max: int) -> list[_Claim]:
        """Take at most `count_max` claims that are due, those that are due for longest first. Then they are not due."""
        due = sorted((at_s, number, claim) for number, (claim, at_s) in enumerate(self._due.items()) if at_s <= now_s)
        taken = [claim for _, _, claim in due[:count_max]]
        for claim in taken:
            del self._due[claim]
        return taken

    def next_s(self) -> float | None:
        """When the next claim is due; None if none is."""
        return min(self._due.values(), default=None)

    def failed(self, claim: _Claim, now_s: float) -> float:
        """Make a failed claim due again after a pause. Returns the pause: 0.2 s, doubled at each failure up to 60 s."""
        failures = self._failures[claim] = self._failures.get(claim, 0) + 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (failures - 1), LAST_PAUSE_S)
        self.mark(claim, now_s + pause_s)
        return pause_s

    def succeeded(self, claims: Iterable[_Claim]) -> None:
        """Note that claims succeeded, so that their next failure has the first pause again."""
        for claim in claims:
            self._failures.pop(claim, None)
