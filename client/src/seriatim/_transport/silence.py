"""Silence: notices that no broker answers, and says so, once, on the logger `seriatim`; and again when one does.

Without it a program whose brokers are all gone, or which was given a wrong address, is quiet until its deadlines pass:
ten seconds at the start, two minutes for a send, for ever for a consumer. A program that configures no logging has
these two lines on stderr.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from seriatim_api.errors import TlsHandshakeError, UnavailableError

NOTICE_S: Final = 1.5
"""How long somebody has been asked, and nobody has answered, until it is said: longer than a frozen broker takes to be
passed over, and than the gap at the loss of a master."""

SHOWN_MAX: Final = 4
"""Addresses that are named; of a large cluster the rest is counted."""

_NOT_YET: Final = "no answer in time"

_log = logging.getLogger("seriatim")


class Silence:
    """What is known of brokers that do not answer, since the last answer of any."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._tls_failures: set[str] = set()
        self._addresses: tuple[str, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._is_told = False

    @property
    def is_feared(self) -> bool:
        """Whether it has begun, or was told: somebody waits for a sign of life."""
        return self._timer is not None or self._is_told

    def begins(self, addresses: Iterable[str]) -> None:
        """One of these is asked and ought to answer at once, or did not answer in its time."""
        if self._timer is None and not self._is_told:
            self._addresses = tuple(addresses)
            self._timer = asyncio.get_running_loop().call_later(NOTICE_S, self._tell)

    def goes_on(self, address: str, reason: str, *, is_tls: bool = False) -> None:
        """A broker did not answer, perhaps because the two sides could not agree on TLS."""
        self._reasons[address] = reason
        (self._tls_failures.add if is_tls else self._tls_failures.discard)(address)

    def note_late(self, address: str) -> str:
        """A broker did not answer in the time it was given; returns what is known to be the reason.

        Where TLS failed before, it stays TLS: a call whose time ends during the next handshake learns nothing.
        """
        if address not in self._tls_failures:
            self._reasons[address] = _NOT_YET
        return self._reasons[address]

    def ends(self, address: str) -> None:
        """A broker answered, or said anything on a stream: it may be busy, but it is there."""
        self.stop()
        self._reasons.clear()
        self._tls_failures.clear()
        if self._is_told:
            self._is_told = False
            _log.warning("the broker at %s answers", address)

    def stop(self) -> None:
        """Nobody waits for an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def error(self, addresses: Iterable[str]) -> UnavailableError:
        """What is raised when nobody answered before the deadline."""
        asked = tuple(addresses)
        kind = TlsHandshakeError if asked and self._tls_failures.issuperset(asked) else UnavailableError
        return kind(self._text(asked))

    def _tell(self) -> None:
        self._timer = None
        self._is_told = True
        _log.warning("%s; still trying", self._text(self._addresses))

    def _text(self, addresses: tuple[str, ...]) -> str:
        reasons = {address: self._reasons.get(address, _NOT_YET) for address in addresses[:SHOWN_MAX]}
        others = f" and {len(addresses) - SHOWN_MAX} others" if len(addresses) > SHOWN_MAX else ""
        if len(set(reasons.values())) == 1:
            return f"no broker answers at {', '.join(reasons)}{others}: {next(iter(reasons.values()))}"
        shown = ", ".join(f"{address} ({reason})" for address, reason in reasons.items())
        return f"no broker answers at {shown}{others}"
