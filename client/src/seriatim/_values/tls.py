"""TLS between a client and brokers, as users configure it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from seriatim_api.network.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Tls:
    """The files for TLS, in PEM. The client reads them again when they change. Open connections stay open then.

    The certificate of a broker must contain the name that the client dials: the name in the bootstrap address, and the
    name in each broker's advertised address.

    Attributes:
        ca: The file with the certificates of the CA that issued the brokers' certificates.
        cert: The file with the client's certificate. Brokers ask for one unless they are configured otherwise.
        key: The file with its private key, not encrypted. Given exactly if `cert` is.
        server_name: The name to look for in the brokers' certificates instead of the dialed name.
    """

    ca: str | PathLike[str]
    cert: str | PathLike[str] | None = None
    key: str | PathLike[str] | None = None
    server_name: str | None = None

    @property
    def files(self) -> TlsFiles:
        """The paths of the files.

        Raises:
            PreconditionError: There is a certificate without a key, or a key without a certificate.
        """
        return TlsFiles(
            Path(self.ca),
            Path(self.cert) if self.cert is not None else None,
            Path(self.key) if self.key is not None else None,
        )
