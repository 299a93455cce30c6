"""Connections to other brokers: in plain text, or with TLS. The certificates may change while the broker runs.

A channel keeps the credentials that it was made with, also when it connects again. So a dialer makes its channels when
it dials. Code that keeps channels reads `generation`, and makes new ones when it has grown.
"""

from __future__ import annotations

from typing import Protocol

import grpc
from seriatim_api.network.tls import TlsSource, explain

from .limits import CHANNEL_OPTIONS


class Transport(Protocol):
    """Makes channels."""

    @property
    def generation(self) -> int:
        """Grows when earlier channels are out of date. Calls on them continue, but new calls must use a new channel."""

    def channel(self, address: str) -> grpc.aio.Channel:
        """A new channel. It connects when it is first used."""

    def tls_failure(self, details: str) -> str | None:
        """Why TLS prevented a connection, by gRPC's text; None if it did not.

        Such a failure says nothing about the process on the other side.
        """


class PlainTransport:
    """Plain text, without TLS."""

    generation = 0

    def channel(self, address: str) -> grpc.aio.Channel:
        """See `Transport.channel`."""
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    def tls_failure(self, details: str) -> str | None:
        """See `Transport.tls_failure`."""
        return None


class TlsTransport:
    """Mutual TLS. The name that is dialed must be one of the names in the other side's certificate."""

    def __init__(self, source: TlsSource) -> None:
        self._source = source
        self._generation, self._credentials = 0, None

    @property
    def generation(self) -> int:
        """See `Transport.generation`."""
        return self._source.generation

    def channel(self, address: str) -> grpc.aio.Channel:
        """See `Transport.channel`."""
        generation, material = self._source.current()
        if generation != self._generation:
            self._credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.cert)
            self._generation = generation
        return grpc.aio.secure_channel(address, self._credentials, options=CHANNEL_OPTIONS)

    def tls_failure(self, details: str) -> str | None:
        """See `Transport.tls_failure`."""
        return explain(details, shows_certificate=self._source.files.cert is not None)


PLAIN = PlainTransport()
