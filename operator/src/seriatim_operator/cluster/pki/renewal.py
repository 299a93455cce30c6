"""Plans when certificates are renewed, and how an authority is replaced while all peers trust each other all the time.

The Secrets have all the state. The replacement of an authority has three states, and the content of the Secrets alone
decides which one it is. So an operator that ends between two writes continues where it was:

    1. trust    the new authority is not in every bundle: every bundle becomes old + new; leaves stay as they are
    2. reissue  every bundle has had it for the settle time: the new one issues all leaves; bundles stay old + new
    3. forget   every leaf has been from the new authority for the settle time: bundles become new alone

The settle time is the time that a kubelet may take to bring a changed Secret into a pod, and a broker to read it again.
Without it, a broker with a new leaf would be refused by a broker that has not read the new bundle.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from contextlib import suppress
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
from .issuing import Authority, LeafRequest, authority_id

SETTLE_TIME: Final = timedelta(minutes=5)
"""A kubelet refreshes Secrets within its sync period and cache delay, by default 2 minutes. This is more than twice
that."""

RENEWAL_FRACTION: Final = 2 / 3
"""The part of a certificate's life after which it is renewed. Of 90 days it leaves 30 in which an operator may be
away."""


LAST_YEAR: Final = timedelta(days=365)
"""The operator replaces its own authority by itself when it ends in less than this time. An administrator could have
done it for more than two years then."""

HOLD_MAX: Final = timedelta(days=30)
"""A replacement waits at most this long for a time that an administrator gave."""


class RenewalReason(enum.StrEnum):
    """Why a certificate is issued: a closed list, for the notes of events."""

    MISSING = "there was none"
    DAMAGED = "the one before is damaged"
    DUE = "the one before was due for renewal"
    NAMES_CHANGED = "it needs other names"
    AUTHORITY_CHANGED = "there is another authority"


@dataclass(frozen=True)
class HeldSecret:
    """The Secret of a leaf as it is now.

    Attributes:
        data: Its files.
        changed_at: When it last got a leaf or a bundle that other peers must read (an annotation). None if it is not
            known, which counts as long ago. The removal of an authority from a bundle does not count. Otherwise, if a
            pass removes an authority from some Secrets and ends, the next pass would wait and add it again.
    """

    data: Mapping[str, bytes]
    changed_at: datetime | None = None


@dataclass(frozen=True)
class CertificatePlan:
    """The Secrets to write, and when to look again.

    Attributes:
        writes: The Secrets to write as a whole, by name, with the time to note on them.
        reasons: Why each new leaf is issued, by name. A Secret that gets only another bundle has none.
        next_look_at: When to plan again if nothing else happens.
        former: The authorities that are trusted beside the one that signs. None if there are none.
        reissue_at: When the authority issues all certificates; None if it has issued them.
        forget_at: From when on the former authorities are not trusted any more; None without any.
    """

    writes: Mapping[str, HeldSecret] = field(default_factory=dict)
    reasons: Mapping[str, RenewalReason] = field(default_factory=dict)
    next_look_at: datetime | None = None
    former: tuple[x509.Certificate, ...] = ()
    reissue_at: datetime | None = None
    forget_at: datetime | None = None


def renewal_due_at(certificate: x509.Certificate) -> datetime:
    """When two thirds of the certificate's life are over."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_before_utc + life * RENEWAL_FRACTION


def authority_is_due(authority: Authority, now: datetime) -> bool:
    """Whether an administrator should replace the operator's own authority."""
    return now >= renewal_due_at(authority.certificate)


def authority_ends(authority: Authority, now: datetime) -> bool:
    """Whether the operator replaces its own authority without being asked: soon no certificate of it is valid."""
    return now >= authority.certificate.not_valid_after_utc - LAST_YEAR


def needs_renewal(
    certificate: x509.Certificate, now: datetime, wanted_sans: Iterable[str], authority: x509.Certificate | None = None
) -> RenewalReason | None:
    """Why a leaf must be issued again; None if it need not.

    Args:
        certificate: The leaf.
        now: The time.
        wanted_sans: The names that it must have. Other names are a reason too.
        authority: The authority that must have signed it; None to skip this check.
    """
    if authority is not None and not is_issued_by(certificate, authority):
        return RenewalReason.AUTHORITY_CHANGED
    if _names(certificate) != frozenset(wanted_sans):
        return RenewalReason.NAMES_CHANGED
    # A leaf that ends with its authority cannot last longer, so it would be issued again and again without effect.
    at_its_longest = authority is not None and certificate.not_valid_after_utc >= authority.not_valid_after_utc
    if now >= renewal_due_at(certificate) and not at_its_longest:
        return RenewalReason.DUE
    return None


def names_in(data: Mapping[str, bytes]) -> frozenset[str]:
    """The names of the certificate in a Secret's files; none if it cannot be read."""
    try:
        return _names(load_identity(data).certificate)
    except PkiError:
        return frozenset()


def trusted_ids(held: Iterable[HeldSecret]) -> frozenset[str]:
    """The ids of the authorities in the bundles of Secrets, as far as they can be read."""
    found: set[str] = set()
    for secret in held:
        with suppress(PkiError):
            found.update(authority_id(each) for each in load_bundle(secret.data))
    return frozenset(found)


def plan_certificates(
    authority: Authority,
    wanted: Mapping[str, LeafRequest],
    held: Mapping[str, HeldSecret],
    now: datetime,
    settle: timedelta = SETTLE_TIME,
    hold_until: datetime | None = None,
) -> CertificatePlan:
    """Plan the writes after which every wanted leaf exists, is valid, and is trusted by all others.

    Args:
        authority: The authority that signs from now on.
        wanted: The leaves by the name of their Secret, only those that the operator keeps.
        held: Those of these Secrets that exist, by name.
        now: The time.
        settle: The time until a written Secret is in use everywhere.
        hold_until: The authority issues no certificates in place of another one's before this time, because clients
            with copies of `ca.crt` need time to get it; None: as soon as all have read it.
    """
    leaves = {name: _Leaf(request, held.get(name)) for name, request in wanted.items()}
    bundle, may_reissue, wait = _bundle(authority, leaves, now, settle, hold_until)
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
    own = {fingerprint(each) for each in authority.anchors}
    former = tuple(each for each in bundle if fingerprint(each) not in own)
    reissue_at = wait if former and not may_reissue else None
    forget_at = (reissue_at + settle if reissue_at is not None else wait) if former else None
    return CertificatePlan(writes, reasons, min(dues, default=None), former, reissue_at, forget_at)


class _Leaf:
    """A wanted leaf, and the content of its Secret."""

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
            # A damaged Secret is rewritten, like a deleted one.
            self.identity = None
            self._problem = RenewalReason.DAMAGED

    @property
    def changed_at(self) -> datetime | None:
        return None if self.held is None else self.held.changed_at

    def holds(self, data: Mapping[str, bytes]) -> bool:
        """Whether the Secret has exactly this content in these files. Other files in it do not count."""
        return self.held is not None and all(self.held.data.get(file) == content for file, content in data.items())

    def reason_to_renew(self, authority: Authority, now: datetime) -> RenewalReason | None:
        if self.identity is None:
            return self._problem
        certificate = self.identity.certificate
        if is_issued_by(certificate, authority.certificate):
            return needs_renewal(certificate, now, self.request.names, authority.certificate)
        # A leaf of another authority that has ended is replaced at once, whatever the bundles have.
        if now >= certificate.not_valid_after_utc:
            return RenewalReason.DUE
        return RenewalReason.AUTHORITY_CHANGED


def _bundle(
    authority: Authority,
    leaves: Mapping[str, _Leaf],
    now: datetime,
    settle: timedelta,
    hold_until: datetime | None,
) -> tuple[tuple[x509.Certificate, ...], bool, datetime | None]:
    """The bundle that all should trust now, whether the new authority may issue leaves, and when that changes."""
    wanted = {fingerprint(each): each for each in authority.anchors}
    trusted = {fingerprint(each): each for leaf in leaves.values() for each in leaf.bundle}
    others = [each for key, each in sorted(trusted.items()) if key not in wanted and each.not_valid_after_utc > now]
    if not others:
        return authority.anchors, True, None
    both = (*authority.anchors, *others)
    present = [leaf for leaf in leaves.values() if leaf.identity is not None]
    if not all(wanted.keys() <= {fingerprint(each) for each in leaf.bundle} for leaf in present):
        return both, False, max(now + settle, hold_until or now)
    times = [leaf.changed_at for leaf in present if leaf.changed_at is not None]
    settled_at = max(times) + settle if times else now
    identities = [leaf.identity for leaf in present if leaf.identity is not None]
    is_reissued = all(is_issued_by(identity.certificate, authority.certificate) for identity in identities)
    if not is_reissued and hold_until is not None:
        settled_at = max(settled_at, hold_until)
    if now < settled_at:
        return both, is_reissued, settled_at
    if not is_reissued:
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
