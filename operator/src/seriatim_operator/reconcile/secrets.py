"""Writes the certificates of a cluster into Secrets, and reads the operator's own certificate back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..cluster import pki
from ..cluster.brokers import Credentials
from ..cluster.kinds import SECRET
from ..cluster.kube import Api
from ..plan.observed import AuthorityView
from ..resources.names import ANNOTATION_REPLACE_AUTHORITY, authority_secret_name, tls_secret_name
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
        authority: The authority that signs; None without TLS.
        problem: What is wrong with the authority; empty if nothing is.
    """

    credentials: Credentials | None
    told: tuple[tuple[str, str], ...] = ()
    next_look_s: float | None = None
    broker_names: frozenset[str] | None = None
    authority: AuthorityView | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Replacement:
    """What the annotation asks: the id of the authority to replace, and until when brokers continue to show its
    certificates. `problem` says why it is not followed.
    """

    id: str = ""
    until: datetime | None = None
    problem: str = ""

    @classmethod
    def of(cls, cluster: BrokerCluster, now: datetime) -> _Replacement:
        """Read the annotation of the cluster."""
        said = cluster.metadata.annotations.get(ANNOTATION_REPLACE_AUTHORITY, "")
        id_, _, time = said.partition("/")
        if not time:
            return cls(id_)
        try:
            until = datetime.fromisoformat(time)
        except ValueError:
            until = None
        if until is None or until.tzinfo is None:
            return cls(problem=f"{time[:40]!r} is no time with a time zone, such as 2026-12-31T12:00:00Z")
        if until > now + pki.HOLD_MAX:
            return cls(problem=f"{time[:40]} is more than {pki.HOLD_MAX.days} days away")
        return cls(id_, until)


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
    asked = _Replacement.of(cluster, now)
    authority, is_theirs = await _authority(api, cluster, domain, asked, now, told)
    brokers, clients, operator = (tls_secret_name(cluster.name, role) for role in ("broker", "client", "operator"))
    request = pki.broker_request(cluster.name, cluster.namespace, life, domain, external_hosts)
    # A name that it may not give makes a certificate invalid as a whole.
    refused = tuple(name for name in (*request.dns_names, *request.addresses) if not authority.may_name([name]))
    wanted = {
        brokers: request.without(refused),
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
    mine_held = {name: held[name] for name in wanted if name in held}
    is_held = asked.until is not None and asked.id in pki.trusted_ids(mine_held.values()) and asked.id != authority.id
    plan = pki.plan_certificates(authority, wanted, mine_held, now, settle, asked.until if is_held else None)
    for name, secret in plan.writes.items():
        await api.apply(tls_secret(cluster, name, secret.data, secret.changed_at))
        if name in plan.reasons:
            told.append(("CertificateIssued", f"issued the certificate in Secret {name}, because {plan.reasons[name]}"))
    mine = (plan.writes.get(operator) or held[operator]).data
    next_look_s = (plan.next_look_at - now).total_seconds() if plan.next_look_at is not None else None
    names = pki.names_in((plan.writes.get(brokers) or held[brokers]).data)
    view = AuthorityView(
        id=authority.id,
        ends_at=authority.certificate.not_valid_after_utc,
        is_due=not is_theirs and pki.authority_is_due(authority, now),
        is_ours=not is_theirs,
        former=tuple(pki.authority_id(each) for each in plan.former),
        reissue_at=plan.reissue_at,
        forget_at=plan.forget_at,
        refused_names=refused,
        not_followed=asked.problem,
    )
    problem = _problem_of(cluster, domain, view)
    return Certificates(_credentials(cluster, mine), tuple(told), next_look_s, names, view, problem)


def _problem_of(cluster: BrokerCluster, domain: str, view: AuthorityView) -> str:
    """What is wrong with the authority. Hosts outside that the operator's own may not name are reported elsewhere."""
    inside = pki.broker_names(cluster.name, cluster.namespace, domain)
    refused = [name for name in view.refused_names if name in inside or not view.is_ours]
    if not refused:
        return ""
    whose = "the operator's own authority" if view.is_ours else "your authority"
    remedy = (
        f"set the chart's clusterDomain to the DNS domain of this Kubernetes cluster, or, if it is {domain}, replace "
        f"the authority: annotate the BrokerCluster with {ANNOTATION_REPLACE_AUTHORITY}={view.id}"
        if view.is_ours
        else "give one that permits it"
    )
    return f"the name constraints of {whose} do not permit {refused[0]}. Remedy: {remedy}"


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
    asked: _Replacement,
    now: datetime,
    told: list[tuple[str, str]],
) -> tuple[pki.Authority, bool]:
    """The authority that signs, and whether the operator only reads it.

    The operator makes another one only if there is none, if an administrator names the one to replace, or in the last
    year of its life. A change of the spec does not replace it: clients with copies of `ca.crt` would fail minutes
    later.
    """
    given = cluster.spec.tls.ca_secret
    name = given or authority_secret_name(cluster.name)
    found, why = await api.get(SECRET, cluster.namespace, name), "there was none"
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
        if given or not is_ours(found, cluster):
            inside = pki.broker_names(cluster.name, cluster.namespace, domain)
            if not authority.may_name(inside):
                raise pki.AuthorityUnfitError(
                    f"the name constraints of the authority in Secret {name} do not permit "
                    f"{next(each for each in inside if not authority.may_name([each]))}. Remedy: give one that permits "
                    "it, or set the chart's clusterDomain to the DNS domain of this Kubernetes cluster"
                )
            return authority, True
        if asked.id == authority.id:
            why = f"{ANNOTATION_REPLACE_AUTHORITY} asks to replace {authority.id}"
        elif pki.authority_ends(authority, now):
            why = f"{authority.id} ends on {authority.certificate.not_valid_after_utc:%Y-%m-%d}"
        else:
            return authority, False
    is_external = cluster.spec.external is not None
    authority = pki.new_authority(cluster.name, cluster.namespace, now, domain, any_name=is_external)
    await api.apply(tls_secret(cluster, name, pki.authority_data(authority), now))
    told.append(("AuthorityMade", f"made the certificate authority {authority.id} in Secret {name}, because {why}"))
    return authority, False
