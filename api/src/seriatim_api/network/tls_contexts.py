"""TLS of connections without gRPC, with the certificates as they are at each handshake."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final, Literal

from seriatim_api.network.tls import TlsSource

_CAUSES: Final = (
    ("certificate has expired", "the other side's certificate has expired"),
    ("certificate is not yet valid", "the other side's certificate is not valid yet: do the clocks agree?"),
    (
        "mismatch, certificate is not valid for",
        "the other side's certificate is for other names than the one that was dialed",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "the other side's certificate was not issued by the CA that was given"),
    ("WRONG_VERSION_NUMBER", "the other side does not speak TLS on this port"),
)
"""Words in an error of ssl, and their meaning for humans. The first that fits is used."""

_ALERTS: Final = ("ALERT", "alert")


class TlsContexts:
    """Makes the contexts of handshakes, again when the files have changed.

    Args:
        source: Has the certificates.
        client_auth: `optional`: the acceptor asks for no certificate. Without meaning for a program that only dials.
    """

    def __init__(self, source: TlsSource, client_auth: Literal["required", "optional"] = "required") -> None:
        self._source = source
        self._asks = client_auth == "required"
        self._dialing = RenewedContext(source, lambda: _dialing_context(source))
        self._accepting = RenewedContext(source, lambda: _accepting_context(source, asks=self._asks))

    def dialing(self) -> ssl.SSLContext:
        """For a connection that this program makes. The name that is dialed must be in the other side's certificate."""
        return self._dialing.current()

    def accepting(self) -> ssl.SSLContext:
        """For a connection that this program accepts."""
        return self._accepting.current()

    def explain(self, error: BaseException | None) -> str:
        """Why a connection ended before its hello, for humans.

        Args:
            error: What ended it; None: the other side closed it.
        """
        text = str(error)
        if isinstance(error, ssl.SSLError):
            for words, cause in _CAUSES:
                if words in text:
                    return cause
            if not any(word in text for word in _ALERTS):
                return f"the two sides could not agree on TLS: {text}"
        if self._source.files.cert is not None:
            return "the other side closed the connection: it probably does not accept the certificate that was shown"
        return "the other side closed the connection: it probably asks for a certificate, and none was shown"


class RenewedContext:
    """A context, recreated when the certificates have changed.

    Args:
        source: Has the certificates.
        make: Makes it from the files as they are.
    """

    def __init__(self, source: TlsSource, make: Callable[[], ssl.SSLContext]) -> None:
        self._source = source
        self._make = make
        self._generation = 0
        self._made: ssl.SSLContext | None = None  # until it is used

    def current(self) -> ssl.SSLContext:
        """The context for the next handshake.

        Raises:
            OSError: It was never made, and the files cannot be used. An `ssl.SSLError` is one.
        """
        generation = self._source.generation
        if generation != self._generation:
            # The ssl module reads certificates only from files. If they are changing again at this moment, the old
            # context stays, and the next handshake tries again.
            try:
                self._made = self._make()
                self._generation = generation
            except (ssl.SSLError, OSError):
                if self._made is None:
                    raise
        assert self._made is not None
        return self._made


def _dialing_context(source: TlsSource) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    return _filled(context, source)


def _accepting_context(source: TlsSource, *, asks: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    context.num_tickets = 0  # each connection is checked in full
    return _filled(context, source)


def _filled(context: ssl.SSLContext, source: TlsSource) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # As gRPC does it: a file with the certificate of an intermediate authority is enough.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _, material = source.current()
    context.load_verify_locations(cadata=material.ca.decode("ascii"))
    if source.files.cert is not None:
        context.load_cert_chain(source.files.cert, source.files.key)
    return context
