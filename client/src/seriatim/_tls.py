"""TLS between a client and brokers, as users say it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from seriatim_api.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Tls:
    """Speak TLS. The files are PEM, and read again when they change; what is connected then stays so.

    The name that is dialed (of the bootstrap, and of each broker's advertised address) must stand in the certificate
    of the broker that answers.

    Attributes:
        ca: Certificates of the CA that issued the brokers' certificates.
        cert: The client's certificate; brokers ask for one unless they were told otherwise.
        key: Its private key, not encrypted; with `cert` or not at all.
        server_name: The name to look for in the brokers' certificates instead of the one that is dialed.
    """

    ca: str | PathLike[str]
    cert: str | PathLike[str] | None = None
    key: str | PathLike[str] | None = None
    server_name: str | None = None

    @property
    def files(self) -> TlsFiles:
        """The files.

        Raises:
            PreconditionError: A certificate without a key, or a key without a certificate.
        """
        return TlsFiles(
            Path(self.ca),
            Path(self.cert) if self.cert is not None else None,
            Path(self.key) if self.key is not None else None,
        )
