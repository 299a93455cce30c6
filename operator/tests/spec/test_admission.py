"""The chart's admission policy on a real API server: only what the operator makes becomes a BrokerGroup or a Broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ..api_server import ROOT, ApiServer
from .objects import changed, create, good, path_of

GOLDEN = ROOT / "e2e" / "tests" / "chart" / "golden" / "default.yaml"
POLICY_S = 30.0
"""Seconds in which the API server takes a new policy into use, or forgets one; mostly it needs one."""


def policies() -> list[dict[str, Any]]:
    found = yaml.safe_load_all(GOLDEN.read_text())
    return [each for each in found if each and each["kind"].startswith("ValidatingAdmissionPolicy")]


def owned(manifest: dict[str, Any], *, is_controller: bool = True) -> dict[str, Any]:
    """The object as the operator makes it, or with an owner that does not control it."""
    owner = {"kind": "BrokerCluster", "apiVersion": manifest["apiVersion"], "name": "orders", "uid": "u"}
    return changed(manifest, "metadata.ownerReferences", [{**owner, "controller": is_controller}])


@pytest.fixture
def guarded(api_server: ApiServer) -> Iterator[ApiServer]:
    """An API server on which the policy acts."""
    items = {"apiVersion": "v1", "kind": "List", "items": policies()}
    api_server.kubectl("apply", "-f", "-", text=json.dumps(items))
    wait_until(api_server, acts=True)
    yield api_server
    api_server.kubectl("delete", "-f", "-", text=json.dumps(items))
    wait_until(api_server, acts=False)


def wait_until(server: ApiServer, *, acts: bool) -> None:
    """Wait until the policy acts, or does not any more."""
    end_s = time.monotonic() + POLICY_S
    while bool(create(server, good("BrokerGroup", "probe")).complaint) != acts:
        assert time.monotonic() < end_s, "the API server does not follow the policy"
        server.call("DELETE", path_of("BrokerGroup", "probe"))
    server.call("DELETE", path_of("BrokerGroup", "probe"))


def test_the_chart_has_the_policy_and_its_binding() -> None:
    assert [each["kind"] for each in policies()] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]


@pytest.mark.parametrize("kind", ["BrokerGroup", "Broker"])
def test_objects_that_only_the_operator_makes_are_refused_from_others(kind: str, guarded: ApiServer) -> None:
    for by_hand in (good(kind), owned(good(kind), is_controller=False)):
        said = create(guarded, by_hand).complaint
        assert "only the operator makes BrokerGroups and Brokers" in said
        assert "spec.groups" in said
    made = owned(good(kind))
    assert create(guarded, made).complaint == ""
    assert guarded.call("DELETE", path_of(kind, made["metadata"]["name"])).complaint == ""
