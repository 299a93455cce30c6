"""TLS on the ports of a broker: credentials that are looked up anew with each handshake.

All ports share one `TlsSource`, so they change together. What is connected stays connected: a change of certificates
is seen by handshakes that come after it, and by nothing else.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Any, Literal

import grpc
import structlog
from seriatim_api.errors import PreconditionError
from seriatim_api.tls import TlsFiles, TlsMaterial, TlsSource

_log = structlog.get_logger(__name__)


def open_source(files: TlsFiles, what: str) -> TlsSource:
    """Read the files, and say in the log when they change.

    Args:
        files: Where they are.
        what: Whose certificates they are, for the log.

    Raises:
        PreconditionError: They cannot be used; the text says why and what to do.
    """

    def on_change(refused: PreconditionError | None) -> None:
        if refused is None:
            _log.info("certificates_reloaded", of=what, files=[str(file) for file in files.all])
        else:
            _log.warning("certificates_not_reloaded", of=what, reason=refused.message, note="the old ones stay in use")

    return TlsSource(files, on_change)


def server_credentials(source: TlsSource, client_auth: Literal["required", "optional"]) -> grpc.ServerCredentials:
    """For a gRPC port; the library asks again before each handshake, from a thread of its own.

    Where client certificates are optional, none is asked for: gRPC for Python knows no state in between, so nobody
    can be told apart there, brokers included.
    """
    shown, material = source.current()

    def changed() -> Any:
        nonlocal shown
        generation, material = source.current()
        if generation == shown:
            return None
        shown = generation
        return _configuration(material)

    return grpc.dynamic_ssl_server_credentials(_configuration(material), changed, client_auth == "required")


def _configuration(material: TlsMaterial) -> Any:
    assert material.cert is not None
    return grpc.ssl_server_certificate_configuration([(material.key, material.cert)], material.ca)


def admin_context(source: TlsSource) -> ssl.SSLContext:
    """For the admin port, which asks for no certificate."""
    shown, context = source.generation, _admin_context(source.files)
    outer = _admin_context(source.files)

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in each handshake, with or without a name from the client."""
        nonlocal shown, context
        generation = source.generation
        if generation != shown:
            # This module takes no bytes, only files, and they may be changing again: then the next handshake tries.
            with contextlib.suppress(ssl.SSLError, OSError):
                context = _admin_context(source.files)
                shown = generation
        connection.context = context

    outer.sni_callback = choose
    return outer


def _admin_context(files: TlsFiles) -> ssl.SSLContext:
    assert files.cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.cert, files.key)
    return context
