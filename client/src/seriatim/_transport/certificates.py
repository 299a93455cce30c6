"""A client's certificates in the forms for gRPC and for streams over TCP. Only a client with TLS loads this module."""

from __future__ import annotations

import ssl
from typing import Any

import grpc
from seriatim_api.errors import PreconditionError
from seriatim_api.network import tls
from seriatim_api.network.tls_contexts import TlsContexts

from seriatim._runtime.logs import guarded
from seriatim._values.tls import Tls

_log = guarded()


class Certificates:
    """Makes gRPC's credentials from the files.

    Raises:
        PreconditionError: The files cannot be used; the text says why and what to do.
    """

    def __init__(self, asked: Tls) -> None:
        self._shows_certificate = asked.cert is not None
        self._source = tls.TlsSource(asked.files, _tell_change)
        self._contexts = TlsContexts(self._source)
        self._server_name = asked.server_name or ""
        self._options = (("grpc.ssl_target_name_override", asked.server_name),) if asked.server_name else ()

    @property
    def generation(self) -> int:
        """A number that grows when the files have changed."""
        return self._source.generation

    def credentials(self) -> tuple[Any, tuple[tuple[str, str], ...]]:
        """The credentials and options for a new channel."""
        _, material = self._source.current()
        return grpc.ssl_channel_credentials(material.ca, material.key, material.cert), self._options

    def dialing(self) -> tuple[ssl.SSLContext, str]:
        """For a new connection without gRPC: the context, and the name to check if it is not the host."""
        return self._contexts.dialing(), self._server_name

    def explain(self, details: str) -> str | None:
        """Why a connection failed, for humans, from gRPC's details; None: TLS is not the cause."""
        return tls.explain(details, shows_certificate=self._shows_certificate)


def _tell_change(refused: PreconditionError | None) -> None:
    if refused is not None:
        _log.warning("the changed certificates cannot be used, so the old ones stay in use: %s", refused.message)
