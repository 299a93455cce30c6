"""The certificate authority of a cluster, and the certificates that it issues.

An authority that the operator makes has name constraints: it can sign only names of this cluster's brokers. So an
attacker who steals its key can pretend to be these brokers, but no other server, to peers that trust the
authority.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .certificates import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    AuthorityUnfitError,
    Identity,
    PrivateKey,
    fingerprint,
    load_bundle,
    load_identity,
    write_bundle,
)

AUTHORITY_LIFE: Final = timedelta(days=3650)
DEFAULT_DOMAIN: Final = "cluster.local"
"""The DNS domain of a Kubernetes cluster, unless its administrator chose another (the kubelet's `clusterDomain`)."""

CLOCK_SKEW: Final = timedelta(minutes=5)
"""How far a peer's clock may be behind while the peer still accepts a new certificate."""

_COMMON_NAME_SIZE_MAX: Final = 64
"""The limit of X.520. The library refuses a longer name."""


class Purpose(enum.Enum):
    """The use of a leaf. A broker is a TLS server for clients, and a TLS client of its peers."""

    BROKER = "broker"
    CLIENT = "client"


@dataclass(frozen=True)
class LeafRequest:
    """A wanted certificate.

    Attributes:
        common_name: A name for humans. TLS checks only the names below.
        purpose: Decides the extended key usage.
        uri: The identity of the holder as a URI, so that rights can depend on the certificate.
        life: The time from now to its end. It ends no later than the authority.
        dns_names: The names by which peers connect to a server.
        addresses: The IP addresses by which they do.
    """

    common_name: str
    purpose: Purpose
    uri: str
    life: timedelta
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """All subject alternative names as texts."""
        return frozenset((*self.dns_names, *self.addresses, self.uri))

    def without(self, names: Iterable[str]) -> LeafRequest:
        """The same certificate without some names."""
        left_out = frozenset(names)
        return replace(
            self,
            dns_names=tuple(name for name in self.dns_names if name not in left_out),
            addresses=tuple(address for address in self.addresses if address not in left_out),
        )


def broker_names(cluster: str, namespace: str, domain: str = DEFAULT_DOMAIN) -> tuple[str, ...]:
    """The names by which peers and clients connect to brokers. `localhost` is for clients behind a port-forward.

    Args:
        cluster: The cluster's name.
        namespace: The cluster's namespace.
        domain: The DNS domain of the Kubernetes cluster.
    """
    brokers, clients = _services(cluster, namespace)
    return *(f"*.{name}" for name in _with_domain(brokers, domain)), *_with_domain(clients, domain), "localhost"


def broker_request(
    cluster: str,
    namespace: str,
    life: timedelta,
    domain: str = DEFAULT_DOMAIN,
    external_hosts: Iterable[str] = (),
) -> LeafRequest:
    """The one certificate that all brokers of a cluster share.

    Args:
        cluster: The cluster's name.
        namespace: The cluster's namespace.
        life: For how long the certificate is valid.
        domain: The DNS domain of the Kubernetes cluster.
        external_hosts: DNS names and IP addresses by which clients outside connect to brokers.
    """
    outside = sorted(set(external_hosts))
    return LeafRequest(
        common_name=_common_name(f"{cluster} brokers"),
        purpose=Purpose.BROKER,
        uri=_uri(cluster, namespace, "broker"),
        life=life,
        dns_names=(
            *broker_names(cluster, namespace, domain),
            *(host.lower() for host in outside if _as_address(host) is None),
        ),
        addresses=tuple(str(address) for host in outside if (address := _as_address(host)) is not None),
    )


def client_request(cluster: str, namespace: str, role: str, life: timedelta) -> LeafRequest:
    """A certificate for a client; `role` is `client` or `operator`."""
    return LeafRequest(_common_name(f"{cluster} {role}"), Purpose.CLIENT, _uri(cluster, namespace, role), life)


@dataclass(frozen=True)
class Authority:
    """The authority that signs the certificates of a cluster.

    Attributes:
        identity: The authority's certificate and key.
        parents: Certificates above it, which peers must trust as well; empty for an authority of the operator's own.
    """

    identity: Identity
    parents: tuple[x509.Certificate, ...] = ()

    @property
    def certificate(self) -> x509.Certificate:
        """The certificate that signs."""
        return self.identity.certificate

    @property
    def id(self) -> str:
        """Names the authority in annotations and messages."""
        return authority_id(self.certificate)

    @property
    def may_name_any(self) -> bool:
        """Whether no certificate of the chain has name constraints."""
        chain = (self.certificate, *self.identity.intermediates, *self.parents)
        return not any(_constraints(each) for each in chain)

    def may_name(self, names: Iterable[str]) -> bool:
        """Whether peers would accept a certificate with these names. A name that is not permitted makes it invalid."""
        chain = (self.certificate, *self.identity.intermediates, *self.parents)
        return all(_permits(authority, name) for authority in chain for name in names)

    @property
    def anchors(self) -> tuple[x509.Certificate, ...]:
        """The certificates for the `ca.crt` of peers that must trust this authority."""
        found = {fingerprint(each): each for each in (self.certificate, *self.identity.intermediates, *self.parents)}
        return tuple(found.values())

    def issue(self, request: LeafRequest, now: datetime) -> Identity:
        """Make a new key and a certificate for it. The certificate ends no later than the authority's."""
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if request.purpose is Purpose.BROKER:
            purposes.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in request.dns_names]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in request.addresses]
        names.append(x509.UniformResourceIdentifier(request.uri))
        signer = self.certificate
        builder = (
            _builder(request.common_name, key.public_key(), now)
            .issuer_name(signer.subject)
            .not_valid_after(min(now + request.life, signer.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_key_identifier_of(signer), critical=False)
        )
        between = tuple(each for each in (signer, *self.identity.intermediates) if each.subject != each.issuer)
        return Identity(_sign(builder, self.identity.key), key, between)


def authority_id(certificate: x509.Certificate) -> str:
    """The first 16 hexadecimal digits of the certificate's SHA-256."""
    return fingerprint(certificate).hex()[:16]


def new_authority(
    cluster: str, namespace: str, now: datetime, domain: str = DEFAULT_DOMAIN, *, any_name: bool = False
) -> Authority:
    """Make an authority for the cluster, self-signed and valid for 3650 days.

    Args:
        cluster: The cluster's name.
        namespace: The cluster's namespace.
        now: The time.
        domain: The DNS domain of the Kubernetes cluster.
        any_name: No name constraints: clients outside reach brokers by hosts that are not known yet.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    # With the date in the name, administrators and libraries can distinguish an authority from its successor.
    name = _common_name(f"{cluster} authority {now:%Y-%m-%dT%H%M%SZ}")
    builder = (
        _builder(name, key.public_key(), now)
        .issuer_name(_subject(name))
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    if not any_name:
        builder = builder.add_extension(_name_constraints(cluster, namespace, domain), critical=True)
    return Authority(Identity(_sign(builder, key), key))


def load_authority(data: Mapping[str, bytes], now: datetime) -> Authority:
    """The authority in a Secret: the operator's own, or one that the user gives.

    Raises:
        CertificateParseError: A file is missing or damaged.
        KeyMismatchError: The key does not belong to the certificate.
        AuthorityUnfitError: The certificate may not sign others, or its time is over.
    """
    identity = load_identity(data)
    certificate = identity.certificate
    if not _may_sign(certificate):
        raise AuthorityUnfitError(
            "tls.crt is not an authority (basic constraints CA:TRUE, key usage keyCertSign). Remedy: give the Secret "
            "of an authority, not that of a server"
        )
    if certificate.not_valid_after_utc <= now:
        raise AuthorityUnfitError(
            f"tls.crt ended on {certificate.not_valid_after_utc:%Y-%m-%d}. Remedy: write a new one into the Secret"
        )
    parents = load_bundle(data) if data.get(CA_FILE, b"").strip() else ()
    return Authority(identity, parents)


def authority_data(authority: Authority) -> dict[str, bytes]:
    """The files of the Secret for an authority of the operator's own."""
    return {
        CERTIFICATE_FILE: authority.identity.certificate_pem,
        KEY_FILE: authority.identity.key_pem,
        CA_FILE: write_bundle(authority.anchors),
    }


def _builder(name: str, key: ec.EllipticCurvePublicKey, now: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _sign(builder: x509.CertificateBuilder, key: PrivateKey) -> x509.Certificate:
    # Ed25519 has its own hash, and the library raises an error if a hash is named.
    return builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def _subject(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Seriatim"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _common_name(text: str) -> str:
    return text[:_COMMON_NAME_SIZE_MAX]


def _uri(cluster: str, namespace: str, role: str) -> str:
    return f"seriatim://{namespace}/{cluster}/{role}"


def _services(cluster: str, namespace: str) -> tuple[str, str]:
    return f"{cluster}-brokers.{namespace}.svc", f"{cluster}.{namespace}.svc"


def _with_domain(service: str, domain: str) -> tuple[str, str]:
    return service, f"{service}.{domain}"


def _permits(authority: x509.Certificate, name: str) -> bool:
    """Whether the authority's name constraints permit the name (RFC 5280, 4.2.1.10). Without any, every name is."""
    constraints = _constraints(authority)
    if constraints is None:
        return True
    address = _as_address(name)
    if address is not None:
        inside, outside = map(_networks, (constraints.permitted_subtrees, constraints.excluded_subtrees))
        return (not inside or any(address in net for net in inside)) and not any(address in net for net in outside)
    permitted, excluded = map(_dns_names, (constraints.permitted_subtrees, constraints.excluded_subtrees))
    return (not permitted or _is_below(name, permitted)) and not _is_below(name, excluded)


def _constraints(certificate: x509.Certificate) -> x509.NameConstraints | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return None


def _as_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _networks(subtrees: Iterable[x509.GeneralName] | None) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    values = [each.value for each in subtrees or () if isinstance(each, x509.IPAddress)]
    return [value for value in values if isinstance(value, (ipaddress.IPv4Network, ipaddress.IPv6Network))]


def _dns_names(subtrees: Iterable[x509.GeneralName] | None) -> list[str]:
    return [each.value for each in subtrees or () if isinstance(each, x509.DNSName)]


def _is_below(name: str, subtrees: Iterable[str]) -> bool:
    dotted = f".{name.removeprefix('*.').lower()}"
    return any(dotted.endswith(f".{each.removeprefix('.').lower()}") for each in subtrees)


def _name_constraints(cluster: str, namespace: str, domain: str) -> x509.NameConstraints:
    services = _services(cluster, namespace)
    permitted: list[x509.GeneralName] = [x509.DNSName(name) for each in services for name in _with_domain(each, domain)]
    permitted.append(x509.DNSName("localhost"))
    # A type of name without a constraint is permitted, so IP addresses are limited to the loopback ones.
    permitted.append(x509.IPAddress(ipaddress.ip_network("127.0.0.0/8")))
    permitted.append(x509.IPAddress(ipaddress.ip_network("::1/128")))
    return x509.NameConstraints(permitted, None)


def _key_usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _key_identifier_of(signer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        identifier = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:  # a user's own authority may have none
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier.value)


def _may_sign(certificate: x509.Certificate) -> bool:
    extensions = certificate.extensions
    try:
        if not extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
    except x509.ExtensionNotFound:
        return False
    try:
        return extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        return True
