"""Checks of the certificates: whether they can be read, when they end, and whether all trust each other."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from cryptography import x509

from ..cluster.pki import CA_FILE, PkiError, load_bundle, load_identity
from ..cluster.pki.certificates import is_issued_by
from ..resources.names import tls_secret_name
from ..resources.ownership import tell_owner
from ..resources.secrets import is_ours, secret_files
from ..spec.cluster import BrokerCluster
from .findings import Finding, bad, unknown, warning, well
from .look import Look, secret_names

SOON: Final = timedelta(days=14)
"""The operator renews a certificate of 90 days when 30 days are left. With fewer than 14 left, it was not renewed."""


def check_certificates(look: Look) -> list[Finding]:
    """Check all Secrets with certificates that the cluster uses, and whether they trust each other."""
    names = secret_names(look.cluster)
    if not names:
        return [warning("certificates", "the cluster does not use TLS", "make a new cluster with tls.enabled")]
    if "Secret" in look.unreadable:
        return [unknown("certificates", "you may not read Secrets", "ask an administrator who may")]
    findings = [finding for name in names for finding in _check_secret(look, name)]
    return findings + _check_trust(look)


def _check_secret(look: Look, name: str) -> list[Finding]:
    about = f"Secret {name}"
    secret = look.secrets.get(name)
    given = name in (look.cluster.spec.tls.ca_secret, look.cluster.spec.etcd.tls_secret)
    if secret is None:
        remedy = "make it with tls.crt and tls.key" if given else "kubectl logs of the operator"
        return [bad(about, "it is not there", remedy)]
    try:
        certificate = load_identity(secret_files(secret)).certificate
    except PkiError as exc:
        return [bad(about, str(exc), remedy_unreadable(look.cluster, secret))]
    left = certificate.not_valid_after_utc - look.now
    ends = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    renew = "kubectl logs of the operator" if is_ours(secret, look.cluster) else "renew it where you made it"
    if left <= timedelta(0):
        return [bad(about, f"its certificate ended on {ends}", renew)]
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    if left < min(SOON, life / 4):
        return [warning(about, f"its certificate ends on {ends}, in {left.days} days", renew)]
    return [well(about, f"until {ends}")]


def remedy_unreadable(cluster: BrokerCluster, secret: Mapping[str, Any]) -> str:
    """What to do about a Secret whose content cannot be used. Only one that the operator made may be deleted."""
    if secret["metadata"]["name"] in (cluster.spec.tls.ca_secret, cluster.spec.etcd.tls_secret):
        return "rewrite it"
    if is_ours(secret, cluster):
        return "delete it: its labels say that the operator made it for this cluster, and will recreate it"
    return f"the operator did not make it: ask its owner, because it {tell_owner(secret)}"


def _check_trust(look: Look) -> list[Finding]:
    """Check that brokers, clients and the operator trust each other's certificates."""
    if not look.cluster.spec.tls.enabled:
        return []
    bundles: dict[str, tuple[x509.Certificate, ...]] = {}
    leaves: dict[str, x509.Certificate] = {}
    for role in ("broker", "client", "operator"):
        name = tls_secret_name(look.cluster.name, role)
        try:
            files = secret_files(look.secrets[name])
            bundles[name], leaves[name] = load_bundle(files, CA_FILE), load_identity(files).certificate
        except (KeyError, PkiError):
            return []  # `_check_secret` has a finding about this Secret
    broker = tls_secret_name(look.cluster.name, "broker")
    findings = [
        bad(f"Secret {mine}", f"its {CA_FILE} does not trust the certificate in {theirs}", _TRUST_REMEDY)
        for mine in bundles
        for theirs in leaves
        if broker in (mine, theirs) and not _is_trusted(leaves[theirs], bundles[mine])
    ]
    return findings or [well("trust", "brokers, clients and operator trust each other")]


def _is_trusted(leaf: x509.Certificate, bundle: tuple[x509.Certificate, ...]) -> bool:
    return any(is_issued_by(leaf, authority) for authority in bundle)


_TRUST_REMEDY = "let one certificate authority issue all three (spec.tls.caSecret, or one cert-manager issuer for all)"
