"""When certificates are renewed, and how an authority is replaced without a moment in which two peers mistrust.

All that is remembered lies in the Secrets themselves. Replacing an authority takes three states, each a function of
what is there, so that an operator that dies between two writes goes on where it was:

    1. trust    the new authority is not in every bundle: every bundle becomes old + new; leaves stay as they are
    2. reissue  every bundle has had it for the settle time: leaves are issued by the new one; bundles stay old + new
    3. forget   every leaf is the new one's, for the settle time: bundles become new alone

The settle time is what a kubelet may take to bring a changed Secret into a pod, and a broker to re-read it: a broker
whose leaf is new, talking to one that has not seen the new bundle, would be refused.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from .certificates import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    Identity,
    PkiError,
    fingerprint,
    is_issued_by,
    load_bundle,
    load_identity,
    write_bundle,
)
from .issuing import Authority, LeafRequest

SETTLE_TIME: Final = timedelta(minutes=5)
"""A kubelet refreshes Secrets within its sync period and cache delay: two minutes by default; more than twice that."""

RENEWAL_FRACTION: Final = 2 / 3
"""Of a life; leaves a month of a 90-day certificate for an operator that is down."""


class RenewalReason(enum.StrEnum):
    """Why a certificate is issued anew; a closed list, for events."""

    MISSING = "CertificateMissing"
    DAMAGED = "CertificateDamaged"
    DUE = "CertificateDue"
    NAMES_CHANGED = "CertificateNamesChanged"
    AUTHORITY_CHANGED = "CertificateAuthorityChanged"


@dataclass(frozen=True)
class HeldSecret:
    """A leaf's Secret as it is now.

    Attributes:
        data: Its files.
        changed_at: When it last got a leaf or a bundle that others have to learn of (an annotation); None if unknown,
            which counts as long ago. Losing an authority is nothing to learn of: a pass that forgets one in some
            Secrets and dies would otherwise make the next one wait, and put it back.
    """

    data: Mapping[str, bytes]
    changed_at: datetime | None = None


@dataclass(frozen=True)
class CertificatePlan:
    """What to write.

    Attributes:
        writes: Secrets to write, whole, with the time to note on them, by name.
        reasons: Why, for each leaf that is new; a Secret that only gets another bundle has none.
        next_look_at: When to ask again if nothing else happens.
    """

    writes: Mapping[str, HeldSecret] = field(default_factory=dict)
    reasons: Mapping[str, RenewalReason] = field(default_factory=dict)
    next_look_at: datetime | None = None


def renewal_due_at(certificate: x509.Certificate) -> datetime:
    """When two thirds of its life are over."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_before_utc + life * RENEWAL_FRACTION


def authority_is_due(authority: Authority, now: datetime) -> bool:
    """Whether an authority of our own should be followed by a new one. A user's own is the user's to replace."""
    return now >= renewal_due_at(authority.certificate)


def needs_renewal(
    certificate: x509.Certificate, now: datetime, wanted_sans: Iterable[str], authority: x509.Certificate | None = None
) -> RenewalReason | None:
    """Why a leaf has to be issued anew; None if it has not.

    Args:
        certificate: The leaf.
        now: The time.
        wanted_sans: All names it must have; it may have no others.
        authority: What should have signed it; None to leave that out.
    """
    if authority is not None and not is_issued_by(certificate, authority):
        return RenewalReason.AUTHORITY_CHANGED
    if _names(certificate) != frozenset(wanted_sans):
        return RenewalReason.NAMES_CHANGED
    # One that ends with its authority cannot be made to last longer: issuing it again and again would change nothing.
    at_its_longest = authority is not None and certificate.not_valid_after_utc >= authority.not_valid_after_utc
    if now >= renewal_due_at(certificate) and not at_its_longest:
        return RenewalReason.DUE
    return None


def plan_certificates(
    authority: Authority,
    wanted: Mapping[str, LeafRequest],
    held: Mapping[str, HeldSecret],
    now: datetime,
    settle: timedelta = SETTLE_TIME,
) -> CertificatePlan:
    """What to write so that every wanted leaf is there, valid and trusted by all others.

    Args:
        authority: What is to sign from now on.
        wanted: The leaves, by the name of their Secret; only those that we manage.
        held: The Secrets that exist of them.
        now: The time.
        settle: How long a written Secret takes to be in use everywhere.
    """
    leaves = {name: _Leaf(request, held.get(name)) for name, request in wanted.items()}
    bundle, may_reissue, wait = _bundle(authority, leaves, now, settle)
    writes: dict[str, HeldSecret] = {}
    reasons: dict[str, RenewalReason] = {}
    dues: list[datetime] = [] if wait is None else [wait]
    for name, leaf in leaves.items():
        identity = leaf.identity
        reason = leaf.reason_to_renew(authority, now)
        if reason is RenewalReason.AUTHORITY_CHANGED and not may_reissue:
            reason = None
        if reason is not None:
            identity = authority.issue(leaf.request, now)
            reasons[name] = reason
        assert identity is not None, "a leaf that is missing has a reason to be issued"
        dues.append(max(renewal_due_at(identity.certificate), now + settle))
        data = _data(identity, bundle)
        if not leaf.holds(data):
            forgets_only = reason is None and {*bundle} < {*leaf.bundle}
            writes[name] = HeldSecret(data, leaf.changed_at if forgets_only else now)
    return CertificatePlan(writes, reasons, min(dues, default=None))


class _Leaf:
    """A wanted leaf beside what its Secret holds."""

    def __init__(self, request: LeafRequest, held: HeldSecret | None) -> None:
        self.request = request
        self.held = held
        self.identity: Identity | None = None
        self.bundle: tuple[x509.Certificate, ...] = ()
        self._problem: RenewalReason | None = RenewalReason.MISSING
        if held is not None:
            self._read(held.data)

    def _read(self, data: Mapping[str, bytes]) -> None:
        try:
            self.identity = load_identity(data)
            self.bundle = load_bundle(data)
            self._problem = None
        except PkiError:
            # A Secret that somebody damaged is made new, like one that was deleted.
            self.identity = None
            self._problem = RenewalReason.DAMAGED

    @property
    def changed_at(self) -> datetime | None:
        return None if self.held is None else self.held.changed_at

    def holds(self, data: Mapping[str, bytes]) -> bool:
        """Whether the Secret has these files; others in it are not ours."""
        return self.held is not None and all(self.held.data.get(file) == content for file, content in data.items())

    def reason_to_renew(self, authority: Authority, now: datetime) -> RenewalReason | None:
        if self.identity is None:
            return self._problem
        certificate = self.identity.certificate
        if is_issued_by(certificate, authority.certificate):
            return needs_renewal(certificate, now, self.request.names, authority.certificate)
        # Another authority's leaf that is about to end is replaced whatever the state of the bundles is.
        if now >= certificate.not_valid_after_utc:
            return RenewalReason.DUE
        return RenewalReason.AUTHORITY_CHANGED


def _bundle(
    authority: Authority, leaves: Mapping[str, _Leaf], now: datetime, settle: timedelta
) -> tuple[tuple[x509.Certificate, ...], bool, datetime | None]:
    """What everybody should trust now, whether leaves may come from the new authority, and when that changes."""
    wanted = {fingerprint(each): each for each in authority.anchors}
    trusted = {fingerprint(each): each for leaf in leaves.values() for each in leaf.bundle}
    others = [each for key, each in sorted(trusted.items()) if key not in wanted and each.not_valid_after_utc > now]
    if not others:
        return authority.anchors, True, None
    both = (*authority.anchors, *others)
    present = [leaf for leaf in leaves.values() if leaf.identity is not None]
    if not all(wanted.keys() <= {fingerprint(each) for each in leaf.bundle} for leaf in present):
        return both, False, now + settle
    times = [leaf.changed_at for leaf in present if leaf.changed_at is not None]
    settled_at = max(times) + settle if times else now
    if now < settled_at:
        return both, False, settled_at
    identities = [leaf.identity for leaf in present if leaf.identity is not None]
    if not all(is_issued_by(identity.certificate, authority.certificate) for identity in identities):
        return both, True, now + settle
    return authority.anchors, True, None


def _data(identity: Identity, bundle: tuple[x509.Certificate, ...]) -> dict[str, bytes]:
    return {
        CERTIFICATE_FILE: identity.certificate_pem,
        KEY_FILE: identity.key_pem,
        CA_FILE: write_bundle(bundle),
    }


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(name.value) for name in names)
