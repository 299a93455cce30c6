"""The certificate authority of a cluster: reads and writes Secrets, issues certificates, and plans their renewal.

This package does not call Kubernetes. Secrets are `{file name: bytes}`. Their layout is that of `kubernetes.io/tls`
Secrets as cert-manager fills them (`tls.crt`, `tls.key`, `ca.crt`), so cert-manager may keep them in place of the
operator.
"""

from .certificates import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    AuthorityUnfitError,
    CertificateParseError,
    Identity,
    KeyMismatchError,
    PkiError,
    load_bundle,
    load_identity,
    write_bundle,
)
from .issuing import (
    DEFAULT_DOMAIN,
    Authority,
    LeafRequest,
    Purpose,
    authority_data,
    authority_id,
    broker_names,
    broker_request,
    client_request,
    load_authority,
    new_authority,
)
from .renewal import (
    HOLD_MAX,
    SETTLE_TIME,
    CertificatePlan,
    HeldSecret,
    RenewalReason,
    authority_ends,
    authority_is_due,
    names_in,
    needs_renewal,
    plan_certificates,
    renewal_due_at,
    trusted_ids,
)

__all__ = [
    "CA_FILE",
    "CERTIFICATE_FILE",
    "DEFAULT_DOMAIN",
    "HOLD_MAX",
    "KEY_FILE",
    "SETTLE_TIME",
    "Authority",
    "AuthorityUnfitError",
    "CertificateParseError",
    "CertificatePlan",
    "HeldSecret",
    "Identity",
    "KeyMismatchError",
    "LeafRequest",
    "PkiError",
    "Purpose",
    "RenewalReason",
    "authority_data",
    "authority_ends",
    "authority_id",
    "authority_is_due",
    "broker_names",
    "broker_request",
    "client_request",
    "load_authority",
    "load_bundle",
    "load_identity",
    "names_in",
    "needs_renewal",
    "new_authority",
    "plan_certificates",
    "renewal_due_at",
    "trusted_ids",
    "write_bundle",
]
