"""A client's certificates, as gRPC wants them; and what gRPC says of other people's, in words that help."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

import grpc
from seriatim_api.errors import PreconditionError
from seriatim_api.tls import TlsSource

from seriatim._tls import Tls

_PREAMBLE: Final = re.compile(
    r"^failed to connect to all addresses; last error: [A-Z]+: ipv[46]:[^ ]*: (?:Failed to connect to remote host: )?"
)

_CAUSES: Final = (
    ("certificate has expired", "the broker's certificate has expired"),
    ("certificate is not yet valid", "the broker's certificate is not valid yet: do the clocks agree?"),
    ("CERTIFICATE_VERIFY_FAILED", "the broker's certificate was not issued by the CA that was given"),
    (
        "Hostname Verification Check failed",
        "the broker's certificate is for other names than the one that was dialed",
    ),
    ("WRONG_VERSION_NUMBER", "the broker does not speak TLS on this port"),
)
"""Words of gRPC, or of the library below it, and what they mean; the first that fits."""

_CLOSED: Final = "Socket closed"
"""All that a server says to a client whose certificate it does not accept, or that speaks plain text to TLS."""

_log = logging.getLogger("seriatim")


class Certificates:
    """The files' content, as gRPC's credentials.

    Raises:
        PreconditionError: The files cannot be used; the text says why and what to do.
    """

    def __init__(self, tls: Tls) -> None:
        self.shows_certificate = tls.cert is not None
        self._source = TlsSource(tls.files, _tell_change)
        self._options = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()

    @property
    def generation(self) -> int:
        """Grows when the files have changed."""
        return self._source.generation

    def credentials(self) -> tuple[Any, tuple[tuple[str, str], ...]]:
        """For a new channel: the credentials, and options."""
        _, material = self._source.current()
        return grpc.ssl_channel_credentials(material.ca, material.key, material.cert), self._options


def _tell_change(refused: PreconditionError | None) -> None:
    if refused is not None:
        _log.warning("changed certificates are not used, the old ones are: %s", refused.message)


def explain(details: str | None, certificates: Certificates | None) -> tuple[str, bool]:
    """Why a call failed, and whether TLS is the cause.

    gRPC's preamble, which names the address again, twice, is left out.
    """
    text = details or "no reason given"
    reason = _PREAMBLE.sub("", text)
    if reason == text:
        return text, False  # it was connected
    if certificates is None:
        return (f"{_CLOSED}; does the broker ask for TLS?" if reason == _CLOSED else reason), False
    for words, cause in _CAUSES:
        if words in reason:
            return cause, True
    if reason != _CLOSED:
        return reason, False
    if certificates.shows_certificate:
        return "the broker closed the connection: it probably does not accept the client's certificate", True
    return "the broker closed the connection: it probably asks for a client certificate, and none was given", True
