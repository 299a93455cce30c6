"""The operator as a process on a real API server: it leads, reconciles, stops cleanly, and ends without its Lease."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.ports import free_port

from ..api_server import ROOT, ApiServer
from ..spec.objects import good

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/seriatim-operator"
SECOND_LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/second"
DEADLINE_S = 60.0


def until(what: str, found: Callable[[], object]) -> object:
    """Look again and again until there is something."""
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        result = found()
        if result:
            return result
        time.sleep(0.1)  # there is nothing to wait on but the API itself
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


@contextlib.contextmanager
def operator(
    server: ApiServer, directory: Path, lease: str = "seriatim-operator", watched: str = "default"
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """A running operator, and what its probe says."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SERIATIM_")}
    environment |= {
        "KUBECONFIG": str(server.kubeconfig),
        "SERIATIM_OPERATOR_METRICS_LISTEN": f"127.0.0.1:{port}",
        "SERIATIM_OPERATOR_WATCH_NAMESPACES": watched,
        "SERIATIM_OPERATOR_LEASE_NAME": lease,
    }
    command = [sys.executable, "-c", "from seriatim_operator.running import run_operator; run_operator()"]
    with (directory / "operator.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def health() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                return str(answer.read().decode()).strip()
        except (OSError, urllib.error.URLError):
            return ""

    try:
        yield process, health
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=30)


@pytest.fixture
def nobody_holds_the_lease(api_server: ApiServer) -> Iterator[ApiServer]:
    """An API server without our Lease and our objects."""
    yield api_server
    for lease in (LEASE, SECOND_LEASE):
        api_server.call("DELETE", lease)
    api_server.kubectl("delete", "brokerclusters,brokergroups,brokers,pods,pvc", "--all", "--wait=false")


def cluster(name: str) -> str:
    """A cluster whose class is not there: nothing is started, and a condition says why."""
    storage = {"storageClassName": "nowhere", "size": "10Gi"}
    return json.dumps(good("BrokerCluster", name, namespace="default", groups=1, storage=storage))


def test_it_leads_reconciles_and_stops_in_order(nobody_holds_the_lease: ApiServer, tmp_path: Path) -> None:
    server = nobody_holds_the_lease
    server.kubectl("apply", "-f", "-", text=cluster("before"))
    with operator(server, tmp_path) as (process, health):
        until("it leads", lambda: health() == "leading")

        def degraded(name: str) -> str:
            path = "{.status.conditions[?(@.type=='Degraded')].reason}"
            return server.kubectl("get", "brokercluster", name, "-o", f"jsonpath={path}").strip()

        until("what was there is reported", lambda: degraded("before") == "StorageClassUnknown")
        server.kubectl("apply", "-f", "-", text=cluster("after"))
        until("what comes is reported", lambda: degraded("after") == "StorageClassUnknown")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, (tmp_path / "operator.log").read_text()
    assert server.call("GET", LEASE).body["spec"]["holderIdentity"] == "", "the next one need not wait"


def test_it_ends_when_somebody_else_has_its_lease(nobody_holds_the_lease: ApiServer, tmp_path: Path) -> None:
    server = nobody_holds_the_lease
    with operator(server, tmp_path) as (process, health):
        until("it leads", lambda: health() == "leading")
        patch = {"spec": {"holderIdentity": "another"}}
        assert server.call("PATCH", LEASE, patch, "application/merge-patch+json").complaint == ""
        assert process.wait(timeout=30) == 75, (tmp_path / "operator.log").read_text()
        assert "another operator holds the Lease" in (tmp_path / "operator.log").read_text()


def test_a_second_operator_leaves_clusters_alone_until_the_first_ends(
    nobody_holds_the_lease: ApiServer, tmp_path: Path
) -> None:
    server = nobody_holds_the_lease
    path = "/apis/seriatim.dev/v1alpha1/namespaces/default/brokerclusters/shared"

    def noted() -> str:
        return str((server.call("GET", path).body["metadata"].get("annotations") or {}).get("seriatim.dev/operator"))

    def told() -> str:
        return server.kubectl("get", "events", "--field-selector", "reason=OtherOperator", "-o", "name")

    server.kubectl("apply", "-f", "-", text=cluster("shared"))
    with operator(server, tmp_path) as (first, _):
        until("the first acts", lambda: server.call("GET", path).body.get("status", {}).get("reportedAt"))
        assert noted() == "default/seriatim-operator"
        with operator(server, tmp_path, "second") as (second, health):
            until("the second leads, by its own Lease", lambda: health() == "leading")
            until("it says that it leaves the cluster alone", told)
            assert noted() == "default/seriatim-operator"
            assert len(told().split()) == 1
            first.send_signal(signal.SIGTERM)
            assert first.wait(timeout=30) == 0
            until("the second acts", lambda: noted() == "default/second")
            assert second.poll() is None


@pytest.mark.parametrize("watched", ["", "default"])
def test_a_kind_that_was_deleted_and_put_back_is_seen_again(
    watched: str, nobody_holds_the_lease: ApiServer, tmp_path: Path
) -> None:
    server = nobody_holds_the_lease
    path = "/apis/seriatim.dev/v1alpha1/namespaces/default/brokerclusters/shared"
    log = tmp_path / "operator.log"

    def reported() -> object:
        return server.call("GET", path).body.get("status", {}).get("reportedAt")

    server.kubectl("apply", "-f", "-", text=cluster("shared"))
    with operator(server, tmp_path, watched=watched) as (process, _):
        until("it acts", reported)
        server.kubectl("delete", "crd", "brokerclusters.seriatim.dev")
        until("the operator has seen it", lambda: re.search("kinds_changed|watch_failed", log.read_text()))
        server.kubectl("apply", "-f", str(ROOT / "crds"))
        text = cluster("shared")
        until("the kind is served", lambda: server.try_kubectl("apply", "-f", "-", text=text).returncode == 0)
        until("it acts again", reported)
        assert process.poll() is None, log.read_text()
