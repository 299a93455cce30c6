"""What the authority issues, and that a real TLS library takes it."""

from __future__ import annotations

import contextlib
import ipaddress
from datetime import UTC, datetime, timedelta

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from seriatim_operator.cluster.pki import (
    Authority,
    AuthorityUnfitError,
    CertificateParseError,
    Identity,
    KeyMismatchError,
    LeafRequest,
    Purpose,
    RenewalReason,
    authority_data,
    broker_names,
    broker_request,
    client_request,
    load_authority,
    load_identity,
    needs_renewal,
    new_authority,
    write_bundle,
)

NOW = datetime.now(UTC).replace(microsecond=0)
LIFE = timedelta(days=90)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return new_authority("orders", "shop", NOW)


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Identity:
    return authority.issue(broker_request("orders", "shop", LIFE), NOW)


def data_of(identity: Identity) -> dict[str, bytes]:
    return {"tls.crt": identity.certificate_pem, "tls.key": identity.key_pem}


def usages(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_broker_leaf_has_the_names_under_which_brokers_are_dialled(broker: Identity) -> None:
    names = broker.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "*.orders-brokers.shop.svc",
        "*.orders-brokers.shop.svc.cluster.local",
        "orders.shop.svc",
        "orders.shop.svc.cluster.local",
        "localhost",
    ]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["seriatim://shop/orders/broker"]
    assert usages(broker.certificate) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


def test_brokers_are_named_in_the_domain_of_their_cluster_and_in_no_other() -> None:
    authority = new_authority("orders", "shop", NOW, "corp.example")
    leaf = authority.issue(broker_request("orders", "shop", LIFE, "corp.example"), NOW)
    verifier = PolicyBuilder().store(Store([authority.certificate])).time(NOW)
    for name in ("g0-1.orders-brokers.shop.svc", "g0-1.orders-brokers.shop.svc.corp.example", "orders.shop.svc"):
        assert verifier.build_server_verifier(x509.DNSName(name)).verify(leaf.certificate, [])
    with pytest.raises(VerificationError):
        verifier.build_server_verifier(x509.DNSName("orders.shop.svc.cluster.local")).verify(leaf.certificate, [])


@pytest.mark.parametrize(
    ("names", "is_believed"),
    [
        (broker_names("orders", "shop"), True),
        (broker_names("orders", "shop", "corp.example"), False),
        (("deep.in.orders.shop.svc",), True),
        (("otherorders.shop.svc",), False),
        ((), True),
    ],
)
def test_an_authority_knows_which_names_a_verifier_lets_it_give(
    authority: Authority, names: tuple[str, ...], is_believed: bool
) -> None:
    assert authority.may_name(names) is is_believed
    leaf = authority.issue(
        LeafRequest("x", Purpose.BROKER, "seriatim://shop/orders/broker", LIFE, (*names, "localhost")), NOW
    )
    verifier = PolicyBuilder().store(Store([authority.certificate])).time(NOW).build_server_verifier
    with contextlib.nullcontext() if is_believed else pytest.raises(VerificationError):
        verifier(x509.DNSName("localhost")).verify(leaf.certificate, [])


def constrained(permitted: tuple[str, ...] = (), excluded: tuple[str, ...] = ()) -> Authority:
    """An authority of another owner, with name constraints."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "theirs")])
    loopback = x509.IPAddress(ipaddress.ip_network("127.0.0.0/8"))
    constraints = x509.NameConstraints(
        [loopback, *map(x509.DNSName, permitted)], [*map(x509.DNSName, excluded)] or None
    )
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(constraints, critical=True)
    )  # fmt: skip
    return Authority(Identity(builder.sign(key, hashes.SHA256()), key))


@pytest.mark.parametrize(
    ("permitted", "excluded", "may"),
    [
        ((), (), True),
        (("svc", "cluster.local", "localhost"), (), True),
        (("SVC", "cluster.local", "localhost"), (), True),
        (("svc", "localhost"), (), False),
        ((), ("cluster.local",), False),
        ((), ("corp.example",), True),
    ],
)
def test_name_constraints_of_others_are_read_as_a_verifier_reads_them(
    permitted: tuple[str, ...], excluded: tuple[str, ...], may: bool
) -> None:
    authority = constrained(permitted, excluded)
    assert authority.may_name(broker_names("orders", "shop")) is may
    above = Authority(new_authority("orders", "shop", NOW).identity, parents=(authority.certificate,))
    assert above.may_name(broker_names("orders", "shop")) is may


def test_client_leaf_is_no_server(authority: Authority) -> None:
    client = authority.issue(client_request("orders", "shop", "client", LIFE), NOW)
    assert usages(client.certificate) == {ExtendedKeyUsageOID.CLIENT_AUTH}


def test_each_leaf_has_a_key_and_a_serial_of_its_own(authority: Authority, broker: Identity) -> None:
    again = authority.issue(broker_request("orders", "shop", LIFE), NOW)
    assert again.certificate.serial_number != broker.certificate.serial_number
    assert again.key_pem != broker.key_pem


def test_leaf_ends_after_its_life_but_not_after_its_authority(authority: Authority, broker: Identity) -> None:
    assert broker.certificate.not_valid_after_utc == NOW + LIFE
    long = LeafRequest("x", Purpose.CLIENT, "seriatim://shop/orders/client", timedelta(days=20_000))
    assert authority.issue(long, NOW).certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_names_of_63_letters_fit(authority: Authority) -> None:
    name = "a" * 63
    leaf = new_authority(name, name, NOW).issue(broker_request(name, name, LIFE), NOW)
    assert f"{name}.{name}.svc" in str(leaf.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName))


def test_chain_is_what_a_strict_verifier_wants(authority: Authority, broker: Identity) -> None:
    verifier = PolicyBuilder().store(Store([authority.certificate])).time(NOW)
    for name in ("g0-1.orders-brokers.shop.svc", "orders.shop.svc.cluster.local", "localhost"):
        assert verifier.build_server_verifier(x509.DNSName(name)).verify(broker.certificate, [])
    with pytest.raises(VerificationError):
        verifier.build_server_verifier(x509.DNSName("other.shop.svc")).verify(broker.certificate, [])


def test_stolen_authority_cannot_pretend_to_be_somebody_else(authority: Authority) -> None:
    forged = LeafRequest("bank", Purpose.BROKER, "seriatim://shop/orders/broker", LIFE, ("bank.example",))
    leaf = authority.issue(forged, NOW)
    verifier = PolicyBuilder().store(Store([authority.certificate])).time(NOW)
    with pytest.raises(VerificationError):
        verifier.build_server_verifier(x509.DNSName("bank.example")).verify(leaf.certificate, [])


def serve_and_dial(trusted: bytes, server: Identity, client: Identity | None, name: str) -> None:
    """A mutual handshake of the TLS library that brokers use; raises if it fails."""
    from concurrent.futures import ThreadPoolExecutor

    pair = [(server.key_pem, server.certificate_pem)]
    with ThreadPoolExecutor(1) as pool:
        process = grpc.server(pool)
        credentials = grpc.ssl_server_credentials(pair, trusted, require_client_auth=True)
        port = process.add_secure_port("127.0.0.1:0", credentials)
        process.start()
        mine = (client.key_pem, client.certificate_pem) if client else (None, None)
        options = [("grpc.ssl_target_name_override", name)]
        try:
            with grpc.secure_channel(
                f"127.0.0.1:{port}", grpc.ssl_channel_credentials(trusted, *mine), options
            ) as channel:
                # The answer of an empty server, given only after the handshake of both sides.
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary("/none/None")(b"", timeout=5, wait_for_ready=False)
                assert isinstance(caught.value, grpc.Call)
                if caught.value.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise ConnectionError(caught.value.details())
        finally:
            process.stop(0).wait()


def test_grpc_takes_both_sides(authority: Authority, broker: Identity) -> None:
    client = authority.issue(client_request("orders", "shop", "client", LIFE), NOW)
    trusted = write_bundle(authority.anchors)
    serve_and_dial(trusted, broker, client, "g0-1.orders-brokers.shop.svc")
    serve_and_dial(trusted, broker, broker, "localhost")
    with pytest.raises(ConnectionError):
        serve_and_dial(trusted, broker, None, "localhost")
    with pytest.raises(ConnectionError):
        serve_and_dial(trusted, broker, client, "g0-1.other-brokers.shop.svc")


def test_authority_survives_its_secret(authority: Authority) -> None:
    again = load_authority(authority_data(authority), NOW)
    assert again.certificate == authority.certificate
    assert again.anchors == authority.anchors
    leaf = again.issue(broker_request("orders", "shop", LIFE), NOW)
    leaf.certificate.verify_directly_issued_by(authority.certificate)


def test_users_own_intermediate_authority_is_sent_along() -> None:
    root = trustme.CA(key_type=trustme.KeyType.RSA)
    middle = root.create_child_ca()
    given = {
        "tls.crt": middle.cert_pem.bytes(),
        "tls.key": middle.private_key_pem.bytes(),
        "ca.crt": root.cert_pem.bytes(),
    }
    authority = load_authority(given, NOW)
    broker = authority.issue(broker_request("orders", "shop", LIFE), NOW)
    client = authority.issue(client_request("orders", "shop", "client", LIFE), NOW)
    assert len(broker.intermediates) == 1
    # Who trusts the root alone accepts it as well: the leaf brings what lies between.
    serve_and_dial(root.cert_pem.bytes(), broker, client, "localhost")
    serve_and_dial(write_bundle(authority.anchors), broker, client, "localhost")


@pytest.mark.parametrize("file", ["tls.crt", "tls.key"])
@pytest.mark.parametrize(
    "content", [None, b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_damaged_files_are_named(broker: Identity, file: str, content: bytes | None) -> None:
    data = data_of(broker)
    if content is None:
        del data[file]
    else:
        data[file] = content
    with pytest.raises(CertificateParseError, match=file) as caught:
        load_identity(data)
    assert caught.value.file == file


def test_key_never_stands_in_an_error(broker: Identity) -> None:
    data = data_of(broker)
    secret = data["tls.key"].splitlines()[1]
    data["tls.key"] = data["tls.key"].replace(b"PRIVATE KEY", b"PRIVATE  KEY")
    with pytest.raises(CertificateParseError) as caught:
        load_identity(data)
    assert secret.decode() not in str(caught.value) + str(caught.value.__cause__)


def test_key_of_another_certificate_is_refused(authority: Authority, broker: Identity) -> None:
    other = authority.issue(broker_request("orders", "shop", LIFE), NOW)
    with pytest.raises(KeyMismatchError):
        load_identity({"tls.crt": broker.certificate_pem, "tls.key": other.key_pem})


def test_server_certificate_is_no_authority(broker: Identity) -> None:
    with pytest.raises(AuthorityUnfitError, match="not an authority"):
        load_authority(data_of(broker), NOW)


def test_authority_whose_time_is_over_is_refused(authority: Authority) -> None:
    with pytest.raises(AuthorityUnfitError, match="ended on"):
        load_authority(authority_data(authority), NOW + timedelta(days=3651))


def test_ed25519_authority_signs() -> None:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "given")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1000))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, None)
    )
    authority = load_authority(data_of(Identity(certificate, key)), NOW)
    leaf = authority.issue(client_request("orders", "shop", "client", LIFE), NOW)
    leaf.certificate.verify_directly_issued_by(certificate)


def test_external_hosts_are_in_the_brokers_certificate() -> None:
    request = broker_request("orders", "shop", LIFE, external_hosts=["203.0.113.7", "LB.example", "2001:db8::1"])
    assert {"203.0.113.7", "lb.example", "2001:db8::1", "localhost"} <= request.names
    authority = new_authority("orders", "shop", NOW, any_name=True)
    leaf = authority.issue(request, NOW)
    assert needs_renewal(leaf.certificate, NOW, request.names, authority.certificate) is None
    other = broker_request("orders", "shop", LIFE, external_hosts=["203.0.113.8"])
    assert needs_renewal(leaf.certificate, NOW, other.names, authority.certificate) is RenewalReason.NAMES_CHANGED


def test_an_authority_of_a_cluster_without_external_access_cannot_sign_external_hosts() -> None:
    inside = new_authority("orders", "shop", NOW)
    assert not inside.may_name_any
    for host in ("203.0.113.7", "lb.example", "2001:db8::1"):
        assert not inside.may_name([host])
    assert inside.may_name(["127.0.0.1", "::1", "localhost"])
    outside = new_authority("orders", "shop", NOW, any_name=True)
    assert outside.may_name_any
    assert outside.may_name(["203.0.113.7", "lb.example", "2001:db8::1"])
