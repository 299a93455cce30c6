"""Writes the certificates of a cluster into Secrets, and reads the operator's own certificate back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..cluster import pki
from ..cluster.brokers import Credentials
from ..cluster.kinds import SECRET
from ..cluster.kube import Api
from ..resources.names import authority_secret_name, tls_secret_name
from ..resources.ownership import tell_owner
from ..resources.secrets import changed_at, is_certificate, is_of_cert_manager, is_ours, secret_files, tls_secret
from ..spec.cluster import BrokerCluster


class SecretTakenError(Exception):
    """A Secret of others has a name that the cluster's certificates need.

    Attributes:
        name: The name of the Secret.
        owner: To whom it belongs: the end of a sentence.
    """

    def __init__(self, name: str, owner: str) -> None:
        """Make the error for the Secret that was found."""
        super().__init__(f"Secret {name} {owner}")
        self.name = name
        self.owner = owner


@dataclass(frozen=True, slots=True)
class Certificates:
    """The result of a pass over the certificates.

    Attributes:
        credentials: The operator's own, for calls to the brokers; None without TLS.
        told: Reason and text of each certificate that was issued, for events.
        next_look_s: Seconds until the next look; None if none is needed.
        broker_names: The names that the brokers' certificate has; None without TLS.
    """

    credentials: Credentials | None
    told: tuple[tuple[str, str], ...] = ()
    next_look_s: float | None = None
    broker_names: frozenset[str] | None = None


async def ensure_certificates(
    api: Api,
    cluster: BrokerCluster,
    domain: str,
    external_hosts: tuple[str, ...] = (),
    settle: timedelta = pki.SETTLE_TIME,
) -> Certificates:
    """Write the certificates that are missing or due.

    Args:
        api: The API.
        cluster: The cluster.
        domain: The DNS domain of the Kubernetes cluster.
        external_hosts: Names and addresses by which clients outside reach the brokers, as far as they are known.
        settle: The time until a written Secret is in use everywhere.

    Raises:
        SecretTakenError: A Secret of others has the name of one that the operator keeps.
        PkiError: An authority or a Secret that the user or cert-manager keeps cannot be used.
        KubeError: The API refuses a call or does not answer. Secrets before it are written.
    """
    if not cluster.spec.tls.enabled:
        return Certificates(None)
    now = datetime.now(UTC)
    told: list[tuple[str, str]] = []
    life = timedelta(days=cluster.spec.tls.certificate_days)
    authority = await _authority(api, cluster, domain, external_hosts, now, told)
    brokers, clients, operator = (tls_secret_name(cluster.name, role) for role in ("broker", "client", "operator"))
    wanted = {
        brokers: pki.broker_request(cluster.name, cluster.namespace, life, domain, external_hosts),
        clients: pki.client_request(cluster.name, cluster.namespace, "client", life),
        operator: pki.client_request(cluster.name, cluster.namespace, "operator", life),
    }
    held: dict[str, pki.HeldSecret] = {}
    for name in list(wanted):
        found = await api.get(SECRET, cluster.namespace, name)
        if found is None:
            continue
        held[name] = pki.HeldSecret(secret_files(found), changed_at(found))
        if not is_ours(found, cluster):
            if not is_certificate(found) and not is_of_cert_manager(found):
                raise SecretTakenError(name, tell_owner(found))
            del wanted[name]  # the user or cert-manager keeps it: the operator only reads it
    plan = pki.plan_certificates(authority, wanted, {name: held[name] for name in wanted if name in held}, now, settle)
    for name, secret in plan.writes.items():
        await api.apply(tls_secret(cluster, name, secret.data, secret.changed_at))
        if name in plan.reasons:
            told.append(("CertificateIssued", f"issued the certificate in Secret {name}, because {plan.reasons[name]}"))
    mine = (plan.writes.get(operator) or held[operator]).data
    next_look_s = (plan.next_look_at - now).total_seconds() if plan.next_look_at is not None else None
    names = pki.names_in((plan.writes.get(brokers) or held[brokers]).data)
    return Certificates(_credentials(cluster, mine), tuple(told), next_look_s, names)


def _credentials(cluster: BrokerCluster, files: Mapping[str, bytes]) -> Credentials:
    missing = [file for file in (pki.CA_FILE, pki.CERTIFICATE_FILE, pki.KEY_FILE) if not files.get(file)]
    if missing:
        name = tls_secret_name(cluster.name, "operator")
        raise pki.CertificateParseError(f"Secret {name}", f"it has no {', '.join(missing)}")
    return Credentials(
        ca=files[pki.CA_FILE],
        certificate=files[pki.CERTIFICATE_FILE],
        key=files[pki.KEY_FILE],
        server_name=f"{cluster.name}.{cluster.namespace}.svc",
    )


async def _authority(
    api: Api,
    cluster: BrokerCluster,
    domain: str,
    external_hosts: tuple[str, ...],
    now: datetime,
    told: list[tuple[str, str]],
) -> pki.Authority:
    given = cluster.spec.tls.ca_secret
    name = given or authority_secret_name(cluster.name)
    found = await api.get(SECRET, cluster.namespace, name)
    if found is None and given:
        raise pki.CertificateParseError(
            f"Secret {given}",
            "there is no Secret of that name. Remedy: make it with tls.crt and tls.key of your authority",
        )
    if found is not None:
        if not (given or is_ours(found, cluster) or is_of_cert_manager(found)):
            # Nothing says that this authority is meant to sign for the cluster.
            meant = "if it is the cluster's authority, name it in spec.tls.caSecret"
            raise SecretTakenError(name, f"{tell_owner(found)} ({meant})")
        authority = pki.load_authority(secret_files(found), now)
        names = (*pki.broker_names(cluster.name, cluster.namespace, domain), *external_hosts)
        may_name, is_theirs = authority.may_name(names), bool(given) or not is_ours(found, cluster)
        if cluster.spec.external is not None and not is_theirs:
            # Not by today's hosts: each new one would mean another authority, and another ca.crt for all clients.
            may_name = authority.may_name_any
        if may_name and (is_theirs or not pki.authority_is_due(authority, now)):
            return authority
        if is_theirs:
            raise pki.AuthorityUnfitError(
                f"the name constraints of the authority in Secret {name} do not permit "
                f"{next(each for each in names if not authority.may_name([each]))}. Remedy: give one that permits it; "
                "for a name inside, set the chart's clusterDomain to the DNS domain of this Kubernetes cluster"
            )
    is_external = cluster.spec.external is not None
    authority = pki.new_authority(cluster.name, cluster.namespace, now, domain, any_name=is_external)
    await api.apply(tls_secret(cluster, name, pki.authority_data(authority), now))
    told.append(("AuthorityMade", f"made a certificate authority in Secret {name}"))
    return authority
