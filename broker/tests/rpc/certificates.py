"""Certificates for tests: written as files, as an issuer of certificates writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import trustme
from seriatim_api.network.tls import TlsFiles

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
LESS_LONG_AGO = datetime(2002, 1, 1, tzinfo=UTC)


def write(directory: Path, authority: trustme.CA, *names: str, expired: bool = False) -> TlsFiles:
    """A certificate for `names`, its key, and the CA as the one to believe. Replaces what is there."""
    directory.mkdir(exist_ok=True)
    files = TlsFiles(directory / "ca.crt", directory / "tls.crt", directory / "tls.key")
    issued = authority.issue_cert(
        *names, not_before=LONG_AGO if expired else None, not_after=LESS_LONG_AGO if expired else None
    )
    authority.cert_pem.write_to_path(str(files.ca))
    issued.cert_chain_pems[0].write_to_path(str(files.cert))
    issued.private_key_pem.write_to_path(str(files.key))
    return files
