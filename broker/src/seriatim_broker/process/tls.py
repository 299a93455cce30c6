"""TLS on the ports of a broker. Each handshake looks up the newest certificates.

All ports share one `TlsSource`, so they change together. A change of certificates affects only later handshakes:
connections stay as they are.
"""

from __future__ import annotations

import ssl
from typing import Any, Literal

import grpc
import structlog
from seriatim_api.errors import PreconditionError
from seriatim_api.network.tls import TlsFiles, TlsMaterial, TlsSource
from seriatim_api.network.tls_contexts import RenewedContext

_log = structlog.get_logger(__name__)


def open_source(files: TlsFiles, what: str) -> TlsSource:
    """Read the files. The source that this returns reads them again when they change, and logs it.

    Args:
        files: The paths.
        what: The owner of the certificates, for the log.

    Raises:
        PreconditionError: The files cannot be used; the text says why and what to do.
    """

    def on_change(refused: PreconditionError | None) -> None:
        if refused is None:
            _log.info("certificates_reloaded", of=what, files=[str(file) for file in files.all])
        else:
            _log.warning(
                "certificates_not_reloaded", of=what, reason=refused.message, note="the old certificates stay in use"
            )

    return TlsSource(files, on_change)


def server_credentials(source: TlsSource, client_auth: Literal["required", "optional"]) -> grpc.ServerCredentials:
    """Credentials for a gRPC port. gRPC asks for them again before each handshake, from one of its own threads.

    If client certificates are optional, the port asks for none, because gRPC for Python has nothing in between. Then
    the port cannot know which client or broker has connected.
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
    """The TLS context of the admin port, which asks clients for no certificate."""
    outer = _admin_context(source.files)
    newest = RenewedContext(source, lambda: _admin_context(source.files))
    newest.current()

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Take the newest certificates. ssl calls this in each handshake, with or without a name from the client."""
        connection.context = newest.current()

    outer.sni_callback = choose
    return outer


def _admin_context(files: TlsFiles) -> ssl.SSLContext:
    assert files.cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.cert, files.key)
    return context
