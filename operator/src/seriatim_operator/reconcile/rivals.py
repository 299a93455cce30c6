"""Makes sure that one operator looks after a cluster, although another one with a Lease of its own may watch it too.

Before an operator first acts on a cluster, it writes the name of its Lease into an annotation of the BrokerCluster, on
the version that it has read, so that only one of two succeeds. The other leaves the cluster alone, and calls no broker,
while that operator lives. By its own clock it looks whether that operator's Lease is still renewed. If it may not read
that Lease, it looks at the time of the report in the cluster's status, which is renewed every minute.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from ..cluster.kinds import BROKER_CLUSTER, LEASE
from ..cluster.kube import Api, ConflictError, InvalidError, KubeError
from ..cluster.lease import DURATION_S, LeaseLostError
from ..resources.names import ANNOTATION_OPERATOR
from .cache import Cache

LOOK_S: Final = 5.0
"""Seconds between two looks at a cluster that another operator looks after."""

REPORT_S: Final = 150.0
"""Seconds without a report after which an operator counts as gone whose Lease this one may not read."""

TRIES: Final = 3
"""How often the annotation is written at once if the cluster changes meanwhile."""

OTHER_OPERATOR: Final = "OtherOperator"
"""The reason of the Event that an operator posts about a cluster that it leaves to another."""

_FORBIDDEN: Final = 403

_LEASE: Final = re.compile(r"[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}")
"""What the annotation of a cluster names: namespace and name of a Lease."""

Manifest = dict[str, Any]

_log = structlog.get_logger(__name__)


class Rivals:
    """Reports for each cluster whether this operator looks after it.

    Args:
        api: The API.
        cache: The objects that the watches reported.
        me: Namespace and name of this operator's Lease, with a slash between them.
        clock: Returns monotonic seconds.
    """

    def __init__(self, api: Api, cache: Cache, me: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._cache = cache
        self._me = me
        self._clock = clock
        self._claiming = asyncio.Lock()
        self._mine: set[tuple[str, str]] = set()  # clusters on which this process has acted
        self._signs: dict[tuple[str, str], tuple[str, float]] = {}  # the other's last sign of life, and when it came
        self._looked: dict[tuple[str, str], float] = {}  # when the other operator's Lease was read

    async def may_act(self, namespace: str, name: str) -> bool:
        """Whether this operator looks after a cluster, which it begins to do if no other operator does.

        Raises:
            LeaseLostError: Another operator has begun to look after a cluster of this one: this process must end.
            KubeError: The API refuses a call or does not answer.
        """
        async with self._claiming:  # the passes over a cluster, its topics and its consumer groups ask at once
            for _ in range(TRIES):
                manifest = self._cache.get(BROKER_CLUSTER.kind, namespace, name)
                if manifest is None:
                    self._forget((namespace, name))
                    return True
                try:
                    return await self._may_act(manifest)
                except ConflictError:
                    found = await self._api.get(BROKER_CLUSTER, namespace, name)
                    if found is not None:
                        self._cache.answered(BROKER_CLUSTER.kind, found)
            return False

    async def _may_act(self, manifest: Manifest) -> bool:
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        key = (namespace, name)
        other = (manifest["metadata"].get("annotations") or {}).get(ANNOTATION_OPERATOR, "")
        if other == self._me:
            self._mine.add(key)
            return True
        if other and await self._lives(other, manifest):
            if key in self._mine:
                raise LeaseLostError(f"the operator {other} looks after {namespace}/{name} now")
            return False
        patch: Manifest = {"metadata": {"annotations": {ANNOTATION_OPERATOR: self._me}}}
        patch["metadata"]["resourceVersion"] = manifest["metadata"]["resourceVersion"]
        try:
            self._cache.answered(BROKER_CLUSTER.kind, await self._api.merge(BROKER_CLUSTER, namespace, name, patch))
        except InvalidError as exc:
            # An object from before a rule, which can only be reported. Two operators would report the same.
            _log.info("cluster_not_annotated", cluster=name, error=str(exc))
            return True
        _log.info("cluster_begun", cluster=name, namespace=namespace, before=other)
        self._mine.add(key)
        self._signs.pop(key, None)
        return True

    async def _lives(self, other: str, manifest: Manifest) -> bool:
        key, now_s = (manifest["metadata"]["namespace"], manifest["metadata"]["name"]), self._clock()
        if now_s - self._looked.get(key, float("-inf")) < LOOK_S:
            return True
        sign, limit_s = await self._sign_of(other, manifest)
        if not sign:
            return False
        is_new = key not in self._signs
        if is_new or self._signs[key][0] != sign:
            self._signs[key] = (sign, now_s)
        if now_s - self._signs[key][1] > limit_s:
            return False
        self._looked[key] = now_s
        if is_new:
            _log.warning("left_to_another_operator", cluster=manifest["metadata"]["name"], other=other)
            note = (
                f"the operator {self._me} watches this cluster too, and leaves it to {other}: uninstall one of "
                "the two, or give them different watchNamespaces"
            )
            await self._api.event(manifest, "Warning", OTHER_OPERATOR, note)
        return True

    def _forget(self, key: tuple[str, str]) -> None:
        self._mine.discard(key)
        self._signs.pop(key, None)
        self._looked.pop(key, None)

    async def _sign_of(self, other: str, manifest: Manifest) -> tuple[str, float]:
        """Something that changes while that operator lives, and for how long it may stay; empty if it has ended."""
        if not _LEASE.fullmatch(other):
            return "", 0.0  # no operator writes this
        namespace, _, name = other.partition("/")
        try:
            lease = await self._api.get(LEASE, namespace, name)
        except KubeError as exc:
            if exc.status != _FORBIDDEN:
                raise
            return str((manifest.get("status") or {}).get("reportedAt") or "never"), REPORT_S
        if lease is None or not (lease.get("spec") or {}).get("holderIdentity"):
            return "", 0.0
        return str(lease["metadata"]["resourceVersion"]), float(lease["spec"].get("leaseDurationSeconds") or DURATION_S)
