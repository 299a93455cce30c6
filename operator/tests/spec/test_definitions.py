"""The definitions, as a real API server takes them, and as the models say them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from seriatim_operator.spec import KINDS, Resource
from seriatim_operator.spec.crd.definition import SCHEMA_HASH, SIZE_BYTES_MAX, _hash_of, definition, definition_name
from seriatim_operator.spec.crd.files import stale_definitions, write_definitions
from seriatim_operator.spec.group import BrokerGroupStatus

from ..api_server import ROOT, ApiServer
from .objects import good

by_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)


def test_committed_definitions_are_current() -> None:
    assert stale_definitions(ROOT / "crds") == []


def test_a_missing_a_changed_and_a_foreign_file_are_found(tmp_path: Path) -> None:
    written = write_definitions(tmp_path)
    assert len(written) == len(KINDS)
    written[0].unlink()
    written[1].write_text("changed")
    (tmp_path / "other.yaml").write_text("kind: Other")
    assert stale_definitions(tmp_path) == sorted([written[0].name, written[1].name, "other.yaml"])


@by_kind
def test_a_definition_is_small(kind: type[Resource]) -> None:
    assert len(json.dumps(definition(kind))) < SIZE_BYTES_MAX


@by_kind
def test_the_hash_names_the_schema(kind: type[Resource]) -> None:
    hashes = {one.KIND: definition(one)["metadata"]["annotations"][SCHEMA_HASH] for one in KINDS}
    assert hashes[kind.KIND] == definition(kind)["metadata"]["annotations"][SCHEMA_HASH]
    assert len(set(hashes.values())) == len(KINDS)


def test_the_hash_is_of_what_the_api_server_checks() -> None:
    body = definition(KINDS[0])["spec"]
    words = json.loads(json.dumps(body).replace("The desired state", "The wanted state"))
    assert words != body
    assert _hash_of(words) == _hash_of(body)
    checks = json.loads(json.dumps(body).replace('"maximum": 1000', '"maximum": 1001'))
    assert checks != body
    assert _hash_of(checks) != _hash_of(body)


@by_kind
def test_the_api_server_has_taken_it(kind: type[Resource], api_server: ApiServer) -> None:
    found = json.loads(api_server.kubectl("get", "crd", definition_name(kind), "-o", "json"))
    conditions = {condition["type"]: condition for condition in found["status"]["conditions"]}
    assert conditions["Established"]["status"] == "True"
    assert conditions["NamesAccepted"]["status"] == "True"
    # A definition that is taken but not structural would be served without pruning or defaults.
    assert "NonStructuralSchema" not in conditions


def test_all_kinds_are_listed_by_their_category(api_server: ApiServer) -> None:
    names = api_server.kubectl("api-resources", "--categories=seriatim", "-o", "name").split()
    assert sorted(names) == sorted(definition_name(kind) for kind in KINDS)


@by_kind
def test_short_names_work(kind: type[Resource], api_server: ApiServer) -> None:
    assert api_server.try_kubectl("get", kind.SHORT_NAME).returncode == 0


@by_kind
def test_a_column_shows_one_value(kind: type[Resource]) -> None:
    assert not [column.name for column in kind.COLUMNS if "[*]" in column.path], "only the first would be shown"


def test_all_members_of_a_group_are_shown(api_server: ApiServer) -> None:
    api_server.kubectl("apply", "-f", "-", text=yaml.safe_dump(good("BrokerGroup")))
    status = BrokerGroupStatus(brokers="orders-g0-0-a1b2,orders-g0-1-x7k2", nodes="node1,-").to_manifest()
    patch = json.dumps({"status": status})
    api_server.kubectl("patch", "brokergroup/orders-g0", "--subresource=status", "--type=merge", "-p", patch)
    head, line = api_server.kubectl("get", "brokergroups", "orders-g0", "-o", "wide").splitlines()
    assert "BROKERS" in head
    assert "orders-g0-0-a1b2,orders-g0-1-x7k2" in line.split()
    assert "node1,-" in line.split()
    api_server.kubectl("delete", "brokergroup/orders-g0")


def test_the_files_are_one_document_each() -> None:
    for path in (ROOT / "crds").glob("*.yaml"):
        assert yaml.safe_load(path.read_text())["kind"] == "CustomResourceDefinition"
