"""Certificates for a cluster on one machine. Each start makes a new CA, and deleting the directory deletes it.

One certificate serves all processes, for the addresses on which they listen, and another one all clients. They are only
for trying things out. The CA's key is thrown away at once, so no certificate can be added.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from seriatim_api.errors import PreconditionError
from seriatim_api.network.tls import TlsFiles

DIRECTORY_NAME: Final = "tls"
"""A directory in the cluster's directory. The client's command finds `ca.crt`, `client.crt` and `client.key` there."""


@dataclass(frozen=True, slots=True)
class LocalTls:
    """The files of the certificates.

    Attributes:
        server: The certificate of brokers and coordinator, with its key and the CA.
        client: The certificate of clients, with its key and the CA.
    """

    server: TlsFiles
    client: TlsFiles

    @property
    def ca(self) -> Path:
        """The CA's certificate."""
        return self.client.ca


def make(directory: Path, hosts: Iterable[str]) -> LocalTls:
    """Write new certificates into `directory`, for processes that listen on `hosts`.

    Raises:
        PreconditionError: The library `trustme`, which makes them, is not installed.
    """
    try:
        import trustme  # only this function needs it
    except ImportError as exc:
        text = "certificates for a local cluster are made by trustme, which is not installed here: pip install trustme"
        raise PreconditionError(text) from exc
    directory.mkdir(mode=0o700, exist_ok=True)
    files = _files(directory)
    authority = trustme.CA(organization_name="a local cluster of Seriatim")
    server = authority.issue_cert("localhost", *sorted(set(hosts)))
    client = authority.issue_cert("client@local.seriatim.dev")
    _write(files.ca, authority.cert_pem.bytes())
    for found, issued in ((files.server, server), (files.client, client)):
        assert found.cert is not None
        assert found.key is not None
        _write(found.cert, b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        _write(found.key, issued.private_key_pem.bytes())
    return files


def _files(directory: Path) -> LocalTls:
    ca = directory / "ca.crt"
    return LocalTls(
        server=TlsFiles(ca, directory / "broker.crt", directory / "broker.key"),
        client=TlsFiles(ca, directory / "client.crt", directory / "client.key"),
    )


def _write(file: Path, content: bytes) -> None:
    """Replace a file. Only its owner may read it."""
    temporary = file.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
    temporary.rename(file)
