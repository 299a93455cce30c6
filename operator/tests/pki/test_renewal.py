"""Renewal, and the replacement of an authority: at no moment do two peers mistrust each other."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from seriatim_operator.cluster.pki import (
    SETTLE_TIME,
    Authority,
    HeldSecret,
    LeafRequest,
    RenewalReason,
    authority_ends,
    authority_is_due,
    broker_request,
    client_request,
    load_bundle,
    load_identity,
    needs_renewal,
    new_authority,
    plan_certificates,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
LIFE = timedelta(days=90)
DAY = timedelta(days=1)
WANTED: dict[str, LeafRequest] = {
    "orders-broker-tls": broker_request("orders", "shop", LIFE),
    "orders-client-tls": client_request("orders", "shop", "client", LIFE),
    "orders-operator-tls": client_request("orders", "shop", "operator", LIFE),
}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return new_authority("orders", "shop", NOW)


@pytest.fixture(scope="module")
def successor() -> Authority:
    return new_authority("orders", "shop", NOW + DAY)


class Cluster:
    """Secrets as they are in the API, and as the slowest pod has them in its volume."""

    def __init__(self) -> None:
        self.held: dict[str, HeldSecret] = {}

    def run(self, authority: Authority, now: datetime, only: int = 99) -> Mapping[str, RenewalReason]:
        """One pass of the operator, which dies after `only` writes."""
        plan = plan_certificates(authority, WANTED, self.held, now)
        for name in sorted(plan.writes)[:only]:
            self.held[name] = plan.writes[name]
        return plan.reasons


def trusts(one: HeldSecret, other: HeldSecret) -> bool:
    leaf = load_identity(other.data).certificate
    return any(leaf.issuer == each.subject for each in load_bundle(one.data))


def test_first_pass_makes_everything_and_the_second_nothing(authority: Authority) -> None:
    cluster = Cluster()
    assert set(cluster.run(authority, NOW).values()) == {RenewalReason.MISSING}
    plan = plan_certificates(authority, WANTED, cluster.held, NOW)
    assert (plan.writes, plan.reasons) == ({}, {})
    # Next look: when the leaves are due, two thirds into their 90 days.
    assert plan.next_look_at is not None
    assert NOW + 59 * DAY < plan.next_look_at < NOW + 60 * DAY + timedelta(minutes=1)


def test_leaf_is_renewed_at_two_thirds_of_its_life(authority: Authority) -> None:
    request = WANTED["orders-client-tls"]
    leaf = authority.issue(request, NOW).certificate
    assert needs_renewal(leaf, NOW + 59 * DAY, request.names, authority.certificate) is None
    assert needs_renewal(leaf, NOW + 60 * DAY, request.names, authority.certificate) is RenewalReason.DUE


def test_leaf_that_ends_with_its_authority_is_not_issued_again_and_again(authority: Authority) -> None:
    request = WANTED["orders-client-tls"]
    late = authority.certificate.not_valid_after_utc - 3 * DAY
    leaf = authority.issue(request, late).certificate
    assert needs_renewal(leaf, late + 2.9 * DAY, request.names, authority.certificate) is None


def test_leaf_with_other_names_is_issued_anew(authority: Authority) -> None:
    leaf = authority.issue(WANTED["orders-broker-tls"], NOW).certificate
    names = WANTED["orders-broker-tls"].names
    assert needs_renewal(leaf, NOW, names) is None
    assert needs_renewal(leaf, NOW, names | {"more.example"}) is RenewalReason.NAMES_CHANGED
    assert needs_renewal(leaf, NOW, names - {"localhost"}) is RenewalReason.NAMES_CHANGED


def test_damaged_secret_is_made_anew_and_alone(authority: Authority) -> None:
    cluster = Cluster()
    cluster.run(authority, NOW)
    good = dict(cluster.held["orders-client-tls"].data)
    cluster.held["orders-client-tls"] = HeldSecret({**good, "tls.key": b"x"}, NOW)
    assert cluster.run(authority, NOW + DAY) == {"orders-client-tls": RenewalReason.DAMAGED}


def test_files_that_others_add_are_left_alone(authority: Authority) -> None:
    cluster = Cluster()
    cluster.run(authority, NOW)
    name = "orders-client-tls"
    cluster.held[name] = HeldSecret({**cluster.held[name].data, "keystore.p12": b"x"}, NOW)
    assert plan_certificates(authority, WANTED, cluster.held, NOW).writes == {}


def test_own_authority_is_followed_in_time(authority: Authority) -> None:
    assert not authority_is_due(authority, NOW + 2400 * DAY)
    assert authority_is_due(authority, NOW + 2434 * DAY)
    assert not authority_ends(authority, NOW + 3280 * DAY)
    assert authority_ends(authority, NOW + 3290 * DAY)


@pytest.mark.parametrize("only", [99, 1])
def test_replacing_an_authority_never_parts_two_peers(authority: Authority, successor: Authority, only: int) -> None:
    """Pods see a Secret up to the settle time late; the operator may die after each single write."""
    cluster = Cluster()
    cluster.run(authority, NOW)
    now = NOW + DAY
    seen: list[tuple[datetime, dict[str, HeldSecret]]] = [(NOW, dict(cluster.held))]
    step = SETTLE_TIME / 4
    for _ in range(60):
        cluster.run(successor, now, only)
        seen.append((now, dict(cluster.held)))
        # Whatever mixture of then and now two pods have mounted within one settle time, they trust each other.
        recent = [held for time, held in seen if now - time < SETTLE_TIME]
        for one in recent:
            for other in recent:
                assert all(trusts(one[a], other[b]) for a in WANTED for b in WANTED)
        now += step
    for held in cluster.held.values():
        assert load_bundle(held.data) == successor.anchors
        load_identity(held.data).certificate.verify_directly_issued_by(successor.certificate)


def test_replacement_takes_three_steps(authority: Authority, successor: Authority) -> None:
    cluster = Cluster()
    cluster.run(authority, NOW)
    now = NOW + DAY
    assert cluster.run(successor, now) == {}, "first only the bundles change"
    assert all(len(load_bundle(held.data)) == 2 for held in cluster.held.values())
    assert plan_certificates(successor, WANTED, cluster.held, now).next_look_at == now + SETTLE_TIME
    now += SETTLE_TIME
    assert set(cluster.run(successor, now).values()) == {RenewalReason.AUTHORITY_CHANGED}
    assert all(len(load_bundle(held.data)) == 2 for held in cluster.held.values())
    now += SETTLE_TIME
    assert cluster.run(successor, now) == {}
    assert all(load_bundle(held.data) == successor.anchors for held in cluster.held.values())


def test_replacement_waits_until_the_time_that_a_person_gave(authority: Authority, successor: Authority) -> None:
    cluster = Cluster()
    cluster.run(authority, NOW)
    until = NOW + 5 * DAY
    told = []
    for now in (NOW + DAY, NOW + 4 * DAY, until, until + SETTLE_TIME / 2, until + SETTLE_TIME):
        plan = plan_certificates(successor, WANTED, cluster.held, now, hold_until=until)
        cluster.held.update(plan.writes)
        told.append((len(plan.reasons), plan.former, plan.reissue_at, plan.forget_at))
    assert told == [
        (0, authority.anchors, until, until + SETTLE_TIME),
        (0, authority.anchors, until, until + SETTLE_TIME),
        (3, authority.anchors, None, until + SETTLE_TIME),
        (0, authority.anchors, None, until + SETTLE_TIME),
        (0, (), None, None),
    ]


def test_authority_that_has_ended_is_forgotten(authority: Authority) -> None:
    cluster = Cluster()
    cluster.run(authority, NOW)
    late = NOW + 3651 * DAY
    cluster.run(new_authority("orders", "shop", late), late)
    assert all(len(load_bundle(held.data)) == 1 for held in cluster.held.values())
