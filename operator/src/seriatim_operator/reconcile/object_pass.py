"""The common part of the passes over Topics and ConsumerGroups.

Each object *claims* a topic or a consumer group of the brokers. Objects come from the cache. A pass works on the claims
that are due, several at once. A claim that fails does not hold up others: it is tried again after a pause of its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import structlog
from seriatim_api.errors import SeriatimError, StaleOperatorError

from ..cluster.kinds import Kind
from ..cluster.kube import Api, KubeError
from ..plan.actions import Action
from ..plan.topics import ReleaseObject, Surroundings
from ..spec.base import Resource, Status
from ..spec.errors import InvalidManifestError
from .asking import TopicBrokers, run_all
from .cache import Cache
from .claims import Claims
from .departed import Departed
from .losses import Losses
from .objects import Writer

Manifest = dict[str, Any]
_Claim = TypeVar("_Claim", bound=Hashable)
_Item = TypeVar("_Item", bound=Resource)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """One cluster, its objects and its brokers.

    Attributes:
        api: The API, for writes to objects and for reads before a deletion.
        cache: The objects that the watches reported.
        namespace: The namespace of the cluster and of its objects.
        cluster: The cluster's name.
        brokers: The client of the cluster's brokers.
        clock: Returns monotonic seconds.
        departed: Objects that are gone, and whose `deletionPolicy` is still to be carried out.
        holds: Whether a finalizer keeps an object until what it owns is deleted.
        losses: What the brokers say that the coordinator has lost.
    """

    api: Api
    cache: Cache
    namespace: str
    cluster: str
    brokers: TopicBrokers
    clock: Callable[[], float]
    departed: Departed
    holds: bool
    losses: Losses


class ObjectPass(ABC, Generic[_Claim, _Item]):
    """Makes passes over the objects of one kind of one cluster."""

    KIND: ClassVar[Kind]
    FINALIZER: ClassVar[str]
    MODEL: type[_Item]
    CLAIMS_AT_ONCE: ClassVar[int]
    """How many claims are worked on at once. Most of the time they wait for the brokers' disks."""
    CLAIMS_PER_PASS: ClassVar[int]
    """How many claims one pass takes at most. The next pass then sees what changed meanwhile."""

    def __init__(self, at: ClusterAccess) -> None:
        self._api = at.api
        self._brokers = at.brokers
        self._clock = at.clock
        self._departed = at.departed
        self._holds = at.holds
        self._losses = at.losses
        self._writer = Writer(at.api, at.cache, self.KIND, self.FINALIZER)
        self._claims: Claims[_Claim] = Claims(
            at.cache, at.departed, self.KIND.kind, at.namespace, at.cluster, self.claim_of
        )

    def __len__(self) -> int:
        return len(self._claims)

    def claimed(self) -> Set[_Claim]:
        """Everything that any object claims."""
        return self._claims.claimed()

    @staticmethod
    @abstractmethod
    def claim_of(manifest: Manifest) -> _Claim:
        """What an object claims. The manifest may have other fields that this version cannot read."""

    @abstractmethod
    async def _work_on(self, claim: _Claim, surroundings: Surroundings, *, is_long_silent: bool) -> None:
        """Take the steps that are due for the objects with this claim, and report."""

    def look_at_all(self) -> None:
        """Make every claim due, because the surroundings have changed."""
        self._claims.mark_all(self._clock())

    def scan(self) -> bool:
        """Find the objects that changed, and make their claims due. Returns whether there are any."""
        return self._claims.scan(self._clock())

    async def work(self, surroundings: Surroundings, *, is_long_silent: bool) -> float | None:
        """Work on the claims that are due.

        Args:
            surroundings: Whether the brokers can be asked and changed.
            is_long_silent: No broker has answered for 60 s, so that this is reported.

        Returns:
            After how many seconds the next claim is due; None if none is.

        Raises:
            StaleOperatorError: A newer operator acts: this one must end.
        """
        claims = self._claims.take(self._clock(), self.CLAIMS_PER_PASS)
        gate = asyncio.Semaphore(self.CLAIMS_AT_ONCE)
        await run_all(self._work_in_turn(gate, claim, surroundings, is_long_silent) for claim in claims)
        next_s = self._claims.next_s()
        return None if next_s is None else max(0.0, next_s - self._clock())

    async def _work_in_turn(
        self, gate: asyncio.Semaphore, claim: _Claim, surroundings: Surroundings, is_long_silent: bool
    ) -> None:
        async with gate:
            try:
                await self._work_on(claim, surroundings, is_long_silent=is_long_silent)
            except StaleOperatorError:
                raise
            except (SeriatimError, KubeError, InvalidManifestError) as exc:
                pause_s = self._claims.failed(claim, self._clock())
                _log.info("claim_failed", kind=self.KIND.kind, claim=str(claim), again_s=pause_s, error=str(exc))
            else:
                self._claims.succeeded([claim])

    async def _read(self, manifests: Iterable[Manifest]) -> list[_Item]:
        """The objects that can be read. The others get a report that they cannot be read."""
        items = []
        for manifest in manifests:
            try:
                items.append(self.MODEL.from_manifest(manifest))
            except InvalidManifestError as exc:
                if manifest in self._departed:
                    _log.warning("departed_unreadable", kind=self.KIND.kind, error=str(exc))
                    self._forget(manifest)
                else:
                    await self._writer.report_unreadable(manifest, exc)
        return items

    async def _do_to_object(self, manifest: Manifest, step: Action, surroundings: Surroundings) -> bool:
        """Take a step on the object alone. Returns False if no further step may be taken for it, or it is gone."""
        if isinstance(step, ReleaseObject) and manifest in self._departed:
            if await self._writer.may_release(manifest, surroundings):
                self._forget(manifest)
            return False
        return await self._writer.do(manifest, step, surroundings)

    def _forget(self, manifest: Manifest) -> None:
        """Forget an object that is gone, when nothing is left to do for it. Another object may have its claim now."""
        self._departed.forget(manifest)
        self._claims.mark(self.claim_of(manifest), self._clock())

    async def _may_delete(self, manifest: Manifest) -> bool:
        """Whether the API, read again, says that what the object owns is to be deleted.

        Either the object with this UID is being deleted and still says `Delete`, or it is gone and the watch reported
        its deletion. If the watch reported the deletion and the object exists, it was restored, and nothing is deleted.
        """
        metadata = manifest["metadata"]
        fresh = await self._api.get(self.KIND, metadata["namespace"], metadata["name"])
        same = fresh if fresh is not None and fresh["metadata"]["uid"] == metadata["uid"] else None
        if manifest not in self._departed:
            return same is not None and _wants_deletion(same)
        if same is not None:
            _log.warning("departed_is_there", kind=self.KIND.kind, name=metadata["name"])
            self._forget(manifest)
        return same is None

    async def _write_status(self, manifest: Manifest, status: Status) -> None:
        """Write the status unless the object is gone. The written version of the object is not a change to look at."""
        if manifest in self._departed:
            return
        written = await self._writer.write_status(manifest, status)
        if written is not None:
            self._claims.seen(written)


def _wants_deletion(manifest: Manifest) -> bool:
    is_deleted = bool(manifest["metadata"].get("deletionTimestamp"))
    return is_deleted and manifest["spec"].get("deletionPolicy") == "Delete"
