"""What the passes over Topics and ConsumerGroups have in common: objects that claim something of the brokers.

Objects come from the cache. A pass takes the claims that are due, some at once, and is never held up by one of them:
what fails comes again after a pause of its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import structlog
from seriatim_api.errors import SeriatimError, StaleOperatorError

from ..cluster.kinds import Kind
from ..cluster.kube import Api, KubeError
from ..plan.topics import Surroundings
from ..spec.base import Resource, Status
from ..spec.errors import InvalidManifestError
from .asking import TopicBrokers, run_all
from .cache import Cache
from .claims import Claims
from .objects import Writer

Manifest = dict[str, Any]
_Claim = TypeVar("_Claim", bound=Hashable)
_Item = TypeVar("_Item", bound=Resource)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """One cluster, its objects and its brokers.

    Attributes:
        api: Writes to objects, and reads before anything is deleted.
        cache: What the watches told.
        namespace: Of the cluster and of its objects.
        cluster: Its name.
        brokers: Whom to ask.
        clock: Seconds, monotonic.
    """

    api: Api
    cache: Cache
    namespace: str
    cluster: str
    brokers: TopicBrokers
    clock: Callable[[], float]


class ObjectPass(ABC, Generic[_Claim, _Item]):
    """Works on the objects of one kind of one cluster, pass by pass."""

    KIND: ClassVar[Kind]
    FINALIZER: ClassVar[str]
    MODEL: type[_Item]
    CLAIMS_AT_ONCE: ClassVar[int]
    """Claims that are worked on side by side: most of the time they wait for the brokers' disks."""
    CLAIMS_PER_PASS: ClassVar[int]
    """After so many the pass ends and another begins, so that what changed meanwhile is seen."""

    def __init__(self, at: ClusterAccess) -> None:
        self._api = at.api
        self._brokers = at.brokers
        self._clock = at.clock
        self._writer = Writer(at.api, at.cache, self.KIND, self.FINALIZER)
        self._claims: Claims[_Claim] = Claims(at.cache, self.KIND.kind, at.namespace, at.cluster, self.claim_of)

    def __len__(self) -> int:
        return len(self._claims)

    @staticmethod
    @abstractmethod
    def claim_of(manifest: Manifest) -> _Claim:
        """What an object claims, also one that cannot be read as a whole."""

    @abstractmethod
    async def _work_on(self, claim: _Claim, surroundings: Surroundings, *, is_long_silent: bool) -> None:
        """Do what is due for those who claim it, and report."""

    def look_at_all(self) -> None:
        """The surroundings have changed, which concerns every object."""
        self._claims.mark_all(self._clock())

    def scan(self) -> None:
        """Find out which objects changed."""
        self._claims.scan(self._clock())

    async def work(self, surroundings: Surroundings, *, is_long_silent: bool) -> float | None:
        """Work on what is due; returns after how many seconds to come again.

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
        """The objects that can be read; the others are told so."""
        items = []
        for manifest in manifests:
            try:
                items.append(self.MODEL.from_manifest(manifest))
            except InvalidManifestError as exc:
                await self._writer.report_unreadable(manifest, exc)
        return items

    async def _write_status(self, manifest: Manifest, status: Status) -> None:
        """Report; what was written is no reason to look again."""
        written = await self._writer.write_status(manifest, status)
        if written is not None:
            self._claims.seen(written)
