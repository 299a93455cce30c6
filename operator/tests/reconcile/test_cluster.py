"""Passes of the real reconciler: over a life of a cluster, and over lives of the operator that end after a write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import pytest
from cryptography import x509
from seriatim_api.errors import UnavailableError
from seriatim_operator.cluster.pki import (
    authority_data,
    authority_id,
    broker_names,
    broker_request,
    load_authority,
    load_bundle,
    load_identity,
    names_in,
    new_authority,
)
from seriatim_operator.plan.chains import ChainsView
from seriatim_operator.plan.cluster import RESYNC_S, TROUBLE_S
from seriatim_operator.plan.observed import ANNOTATION_SPREAD_MENDED, EtcdMember, EtcdView
from seriatim_operator.resources.names import ANNOTATION_CHANGED_AT, ANNOTATION_REPLACE_AUTHORITY
from seriatim_operator.resources.secrets import secret_files, tls_secret
from seriatim_operator.spec.cluster import BrokerCluster

from ..memory_kube import Manifest
from .fake_cluster import NAMESPACE
from .place import Place, started


async def test_a_cluster_comes_up_and_then_nothing_is_written() -> None:
    place = await started()
    reconciler, cache = place.operator()
    for _ in range(3):
        await place.a_pass(reconciler, cache)
    writes = len(place.kube.writes)
    for _ in range(5):
        await place.a_pass(reconciler, cache)
    assert len(place.kube.writes) == writes, place.kube.writes[writes:]
    assert not [what for what in place.kube.writes if what.startswith(("status", "delete"))]


def _age_losses(place: Place) -> None:
    """The time that a node must be gone for passes at once."""
    for broker in place.kube.of("Broker"):
        for condition in broker.get("status", {}).get("conditions", ()):
            if condition["reason"] == "NodeGone":
                condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"


def _lost(place: Place, count: int = 4) -> Callable[[], bool]:
    names = [p["metadata"]["name"] for p in place.kube.of("Pod") if p["spec"]["nodeName"] == "node1"]
    assert names
    place.machines.delete_node("node1")

    def is_replaced() -> bool:
        _age_losses(place)
        return not set(names) & set(place.pods()) and len(place.pods()) == count

    return is_replaced


def _roll(place: Place) -> Callable[[], bool]:
    before = {p["metadata"]["uid"] for p in place.kube.of("Pod")}
    place.edit(image="seriatim.dev/broker:next")
    return lambda: not before & {p["metadata"]["uid"] for p in place.kube.of("Pod")} and len(place.pods()) == 4


def _fewer(place: Place) -> Callable[[], bool]:
    place.edit(groups=1)
    return lambda: (
        sorted(place.brokers.members) == ["g0-0", "g0-1"] and len(place.kube.of("PersistentVolumeClaim")) == 2
    )


def _more(place: Place) -> Callable[[], bool]:
    place.edit(groups=3)
    return lambda: len(place.pods()) == 6


async def test_a_broker_that_dies_while_etcd_is_silent_does_not_count_as_one_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = await started()
    reconciler, cache = place.operator()
    await place.a_pass(reconciler, cache)
    assert answering(place) == {"g0-0", "g0-1", "g1-0", "g1-1"}

    async def no_answer(*, with_counts: bool) -> NoReturn:
        raise UnavailableError("etcd does not answer")

    async def there() -> bool:
        return True

    monkeypatch.setattr(place.brokers, "list_broker_groups", no_answer)
    monkeypatch.setattr(place.brokers, "is_any_there", there)
    (pod,) = [p for p in place.kube.of("Pod") if broker_of(p) == "g1-1"]
    for is_ready, live in (
        ("False", {"g0-0", "g0-1", "g1-0"}),
        ("True", {"g0-0", "g0-1", "g1-0", "g1-1"}),  # its disk was slow for some seconds, say
    ):
        for ready in pod["status"]["conditions"]:
            ready["status"] = is_ready
        place.kube.put(pod)
        await place.a_pass(reconciler, cache)
        assert answering(place) == live


@pytest.mark.parametrize(
    ("away", "again_s"), [(0, RESYNC_S), (1, RESYNC_S), (2, TROUBLE_S), (3, TROUBLE_S)], ids=lambda value: str(value)
)
async def test_brokers_are_asked_again_soon_when_etcd_has_no_majority(away: int, again_s: float) -> None:
    place = await started()
    reconciler, cache = place.operator()
    members = (EtcdMember(f"etcd-{number}", "has no pod" if number < away else "") for number in range(3))
    place.etcd = EtcdView(tuple(members))
    for _ in range(3):
        again = await place.a_pass(reconciler, cache)
    assert again == again_s


def answering(place: Place) -> set[str]:
    """The brokers that answer. Each has one disk."""
    live = place.known.live(NAMESPACE, "orders")
    assert live is not None
    brokers = {name for name in live if "#" not in name}
    assert sorted(name.partition("#")[0] for name in live - brokers) == sorted(brokers)
    return brokers


def broker_of(pod: Manifest) -> str:
    """The name of a pod's broker among the brokers."""
    labels = pod["metadata"]["labels"]
    return f"{labels['seriatim.dev/group']}-{labels['seriatim.dev/slot']}"


CHANGES = {"a lost node": _lost, "a rolling change": _roll, "fewer groups": _fewer, "more groups": _more}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_carried_through(change: str) -> None:
    place = await started(nodes=4)
    await place.run(until=CHANGES[change](place))


async def test_a_cluster_comes_up_by_operators_that_die_after_each_write() -> None:
    place = Place()
    await place.run_dying(until=lambda: len(place.pods()) == 4)
    assert not [what for what in place.kube.writes if what.startswith("delete")]
    assert len(place.kube.of("Broker")) == 4, "one disk for each slot, no matter which operator began it"


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_carried_through_by_operators_that_die_after_each_write(change: str) -> None:
    place = await started(nodes=4)
    done = CHANGES[change](place)
    await place.run_dying(until=done)
    deleted = [what for what in place.kube.writes if what.startswith("delete Pod ")]
    expected = {"a lost node": 0, "a rolling change": 4, "fewer groups": 2, "more groups": 0}[change]
    assert len(deleted) == expected, deleted
    claims = [what for what in place.kube.writes if what.startswith("delete PersistentVolumeClaim")]
    assert len(claims) == {"a lost node": len(claims), "fewer groups": 2}.get(change, 0)
    assert not place.machines.refused


async def test_no_disk_is_marked_lost_on_the_word_of_a_watch_that_went_blind() -> None:
    place = await started(nodes=4)
    reconciler, cache = place.operator()
    place.refresh(cache)
    cache.drop("Node", next(m for m in cache.of("Node") if m["metadata"]["name"] == "node1"))
    await reconciler.reconcile(NAMESPACE, "orders")
    noticed = [b for b in place.kube.of("Broker") if b["status"]["conditions"][3]["reason"] == "NodeGone"]
    assert noticed, "the blind watch has its effect"
    _age_losses(place)
    for broker in place.kube.of("Broker"):
        cache.put("Broker", broker)
    for _ in range(6):
        await reconciler.reconcile(NAMESPACE, "orders")
    assert not any(b["status"].get("diskLost") for b in place.kube.of("Broker"))
    assert not [what for what in place.kube.writes if what.startswith(("delete", "declare"))], place.kube.writes


async def test_no_run_is_certified_on_the_word_of_a_watch_that_went_blind() -> None:
    place = await started(nodes=4)
    broker = place.kube.of("Broker")[0]
    name, slot = broker["metadata"]["name"], f"{broker['spec']['group']}-{broker['spec']['slot']}"
    lost = {"at": "2026-01-01T00:00:00Z", "proof": "a test", "incarnation": broker["status"]["incarnation"], "run": 1}
    broker["status"]["diskLost"] = lost
    place.brokers.members[slot].live = False
    reconciler, cache = place.operator()
    place.refresh(cache)
    cache.drop("Pod", next(m for m in cache.of("Pod") if m["metadata"]["name"] == name))
    writes = len(place.kube.writes)
    await reconciler.reconcile(NAMESPACE, "orders")
    assert ("Pod", NAMESPACE, name) in place.kube.objects
    assert not [what for what in place.kube.writes[writes:] if what.startswith(("delete", "declare"))]
    del place.kube.objects["Pod", NAMESPACE, name]
    await place.a_pass(reconciler, cache)
    assert place.brokers.certified == [(slot, broker["status"]["incarnation"], 1)]


async def test_a_word_about_a_disk_that_is_not_followed_is_told_once_at_the_broker() -> None:
    place = await started(nodes=4)
    broker = place.kube.of("Broker")[0]
    broker["metadata"]["annotations"] = {"seriatim.dev/disk-lost": "true"}
    reconciler, cache = place.operator()
    for _ in range(4):
        await place.a_pass(reconciler, cache)
    told = [note for _, _, reason, note in place.kube.events if reason == "DiskLossHeld"]
    assert len(told) == 1
    assert f"seriatim.dev/disk-lost={broker['status']['incarnation']}" in told[0]
    assert not place.brokers.certified


async def test_another_domain_takes_an_authority_that_may_name_it_and_nobody_is_distrusted_meanwhile() -> None:
    place = Place(tls={"enabled": True})
    held = lambda name: secret_files(place.kube.objects["Secret", NAMESPACE, name])  # noqa: E731

    async def look(domain: str) -> tuple[str, set[x509.Certificate], frozenset[str]]:
        """One pass of a new operator, an hour after the last: who signs, who is trusted, and the brokers' names."""
        for name in ("orders-broker-tls", "orders-client-tls", "orders-operator-tls"):
            if ("Secret", NAMESPACE, name) in place.kube.objects:
                annotations = place.kube.objects["Secret", NAMESPACE, name]["metadata"]["annotations"]
                annotations[ANNOTATION_CHANGED_AT] = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        reconciler, cache = place.operator(domain)
        await place.a_pass(reconciler, cache)
        leaf = load_identity(held("orders-broker-tls")).certificate
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        authority = load_authority(held("orders-ca"), datetime.now(UTC)).certificate
        return (
            authority,
            set(load_bundle(held("orders-broker-tls"))),
            frozenset(names.get_values_for_type(x509.DNSName)),
        )

    before, after = (
        frozenset(broker_names("orders", NAMESPACE, domain)) for domain in ("cluster.local", "corp.example")
    )
    old, trusted, names = await look("cluster.local")
    assert (trusted, names) == ({old}, before)
    inside = frozenset(name for name in after if not name.endswith("corp.example"))
    assert await look("corp.example") == (old, {old}, inside), "an authority is replaced only if an administrator asks"
    degraded = place.condition("Degraded")
    assert degraded["reason"] == "CertificateInvalid"
    assert f"{ANNOTATION_REPLACE_AUTHORITY}={authority_id(old)}" in degraded["message"]
    _annotate(place, **{ANNOTATION_REPLACE_AUTHORITY: authority_id(old)})
    before = inside
    new, trusted, names = await look("corp.example")
    assert new != old
    assert (trusted, names) == ({old, new}, before), "its names are still such as the authority that signed it may give"
    assert await look("corp.example") == (new, {old, new}, after)
    assert await look("corp.example") == (new, {new}, after)


async def test_the_spread_after_a_replacement_is_mended() -> None:
    place = await started(groups=3, spreadMending="Automatic")
    place.known.note_chains(NAMESPACE, "orders", ChainsView())
    await place.run(until=_lost(place, 6))
    place.machines.add_node(1)
    place.spread_quiet_s = 0.0

    def groups_on(node: str) -> set[str]:
        return {
            pod["metadata"]["labels"]["seriatim.dev/group"]
            for pod in place.kube.of("Pod")
            if pod["spec"].get("nodeName") == node
        }

    for number in (1, 2):
        record = place.kube.of("BrokerCluster")[0]["metadata"].setdefault("annotations", {})
        if ANNOTATION_SPREAD_MENDED in record:
            begun, before, pause = record[ANNOTATION_SPREAD_MENDED].split()
            assert datetime.now(UTC) - datetime.fromisoformat(begun) < timedelta(minutes=1)
            record[ANNOTATION_SPREAD_MENDED] = f"2026-01-01T00:00:00+00:00 {before} {pause}"
        await place.run(until=lambda number=number: len(groups_on("node1")) == number and len(place.pods()) == 6)
        assert [reason for _, _, reason, _ in place.kube.events].count("PlacedAnew") == number
    assert all(len(groups_on(f"node{number}")) == 2 for number in (1, 2, 3))


@pytest.mark.parametrize(("settle_s", "is_reissued"), [(300, False), (30, True)])
async def test_another_authority_signs_when_a_changed_secret_has_had_its_time(settle_s: int, is_reissued: bool) -> None:
    place = Place(tls={"enabled": True})

    async def look(domain: str) -> frozenset[str]:
        """One pass of a new operator, a minute after the last. Return the names in the brokers' certificate."""
        for (kind, _, _), manifest in place.kube.objects.items():
            if kind == "Secret" and ANNOTATION_CHANGED_AT in manifest["metadata"].get("annotations", {}):
                then = datetime.now(UTC) - timedelta(minutes=1)
                manifest["metadata"]["annotations"][ANNOTATION_CHANGED_AT] = then.isoformat()
        reconciler, cache = place.operator(domain, timedelta(seconds=settle_s))
        await place.a_pass(reconciler, cache)
        return names_in(secret_files(place.kube.objects["Secret", NAMESPACE, "orders-broker-tls"]))

    await look("cluster.local")
    before = await look("corp.example")
    authority = load_authority(secret_files(place.kube.objects["Secret", NAMESPACE, "orders-ca"]), datetime.now(UTC))
    _annotate(place, **{ANNOTATION_REPLACE_AUTHORITY: authority.id})
    assert await look("corp.example") == before, "peers do not know the other authority yet"
    assert (await look("corp.example") != before) == is_reissued


def _annotate(place: Place, **annotations: str) -> None:
    place.kube.objects["BrokerCluster", NAMESPACE, "orders"]["metadata"].setdefault("annotations", {}).update(
        annotations
    )


async def _external_added(place: Place) -> Callable[[], Awaitable[str]]:
    """Add access from outside. Return what makes some passes and then returns the authority's id."""
    reconciler, cache = place.operator()

    async def look() -> str:
        for _ in range(6):
            _give_node_ports(place)
            await place.a_pass(reconciler, cache)
            place.machines.step()
        return _authority_of(place)

    place.edit(external={"type": "NodePort"})
    return look


def _authority_of(place: Place) -> str:
    return load_authority(secret_files(place.kube.objects["Secret", NAMESPACE, "orders-ca"]), datetime.now(UTC)).id


async def test_access_from_outside_for_a_minute_leaves_the_authority() -> None:
    place = await started(tls={"enabled": True})
    before = _authority_of(place)
    files = secret_files(place.kube.objects["Secret", NAMESPACE, "orders-client-tls"])
    look = await _external_added(place)
    assert await look() == before
    external = place.condition("ExternalReady")
    assert (external["status"], external["reason"]) == ("False", "AuthorityTooNarrow")
    assert f"{ANNOTATION_REPLACE_AUTHORITY}={before}" in external["message"]
    place.kube.objects["BrokerCluster", NAMESPACE, "orders"]["spec"].pop("external")
    assert await look() == before
    assert secret_files(place.kube.objects["Secret", NAMESPACE, "orders-client-tls"]) == files
    settled = place.condition("AuthoritySettled")
    assert (settled["status"], settled["reason"]) == ("True", "One")
    assert before in settled["message"]


async def test_an_authority_that_is_named_is_replaced_once_and_trusted_until_the_time_that_is_told() -> None:
    place = await started(tls={"enabled": True})
    before = _authority_of(place)
    look = await _external_added(place)
    until = datetime.now(UTC) + timedelta(days=2)
    _annotate(place, **{ANNOTATION_REPLACE_AUTHORITY: f"{before}/{until.isoformat()}"})
    after = await look()
    assert after != before
    assert await look() == after
    settled = place.condition("AuthoritySettled")
    assert (settled["status"], settled["reason"]) == ("False", "NewTrusted")
    assert f"certificates of {before} until {until:%Y-%m-%d %H:%M} UTC" in settled["message"]
    assert f"until {until + timedelta(minutes=5):%Y-%m-%d %H:%M} UTC" in settled["message"]
    assert place.condition("ExternalReady")["reason"] == "CertificatePending"
    notes = [note for _, _, reason, note in place.kube.events if reason == "AuthorityMade"]
    assert f"because {ANNOTATION_REPLACE_AUTHORITY} asks to replace {before}" in notes[-1]


@pytest.mark.parametrize("time", ["soon", "2026-01-01T00:00:00", "2999-01-01T00:00:00Z"])
async def test_a_time_that_cannot_be_kept_replaces_nothing(time: str) -> None:
    place = await started(tls={"enabled": True})
    before = _authority_of(place)
    _annotate(place, **{ANNOTATION_REPLACE_AUTHORITY: f"{before}/{time}"})
    reconciler, cache = place.operator()
    await place.a_pass(reconciler, cache)
    assert _authority_of(place) == before
    settled = place.condition("AuthoritySettled")
    assert (settled["status"], settled["reason"]) == ("False", "NotFollowed")
    assert time in settled["message"]


async def test_an_authority_that_is_given_and_may_not_name_the_brokers_is_told_and_left_alone() -> None:
    place = Place(tls={"enabled": True, "caSecret": "mine"})
    cluster = BrokerCluster.from_manifest(place.kube.of("BrokerCluster")[0])
    authority = new_authority("orders", NAMESPACE, datetime.now(UTC))
    given = tls_secret(cluster, "mine", authority_data(authority))
    del given["metadata"]["labels"]
    place.kube.put(given)
    for domain in ("cluster.local", "corp.example"):
        reconciler, cache = place.operator(domain)
        await place.a_pass(reconciler, cache)
    leaf = load_identity(secret_files(place.kube.objects["Secret", NAMESPACE, "orders-broker-tls"])).certificate
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"orders.{NAMESPACE}.svc.cluster.local" in names.get_values_for_type(x509.DNSName)
    degraded = next(c for c in place.status()["conditions"] if c["type"] == "Degraded")
    assert degraded["reason"] == "CertificateInvalid"
    assert "clusterDomain" in degraded["message"]
    assert secret_files(place.kube.objects["Secret", NAMESPACE, "mine"]) == authority_data(authority)


async def test_a_certificate_that_is_due_is_renewed_under_bad_settings() -> None:
    place = Place(tls={"enabled": True}, settings={"heal_after": "90"})
    cluster = BrokerCluster.from_manifest(place.kube.of("BrokerCluster")[0])
    then, name = datetime.now(UTC) - timedelta(days=61), "orders-broker-tls"
    authority = new_authority("orders", NAMESPACE, then)
    old = authority.issue(broker_request("orders", NAMESPACE, timedelta(days=90)), then)
    files = {"tls.crt": old.certificate_pem, "tls.key": old.key_pem, "ca.crt": authority.identity.certificate_pem}
    await place.kube.apply(tls_secret(cluster, "orders-ca", authority_data(authority), then))
    await place.kube.apply(tls_secret(cluster, name, files, then))
    reconciler, cache = place.operator()
    await place.a_pass(reconciler, cache)
    new = load_identity(secret_files(place.kube.objects["Secret", NAMESPACE, name])).certificate
    assert new.not_valid_before_utc > then + timedelta(days=60)
    conditions = {c["type"]: c["reason"] for c in place.status()["conditions"]}
    assert conditions["Degraded"] == "SettingsInvalid"
    assert not place.kube.of("ConfigMap")
    assert ("Service", NAMESPACE, "orders") in place.kube.objects


def _give_node_ports(place: Place) -> None:
    """Kubernetes gives Services their node ports, and they keep them when the operator applies them again."""
    for number, service in enumerate(sorted(place.kube.of("Service"), key=lambda each: str(each["metadata"]["name"]))):
        if "seriatim.dev/external" in service["metadata"]["labels"]:
            service["spec"]["ports"][0]["nodePort"] = 31000 + number


async def test_external_addresses_reach_pods_certificate_and_status() -> None:
    place = await started(external={"type": "NodePort"}, tls={"enabled": True})
    reconciler, cache = place.operator()
    for _ in range(6):
        _give_node_ports(place)
        await place.a_pass(reconciler, cache)
    annotations = [pod["metadata"]["annotations"] for pod in place.kube.of("Pod")]
    told = {found.get("seriatim.dev/external-address", "") for found in annotations}
    assert len(told) == len(annotations), "each broker has an address of its own"
    [cluster] = place.kube.of("BrokerCluster")
    assert cluster["status"]["externalBootstrap"]
    assert not cluster["status"].get("externalPending")
    [secret] = [s for s in place.kube.of("Secret") if s["metadata"]["name"] == "orders-broker-tls"]
    leaf = load_identity(secret_files(secret)).certificate
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = {address.rpartition(":")[0] for address in told}
    assert hosts == {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    writes = len(place.kube.writes)
    for _ in range(5):
        await place.a_pass(reconciler, cache)
    assert len(place.kube.writes) == writes, place.kube.writes[writes:]
    cluster["spec"].pop("external")
    for _ in range(3):
        await place.a_pass(reconciler, cache)
    left = [s for s in place.kube.of("Service") if "seriatim.dev/external" in s["metadata"]["labels"]]
    assert left == []
    [cluster] = place.kube.of("BrokerCluster")
    assert not cluster["status"].get("externalBootstrap")


async def test_a_cluster_that_is_made_again_at_once_gets_its_secrets() -> None:
    place = Place(tls={"enabled": True})
    await place.run(until=lambda: len(place.pods()) == 4)
    reconciler, cache = place.operator()
    await place.a_pass(reconciler, cache)
    cluster = place.kube.objects["BrokerCluster", NAMESPACE, "orders"]
    for secret in place.kube.of("Secret"):
        del place.kube.objects["Secret", NAMESPACE, secret["metadata"]["name"]]  # with their owner
    again = {**cluster, "metadata": {"name": "orders", "namespace": NAMESPACE, "uid": "of-the-next"}}
    place.kube.put({name: value for name, value in again.items() if name != "status"})
    await place.a_pass(reconciler, cache)
    assert ("Secret", NAMESPACE, "orders-broker-tls") in place.kube.objects
