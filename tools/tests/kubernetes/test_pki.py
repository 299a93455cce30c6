"""Who is who in the cluster: users and groups as Kubernetes reads them from certificates."""

from __future__ import annotations

import ipaddress
import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from tools.kubernetes import pki
from tools.kubernetes.layout import CONTROL_ADDRESS, KUBERNETES_SERVICE_ADDRESS, Layout


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    made = Layout(tmp_path_factory.mktemp("pki") / "state", Path("/cache"))
    pki.create(made)
    return made


def certificate(layout: Layout, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((layout.pki / f"{name}.crt").read_bytes())


def test_every_certificate_is_the_authoritys(layout: Layout) -> None:
    authority = certificate(layout, "ca")
    for identity in pki.identities(layout):
        certificate(layout, identity.name).verify_directly_issued_by(authority)


def test_a_kubelet_is_its_node_and_serves_at_its_address(layout: Layout) -> None:
    found = certificate(layout, "node2")
    (user,) = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    (group,) = found.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert (user.value, group.value) == ("system:node:node2", "system:nodes")
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.88.2.1")]


def test_the_api_server_is_known_by_its_services_name_and_addresses(layout: Layout) -> None:
    names = certificate(layout, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {CONTROL_ADDRESS, KUBERNETES_SERVICE_ADDRESS}


def test_only_the_owner_reads_keys_and_kubeconfigs(layout: Layout) -> None:
    private = [*layout.pki.glob("*.key"), *layout.state.glob("*.kubeconfig")]
    assert len(private) > 10
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_a_second_up_changes_no_certificate(layout: Layout) -> None:
    before = {path: path.read_bytes() for path in layout.pki.iterdir()}
    pki.create(layout)
    assert {path: path.read_bytes() for path in layout.pki.iterdir()} == before


def test_a_kubeconfig_names_files_that_are_there(layout: Layout) -> None:
    config = yaml.safe_load(layout.kubeconfig.read_text())
    (user,) = config["users"]
    (cluster,) = config["clusters"]
    assert cluster["cluster"]["server"] == f"https://{CONTROL_ADDRESS}:6443"
    for path in (*user["user"].values(), cluster["cluster"]["certificate-authority"]):
        assert Path(path).is_file()
