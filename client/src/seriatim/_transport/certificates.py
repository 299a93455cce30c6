"""A client's certificates in the form for gRPC, and clear reasons for failed TLS connections."""

from __future__ import annotations

import logging
import re
import ssl
from typing import Any, Final

import grpc
from seriatim_api import tls
from seriatim_api.errors import PreconditionError
from seriatim_api.tls_contexts import TlsContexts

from seriatim._tls import Tls

_PREAMBLE: Final = re.compile(
    r"^failed to connect to all addresses; last error: [A-Z]+: ipv[46]:[^ ]*: (?:Failed to connect to remote host: )?"
)
_SYSTEM_CALL: Final = re.compile(r"^(?:recvmsg|sendmsg|getsockopt\(SO_ERROR\)): ?(.*?)(?: \(\d+\))?$")

_CLOSED: Final = "Socket closed"
"""gRPC's only detail if a client with plain text connects to a broker with TLS."""

MAY_ASK_FOR_TLS: Final = "does the broker ask for TLS?"
"""The end of the reason if a client with plain text was cut off in the middle of the handshake."""

_log = logging.getLogger("seriatim")


class Certificates:
    """Makes gRPC's credentials from the files.

    Raises:
        PreconditionError: The files cannot be used; the text says why and what to do.
    """

    def __init__(self, asked: Tls) -> None:
        self.shows_certificate = asked.cert is not None
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


def _tell_change(refused: PreconditionError | None) -> None:
    if refused is not None:
        _log.warning("the changed certificates cannot be used, so the old ones stay in use: %s", refused.message)


def explain(details: str | None, certificates: Certificates | None) -> tuple[str, bool]:
    """Why a call failed, and whether TLS is the cause.

    It leaves gRPC's preamble out, which names the address two more times, and the names and numbers of system calls.
    """
    text = details or "no reason given"
    reason = _SYSTEM_CALL.sub(r"\1", _PREAMBLE.sub("", text))
    if certificates is None:
        is_cut = reason != text and _CLOSED in reason
        return (f"{reason}; {MAY_ASK_FOR_TLS}" if is_cut else reason), False
    cause = tls.explain(text, shows_certificate=certificates.shows_certificate)
    return cause or reason, cause is not None
