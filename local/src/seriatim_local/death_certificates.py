"""Death certificates of processes that the runner has reaped. It tries to write each one until the coordinator has it.

A certificate allows brokers to open over a segment of which no member answers, so it must be true. The runner submits
one only when `waitpid` has returned, for the member run that the data directory of the dead process names. If the
process died before it raised that number, the directory names an earlier member run, which has ended too.
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
"""Limit for certificates that wait for the coordinator. More mean that brokers die in a loop: the oldest is dropped."""

ATTEMPT_DEADLINE_S: Final = 1.0
RETRY_S: Final = 0.05

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A member run that has ended.

    Attributes:
        run: The member run.
        evidence: How the runner knows, in words for humans.
        issued_at_ms: When the runner reaped the process, in milliseconds since 1970 UTC.
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
    """Writes certificates in the order in which they are submitted. The owner runs `run` in a task, and cancels it.

    Args:
        coordinator: The coordinator, reached without the proxy, because no cut must affect the runner.
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
        """The number of certificates that are not in the coordinator yet."""
        return len(self._pending)

    def submit(self, run: RunId, evidence: str) -> None:
        """Certify that the member run `run` has ended. Returns at once."""
        if len(self._pending) >= PENDING_COUNT_MAX:
            _log.error("certificate_dropped", run=str(self._pending.popleft().run), reason="too many pending")
        self._pending.append(Certificate(run, evidence, time.time_ns() // 1_000_000))
        self._written.clear()
        self._changed.set()

    async def flush(self, deadline_s: float) -> bool:
        """Wait until all submitted certificates are written. Returns False if this takes more than `deadline_s` s."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._written.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Write certificates until it is cancelled. Those that are not written then are lost with the runner."""
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
        """Try to write a certificate. Returns whether it needs no further try.

        A repeat after an unknown outcome is safe, because the transaction writes the key only if it does not exist.
        """
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
