"""Death certificates of processes that the runner has reaped, written into the coordinator for as long as it takes.

A certificate lets a segment be opened over of which no member answers, so it must be true: it is handed in here only
after `waitpid` has returned, for the run that the dead process's data directory names. If the process died before it
raised that number, the directory names an earlier run, which has ended as well.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import structlog
from seriatim_api.errors import CoordinatorUnavailableError, SeriatimError
from seriatim_api.ids import RunId
from seriatim_api.v1 import common_pb2, records_pb2

from seriatim_broker.interfaces.coordinator import Coordinator, Put, absent

ISSUER: Final = "runner"
PENDING_COUNT_MAX: Final = 1024
"""Certificates that wait for the coordinator; more mean that brokers die in a loop, and the oldest is dropped."""

ATTEMPT_DEADLINE_S: Final = 1.0
RETRY_S: Final = 0.05

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A run that has ended.

    Attributes:
        evidence: How it is known, for people.
        issued_at_ms: When it was reaped, in milliseconds since 1970.
    """

    run: RunId
    evidence: str
    issued_at_ms: int


def certificate_key(cluster: str, run: RunId) -> str:
    """Where the coordinator keeps it."""
    return f"/seriatim/{cluster}/certificates/{run.member.incarnation}/{run.run}"


def encode(certificate: Certificate) -> bytes:
    """The record's bytes."""
    run = certificate.run
    return bytes(
        records_pb2.DeathCertificate(
            member=common_pb2.Member(broker=run.member.broker, incarnation=run.member.incarnation),
            run=run.run,
            issuer=ISSUER,
            issued_at_ms=certificate.issued_at_ms,
            evidence=certificate.evidence,
        ).SerializeToString()
    )


class CertificateWriter:
    """Writes certificates in the order in which they are submitted. `run` must be running; its owner cancels it.

    Args:
        coordinator: Where to write; reached without the proxy, for the runner is not part of what is cut.
        cluster: The cluster's name.
    """

    def __init__(self, coordinator: Coordinator, cluster: str) -> None:
        self._coordinator = coordinator
        self._cluster = cluster
        self._pending: deque[Certificate] = deque()
        self._changed = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()

    @property
    def pending_count(self) -> int:
        """How many are not in the coordinator yet."""
        return len(self._pending)

    def submit(self, run: RunId, evidence: str) -> None:
        """Certify that `run` has ended. Returns at once."""
        if len(self._pending) >= PENDING_COUNT_MAX:
            _log.error("certificate_dropped", run=str(self._pending.popleft().run), reason="too many pending")
        self._pending.append(Certificate(run, evidence, time.time_ns() // 1_000_000))
        self._written.clear()
        self._changed.set()

    async def flush(self, deadline_s: float) -> bool:
        """Wait until all that was submitted is written; False if it is not after `deadline_s` seconds."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._written.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Write, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._pending:
                if await self._write(self._pending[0]):
                    self._pending.popleft()
                else:
                    await asyncio.sleep(RETRY_S)
            self._written.set()

    async def _write(self, certificate: Certificate) -> bool:
        """Whether it is dealt with. A repeat after an unknown outcome is safe: the key is written once."""
        key = certificate_key(self._cluster, certificate.run)
        try:
            result = await self._coordinator.txn(
                [absent(key)], [Put(key, encode(certificate))], deadline_s=ATTEMPT_DEADLINE_S
            )
        except CoordinatorUnavailableError:
            return False
        except SeriatimError as error:
            _log.error("certificate_refused", run=str(certificate.run), error=str(error))
            return True
        _log.info("certificate_written", run=str(certificate.run), first=result.succeeded)
        return True
