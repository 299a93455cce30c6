"""One operator at a time: a Lease of `coordination.k8s.io`, and its epoch.

The holder renews the Lease; whoever finds it not renewed for its whole duration takes it under a higher epoch, which
goes to the brokers with every call. The epoch is the time of the take-over in seconds, or one more than the last if
that is not higher: brokers remember the highest that they saw, and a Lease that was deleted with an installation must
not begin again below it. A holder that cannot renew stops acting before the duration is over, counted from before its
last renewal was sent, on the monotonic clock: its process ends, so that nothing it had in hand is finished under a lost
Lease.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from .kinds import LEASE
from .kube import ConflictError, Kube, KubeError, Manifest

DURATION_S = 15
RENEW_DEADLINE_S = 10.0
RETRY_S = 2.0

ANNOTATION_EPOCH = "seriatim.dev/epoch"
"""`leaseTransitions` has 32 bits, which are over in 2038."""

_log = structlog.get_logger(__name__)


class LeaseLostError(Exception):
    """Another operator may act from now on: this process must end."""


@dataclass(slots=True)
class _Seen:
    """What a waiting operator last saw of the Lease, and since when, by its own clock."""

    version: str
    since_s: float


class Leadership:
    """Stands for the Lease, holds it, and knows its epoch.

    Args:
        kube: The API.
        namespace, name: Of the Lease.
        identity: Of this process; unique, for example the pod's name and UID.
    """

    def __init__(self, kube: Kube, namespace: str, name: str, identity: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._renewed_s = float("-inf")
        self.epoch = 0

    @property
    def is_held(self) -> bool:
        """Whether this process may act."""
        return time.monotonic() < self._renewed_s + RENEW_DEADLINE_S

    def check(self) -> None:
        """To be called before each write.

        Raises:
            LeaseLostError: The Lease was not renewed in time.
        """
        if not self.is_held:
            raise LeaseLostError(f"the Lease {self._namespace}/{self._name} could not be renewed in time")

    async def acquire(self) -> None:
        """Wait until the Lease is this process's."""
        seen = _Seen("", time.monotonic())
        while True:
            began_s = time.monotonic()
            try:
                if await self._try_acquire(seen):
                    self._renewed_s = began_s
                    _log.info("lease_acquired", epoch=self.epoch, identity=self._identity)
                    return
            except KubeError as exc:
                _log.info("lease_not_acquired", error=str(exc))
            await asyncio.sleep(RETRY_S)

    async def hold(self) -> None:
        """Renew until it cannot.

        Raises:
            LeaseLostError: Somebody else has it, or the API was away for too long.
        """
        while True:
            await asyncio.sleep(RETRY_S)
            began_s = time.monotonic()
            try:
                await self._renew()
                self._renewed_s = began_s
            except ConflictError:
                continue  # read anew at the next try
            except KubeError as exc:
                _log.warning("lease_not_renewed", error=str(exc))
            self.check()

    async def release(self) -> None:
        """Give it up on the way out, so that the next one need not wait."""
        self._renewed_s = float("-inf")
        found = await self._kube.get(LEASE, self._namespace, self._name)
        if found is not None and found["spec"].get("holderIdentity") == self._identity:
            found["spec"].update(holderIdentity="", leaseDurationSeconds=1)
            await self._kube.replace(found)

    async def _try_acquire(self, seen: _Seen) -> bool:
        found = await self._kube.get(LEASE, self._namespace, self._name)
        if found is None:
            self.epoch = _epoch_after(0)
            await self._kube.create(self._manifest(None))
            return True
        spec, version = found["spec"], found["metadata"]["resourceVersion"]
        holder = spec.get("holderIdentity") or ""
        if version != seen.version:
            seen.version, seen.since_s = version, time.monotonic()
        # Whether it has run out is judged by this process's clock alone: clocks of two machines are never compared.
        is_over = time.monotonic() - seen.since_s > float(spec.get("leaseDurationSeconds") or DURATION_S)
        if holder and holder != self._identity and not is_over:
            return False
        last = (found["metadata"].get("annotations") or {}).get(ANNOTATION_EPOCH, "0")
        self.epoch = _epoch_after(int(last) if last.isdecimal() else 0)
        await self._kube.replace(self._manifest(found))
        return True

    async def _renew(self) -> None:
        found = await self._kube.get(LEASE, self._namespace, self._name)
        if found is None or found["spec"].get("holderIdentity") != self._identity:
            self._renewed_s = float("-inf")
            raise LeaseLostError(f"another operator holds the Lease {self._namespace}/{self._name}")
        found["spec"]["renewTime"] = _now()
        await self._kube.replace(found)

    def _manifest(self, found: Manifest | None) -> Manifest:
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": _now(),
            "renewTime": _now(),
            "leaseTransitions": int(found["spec"].get("leaseTransitions") or 0) + 1 if found else 0,
        }
        metadata: dict[str, Any] = found["metadata"] if found else {"namespace": self._namespace, "name": self._name}
        metadata.setdefault("annotations", {})[ANNOTATION_EPOCH] = str(self.epoch)
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


def _epoch_after(last: int) -> int:
    return max(last + 1, int(time.time()))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
