"""Reads, checks and writes the certificates and keys in a Secret.

    PkiError
    ├── CertificateParseError   a file is missing, or is not the PEM that it should be
    ├── KeyMismatchError        the key does not belong to the certificate
    └── AuthorityUnfitError     a certificate that is given as an authority may not sign others

The exceptions of `cryptography` do not leave this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
CA_FILE: Final = "ca.crt"

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


class PkiError(Exception):
    """The content of a Secret cannot be used. The text says which file and why."""


class CertificateParseError(PkiError):
    """A file of a Secret is missing, or is not the PEM that it should be."""

    def __init__(self, file: str, problem: str) -> None:
        """Make the error for `file`; `problem` says what is wrong with it."""
        super().__init__(f"{file}: {problem}")
        self.file = file


class KeyMismatchError(PkiError):
    """The private key belongs to another certificate."""


class AuthorityUnfitError(PkiError):
    """A certificate may not sign others, or its time is over."""


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, and the certificates between it and a trusted one.

    Attributes:
        certificate: The leaf, or the authority itself.
        key: The private key of the certificate.
        intermediates: The other certificates in `tls.crt`, in the order of the file.
    """

    certificate: x509.Certificate
    key: PrivateKey
    intermediates: tuple[x509.Certificate, ...] = ()

    @property
    def certificate_pem(self) -> bytes:
        """The content of `tls.crt`."""
        return write_bundle((self.certificate, *self.intermediates))

    @property
    def key_pem(self) -> bytes:
        """The content of `tls.key`: PKCS #8, not encrypted, which every TLS library can read."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def load_identity(data: Mapping[str, bytes]) -> Identity:
    """The certificate and the key in a TLS Secret.

    Raises:
        CertificateParseError: A file is missing or damaged.
        KeyMismatchError: The key does not belong to the first certificate.
    """
    first, *rest = load_bundle(data, CERTIFICATE_FILE)
    key = _load_key(data)
    if _public_bytes(key) != first.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    ):
        raise KeyMismatchError(
            f"{KEY_FILE} is not the key of the first certificate in {CERTIFICATE_FILE}. Remedy: write both together"
        )
    return Identity(first, key, tuple(rest))


def load_bundle(data: Mapping[str, bytes], file: str = CA_FILE) -> tuple[x509.Certificate, ...]:
    """The certificates in one file of a Secret, at least one.

    Raises:
        CertificateParseError: The file is missing, empty or damaged.
    """
    pem = data.get(file, b"")
    if not pem.strip():
        raise CertificateParseError(file, "missing or empty")
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except (ValueError, UnsupportedAlgorithm) as exc:
        raise CertificateParseError(file, f"not PEM certificates ({exc})") from exc


def write_bundle(certificates: Iterable[x509.Certificate]) -> bytes:
    """The certificates as one PEM text, in the given order."""
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def fingerprint(certificate: x509.Certificate) -> bytes:
    """The SHA-256 of a certificate. Two certificates are the same if their fingerprints are equal."""
    return certificate.fingerprint(hashes.SHA256())


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether `issuer`'s key signed `certificate`. Dates and rights are not checked."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _load_key(data: Mapping[str, bytes]) -> PrivateKey:
    pem = data.get(KEY_FILE, b"")
    if not pem.strip():
        raise CertificateParseError(KEY_FILE, "missing or empty")
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        # The library's message may quote what it read. It is left out, because a key must not be logged.
        raise CertificateParseError(KEY_FILE, "not an unencrypted PEM private key") from exc
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey):
        raise CertificateParseError(KEY_FILE, "neither an ECDSA, nor an RSA, nor an Ed25519 key")
    return key


def _public_bytes(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
