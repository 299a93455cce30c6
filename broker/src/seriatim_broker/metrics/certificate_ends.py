"""When the certificates of a broker end, for the metrics.

It reads only the field `notAfter` (RFC 5280, section 4.1.2.5), for which the standard library has no function.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from seriatim_api.network.tls import TlsSource

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0


class CertificateEnds:
    """The ends of the certificates that a `TlsSource` has now. They are read once for each change of the files."""

    def __init__(self, source: TlsSource) -> None:
        self._source = source
        self._generation = 0
        self._ends: dict[str, float] = {}

    def all(self) -> dict[str, float]:
        """Unix times by certificate: `own` and `authority`, each the first one to end of its file."""
        generation, material = self._source.current()
        if generation != self._generation:
            files = {"own": material.cert, "authority": material.ca}
            self._ends = {name: first_end(pem) for name, pem in files.items() if pem is not None}
            self._generation = generation
        return self._ends


def first_end(pem: bytes) -> float:
    """When the first of the certificates ends, as Unix time in seconds.

    Args:
        pem: One or more certificates, which were checked.
    """
    text = pem.decode("ascii", "replace")
    blocks = [part.partition(_END)[0] for part in text.split(_BEGIN)[1:]]
    return min(_end(ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{block}{_END}\n")) for block in blocks)


def _end(der: bytes) -> float:
    certificate = next(_elements(der))[1]
    fields = list(_elements(next(_elements(certificate))[1]))
    has_version = fields[0][0] == _VERSION
    validity = fields[4 if has_version else 3][1]  # after serial number, algorithm and issuer
    kind, value = list(_elements(validity))[1]
    written = value.decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year: 50 to 99 are those of the century before
        written = ("19" if written >= "50" else "20") + written
    return datetime.strptime(written, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of a DER sequence: each one's tag and content."""
    place = 0
    while place < len(der):
        tag, length, place = der[place], der[place + 1], place + 2
        if length & 0x80:
            width = length & 0x7F
            length, place = int.from_bytes(der[place : place + width], "big"), place + width
        yield tag, der[place : place + length]
        place += length
