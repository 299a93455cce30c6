"""Silence: logs a warning on the logger `seriatim` if no broker answers, and another one when a broker answers again.

Without it, a program with a wrong address, or with all brokers gone, prints nothing until its deadlines pass: 10 s at
the start, 2 minutes for a send, for ever for a consumer. If a program configures no logging, Python prints these two
lines on stderr.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from seriatim_api.errors import TlsHandshakeError, UnavailableError

from seriatim._runtime.logs import guarded
from seriatim._transport.reasons import FOREIGN, MAY_ASK_FOR_TLS

NOTICE_S: Final = 1.5
"""Seconds without any answer before the warning. It is longer than the time to pass over a frozen broker, and than the
gap at the loss of a master."""

TLS_PATIENCE_S: Final = 3.0
"""Seconds without any answer, and with failures of TLS, before a call that reads raises. Waiting does not mend
certificates, but a broker may be replacing its own at this moment."""

SHOWN_MAX: Final = 4
"""The most addresses that a text names. It only counts the others."""

_NOT_YET: Final = "no answer in time"

_log = guarded()


class Silence:
    """The brokers that have not answered since the last answer of any broker, with their reasons."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._tls_failures: set[str] = set()
        self._tls_since_s: float | None = None
        self._addresses: tuple[str, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._is_told = False

    @property
    def is_feared(self) -> bool:
        """Whether a call waits for the first answer, or the warning was logged."""
        return self._timer is not None or self._is_told

    def begins(self, addresses: Iterable[str]) -> None:
        """A broker at one of these addresses is asked and should answer at once, or did not answer in time."""
        if self._timer is None and not self._is_told:
            self._addresses = tuple(addresses)
            self._timer = asyncio.get_running_loop().call_later(NOTICE_S, self._tell)

    def goes_on(self, address: str, reason: str, *, is_tls: bool = False) -> None:
        """A broker did not answer. `is_tls`: because the two sides could not agree on TLS."""
        self._reasons[address] = reason
        (self._tls_failures.add if is_tls else self._tls_failures.discard)(address)
        if not self._tls_failures:
            self._tls_since_s = None
        elif self._tls_since_s is None:
            self._tls_since_s = asyncio.get_running_loop().time()

    def note_late(self, address: str) -> str:
        """A broker did not answer in time. Returns the known reason.

        If TLS failed before, or a client without TLS was cut off, the reason stays. A call whose time ends during the
        next handshake learns no reason.
        """
        if address not in self._tls_failures and not self._reasons.get(address, "").endswith(MAY_ASK_FOR_TLS):
            self._reasons[address] = _NOT_YET
        return self._reasons[address]

    def ends(self, address: str) -> None:
        """A broker answered, or sent something on a stream: it may be busy, but it lives."""
        self.stop()
        self._reasons.clear()
        self._tls_failures.clear()
        self._tls_since_s = None
        if self._is_told:
            self._is_told = False
            _log.warning("the broker at %s answers", address)

    def stop(self) -> None:
        """End the wait for an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_foreign(self, addresses: Iterable[str]) -> bool:
        """Whether other programs, and no brokers, listen at all these addresses. To ask again is of no use then."""
        return all(self._reasons.get(address) == FOREIGN for address in addresses)

    def error(self, addresses: Iterable[str]) -> UnavailableError:
        """The error for a call that no broker answered before the deadline."""
        asked = tuple(addresses)
        kind = TlsHandshakeError if asked and self._tls_failures.issuperset(asked) else UnavailableError
        return kind(self._text(asked))

    def tls_error(self, addresses: Iterable[str]) -> TlsHandshakeError | None:
        """The error for a call that waits without a deadline; None if it has reason to wait.

        No broker has answered for `TLS_PATIENCE_S`, and at one or more of them TLS is the cause.
        """
        since_s = self._tls_since_s
        if since_s is None or asyncio.get_running_loop().time() - since_s < TLS_PATIENCE_S:
            return None
        return TlsHandshakeError(self._text(tuple(addresses)))

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
