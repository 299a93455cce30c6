"""The cluster's own certificate authority, the certificates of its programs, and their kubeconfigs.

Made once for each cluster. A program's user and groups are its certificate's CN and Os, as Kubernetes reads them.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tools.kubernetes.layout import (
    API_PORT,
    CLUSTER_DOMAIN,
    CONTROL_ADDRESS,
    KUBERNETES_SERVICE_ADDRESS,
    Layout,
)

VALID: Final = datetime.timedelta(days=365)
BACKDATED: Final = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a program of the cluster is.

    Attributes:
        name: The files' name.
        user: Its user (CN).
        groups: Its groups (O).
        hosts: Names and addresses at which it serves.
    """

    name: str
    user: str
    groups: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1")


def identities(layout: Layout) -> list[Identity]:
    """Every program that has a certificate."""
    service = "kubernetes.default.svc"
    api_names = ("localhost", "kubernetes", "kubernetes.default", service, f"{service}.{CLUSTER_DOMAIN}")
    return [
        Identity("apiserver", "kube-apiserver", hosts=(*api_names, CONTROL_ADDRESS, KUBERNETES_SERVICE_ADDRESS)),
        Identity("apiserver-kubelet", "kube-apiserver-kubelet-client", ("system:masters",)),
        Identity("admin", "admin", ("system:masters",)),
        Identity("controller-manager", "system:kube-controller-manager"),
        Identity("scheduler", "system:kube-scheduler"),
        Identity("proxy", "system:kube-proxy"),
        Identity("dns", "system:coredns"),
        *(
            Identity(node.name, f"system:node:{node.name}", ("system:nodes",), (node.name, node.address))
            for node in layout.nodes
        ),
    ]


def create(layout: Layout) -> None:
    """Make what is not there: the CA, all certificates, the key of ServiceAccount tokens, all kubeconfigs."""
    layout.pki.mkdir(parents=True, exist_ok=True)
    layout.pki.chmod(0o700)
    if not (layout.pki / "ca.crt").exists():
        _create_authority(layout.pki)
    if not (layout.pki / "service-accounts.key").exists():
        _create_service_account_key(layout.pki)
    for identity in identities(layout):
        if not (layout.pki / f"{identity.name}.crt").exists():
            _issue(layout.pki, identity)
        path = layout.kubeconfig_of(identity.name)
        _write_private(path, kubeconfig(layout, identity.name).encode())


def kubeconfig(layout: Layout, name: str) -> str:
    """A kubeconfig for one of the identities; it refers to the files in the state directory."""
    files = {
        "client-certificate": str(layout.pki / f"{name}.crt"),
        "client-key": str(layout.pki / f"{name}.key"),
    }
    cluster = {
        "server": f"https://{CONTROL_ADDRESS}:{API_PORT}",
        "certificate-authority": str(layout.pki / "ca.crt"),
    }
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "seriatim-e2e", "cluster": cluster}],
            "users": [{"name": name, "user": files}],
            "contexts": [{"name": "seriatim-e2e", "context": {"cluster": "seriatim-e2e", "user": name}}],
            "current-context": "seriatim-e2e",
        },
        sort_keys=False,
    )


def _create_authority(directory: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "seriatim-e2e")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_private(directory / "ca.key", _pem(key))
    (directory / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _issue(directory: Path, identity: Identity) -> None:
    authority = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
    authority_key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, identity.user)])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(subject, authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in identity.hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    _write_private(directory / f"{identity.name}.key", _pem(key))
    (directory / f"{identity.name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _create_service_account_key(directory: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (directory / "service-accounts.pub").write_bytes(public)
    _write_private(directory / "service-accounts.key", _pem(key))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALID)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(data)
