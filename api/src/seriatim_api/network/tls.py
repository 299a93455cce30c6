"""Reads and checks certificates in files, and reads them again when they change. All programs with connections use it.

Certificates are replaced while programs run, by their issuer or by a kubelet that swaps the directory of a Secret. So
no program keeps the bytes. When it opens or accepts a connection, it asks a `TlsSource` for the present certificates.

A `TlsSource` looks at the files when it is asked, at most once a second. It takes new files only if certificate and key
belong together, and reports that once. If a pair is half written, the old one stays in use.

This module uses only the standard library and not gRPC. Its users make gRPC's credentials from the bytes.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from seriatim_api.errors import PreconditionError

CHECK_INTERVAL_S: Final = 1.0
"""The least seconds between two looks at the files. Hundreds of connections may come at once, and a look takes three
system calls."""

NOT_CONNECTED: Final = "failed to connect to all addresses"
"""The beginning of gRPC's details if no connection could be made."""

_ENDED: Final = ("Socket closed", "Unwrap failed")
"""gRPC's details if the other side does not accept our certificate. In TLS 1.3 the other side says so only after our
handshake has ended. gRPC's own servers close the socket without a reason. etcd sends an alert, which gRPC drops."""

_CAUSES: Final = (
    ("certificate has expired", "the other side's certificate has expired"),
    ("certificate is not yet valid", "the other side's certificate is not valid yet: do the clocks agree?"),
    ("CERTIFICATE_VERIFY_FAILED", "the other side's certificate was not issued by the CA that was given"),
    ("Hostname Verification", "the other side's certificate is for other names than the one that was dialed"),
    ("WRONG_VERSION_NUMBER", "the other side does not speak TLS on this port"),
    ("handshake failed", "the two sides could not agree on TLS"),
)
"""Words in gRPC's details, and their meaning for humans. The first that fits is used."""

Fingerprint = tuple[tuple[int, int, int], ...]
"""Modification time in nanoseconds, size and inode of each file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of the PEM files.

    Attributes:
        ca: The file with the certificates of the authorities that we trust.
        cert: The file with our own certificate, followed by intermediate ones; None: a client that shows none.
        key: The file with its private key, not encrypted. Given exactly if `cert` is.

    Raises:
        PreconditionError: Only one of `cert` and `key` is given.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise PreconditionError("a certificate and its private key come together: one of the two files is missing")

    @property
    def all(self) -> tuple[Path, ...]:
        """All files that are given."""
        return tuple(file for file in (self.ca, self.cert, self.key) if file is not None)


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The checked content of the files at the time of reading. The key is never printed."""

    ca: bytes
    cert: bytes | None
    key: bytes | None = field(repr=False)


def read(files: TlsFiles) -> TlsMaterial:
    """Read and check the files.

    Raises:
        PreconditionError: A file cannot be read or has the wrong content, or the key belongs to another certificate.
            The text names the file and says what to do.
    """
    material = TlsMaterial(
        ca=_read_file(files.ca),
        cert=_read_file(files.cert) if files.cert is not None else None,
        key=_read_file(files.key) if files.key is not None else None,
    )
    _check_ca(files.ca, material.ca)
    if files.cert is not None and files.key is not None:
        _check_pair(files.cert, files.key)
    return material


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise PreconditionError(
            f"the TLS file {file} cannot be read: {exc.strerror}. Remedy: put it there, readable for this user",
            file=file,
        ) from exc


def _check_ca(file: Path, content: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as exc:
        raise PreconditionError(
            f"{file} holds no CA certificate. Remedy: name the file with the certificates (PEM) of the CA that "
            "issued the other side's certificate",
            file=file,
        ) from exc


def _check_pair(cert: Path, key: Path) -> None:
    def refuse_password() -> bytes:
        raise PreconditionError(f"the private key {key} is encrypted. Remedy: store it without a passphrase", file=key)

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, refuse_password)
    except (ssl.SSLError, OSError) as exc:
        is_other = getattr(exc, "reason", None) == "KEY_VALUES_MISMATCH"
        what = "belong to different keys" if is_other else "are not a certificate and a private key in PEM"
        raise PreconditionError(
            f"{cert} and {key} {what}. Remedy: write both files from one issue of the certificate", file=cert
        ) from exc


class TlsSource:
    """The present content of the files. Any thread may ask.

    Args:
        files: The paths of the files.
        on_change: Called once when new files are taken, with None. Called once when changed files cannot be used, with
            the reason.

    Raises:
        PreconditionError: The files cannot be used now: see `read`.
    """

    def __init__(self, files: TlsFiles, on_change: Callable[[PreconditionError | None], None] | None = None) -> None:
        self.files = files
        self._on_change = on_change
        self._lock = threading.Lock()
        self._taken = _fingerprint(files)
        self._refused: Fingerprint | None = None
        self._checked_at_s = time.monotonic()
        self._material = read(files)
        self._generation = 1

    @property
    def generation(self) -> int:
        """A number that grows each time that new files are taken. It looks at the files first."""
        return self.current()[0]

    def current(self) -> tuple[int, TlsMaterial]:
        """The generation, and the content of the files in it."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._checked_at_s < CHECK_INTERVAL_S:
                return self._generation, self._material
            self._checked_at_s = now_s
            before = self._generation
            refused = self._look()
            found = self._generation, self._material
        if self._on_change is not None and (refused is not None or found[0] != before):
            self._on_change(refused)
        return found

    def _look(self) -> PreconditionError | None:
        """Take the files if they have changed. If changed files cannot be used, return the reason, once."""
        seen = _fingerprint(self.files)
        if seen in (self._taken, self._refused):
            return None
        try:
            material = read(self.files)
        except PreconditionError as exc:
            self._refused = seen
            return exc
        if _fingerprint(self.files) != seen:
            return None  # another program writes them at this moment: the next look decides
        self._taken, self._refused = seen, None
        self._material = material
        self._generation += 1
        return None


def _fingerprint(files: TlsFiles) -> Fingerprint:
    """A value that changes when any file changes. A missing file has its own value."""
    return tuple(_stat(file) for file in files.all)


def _stat(file: Path) -> tuple[int, int, int]:
    try:
        stat = file.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def explain(details: str, *, shows_certificate: bool) -> str | None:
    """Why a connection with TLS could not be made, from gRPC's details; None if TLS is not the cause.

    Args:
        details: The details of the failed call.
        shows_certificate: Whether we showed our own certificate.
    """
    if not details.startswith(NOT_CONNECTED):
        return None
    for words, cause in _CAUSES:
        if words in details:
            return cause
    if not any(words in details for words in _ENDED):
        return None
    if shows_certificate:
        return "the other side closed the connection: it probably does not accept the certificate that was shown"
    return "the other side closed the connection: it probably asks for a certificate, and none was shown"
