"""Makes sure that one operator acts at a time: a Lease of `coordination.k8s.io`, and its epoch.

The holder renews the Lease every 2 s. If another operator sees no renewal for the whole duration (15 s), it takes the
Lease under a higher epoch. Every call to brokers carries the epoch.

The epoch is the Unix time of the take-over in seconds, or one more than the last epoch if that is higher. Brokers
remember the highest epoch that they saw. So a Lease that was deleted with an installation does not begin again below
it.

A holder that cannot renew stops acting after 10 s. It counts from just before it sent its last renewal, by the
monotonic clock. Its process ends, so that no step is finished under a lost Lease.
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
"""The annotation that has the epoch. `leaseTransitions` has 32 bits, which end in 2038 for a Unix time."""

_log = structlog.get_logger(__name__)


class LeaseLostError(Exception):
    """Another operator may act from now on. This process must end."""


@dataclass(slots=True)
class _Seen:
    """The version of the Lease that a waiting operator last saw, and since when, by its own monotonic clock."""

    version: str
    since_s: float


class Leadership:
    """Acquires the Lease, holds it, and has its epoch.

    Args:
        kube: The API.
        namespace, name: The Lease's namespace and name.
        identity: A unique name of this process, for example the pod's name and UID.
    """

    def __init__(self, kube: Kube, namespace: str, name: str, identity: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._renewed_s = float("-inf")
        self._written: Manifest | None = None  # the Lease, if this process wrote it last and the API said so
        self.epoch = 0

    @property
    def is_held(self) -> bool:
        """Whether this process may act."""
        return time.monotonic() < self._renewed_s + RENEW_DEADLINE_S

    def check(self) -> None:
        """Check before a write that this process may act.

        Raises:
            LeaseLostError: The Lease was not renewed for 10 s.
        """
        if not self.is_held:
            raise LeaseLostError(f"the Lease {self._namespace}/{self._name} could not be renewed in time")

    async def acquire(self) -> None:
        """Wait until this process holds the Lease. It tries every 2 s, with no limit."""
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
        """Renew the Lease every 2 s until it is lost. If the call is cancelled, the Lease ends after its duration.

        Raises:
            LeaseLostError: Another operator has the Lease, or no renewal succeeded for 10 s.
        """
        while True:
            await asyncio.sleep(RETRY_S)
            began_s = time.monotonic()
            try:
                await self._renew()
                self._renewed_s = began_s
            except ConflictError:
                continue  # the next try reads the Lease again
            except KubeError as exc:
                _log.warning("lease_not_renewed", error=str(exc))
            self.check()

    async def release(self) -> None:
        """Give up the Lease at the end of the process, so that the next operator need not wait 15 s.

        Raises:
            KubeError: The API refuses the write or does not answer. The Lease then ends after its duration.
        """
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
        # Only this process's clock decides whether the Lease has ended. Clocks of two machines are never compared.
        is_over = time.monotonic() - seen.since_s > float(spec.get("leaseDurationSeconds") or DURATION_S)
        if holder and holder != self._identity and not is_over:
            return False
        last = (found["metadata"].get("annotations") or {}).get(ANNOTATION_EPOCH, "0")
        self.epoch = _epoch_after(int(last) if last.isdecimal() else 0)
        await self._kube.replace(self._manifest(found))
        return True

    async def _renew(self) -> None:
        """Write the Lease as the last renewal left it. If that failed, or another one wrote it since, read it first."""
        found, self._written = self._written, None
        if found is None:
            found = await self._kube.get(LEASE, self._namespace, self._name)
        if found is None or found["spec"].get("holderIdentity") != self._identity:
            self._renewed_s = float("-inf")
            raise LeaseLostError(f"another operator holds the Lease {self._namespace}/{self._name}")
        found["spec"]["renewTime"] = _now()
        self._written = await self._kube.replace(found)

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
