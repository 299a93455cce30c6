"""The commands against a real API server: what they read, what they write, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from seriatim_operator.plugin.main import main

from ..api_server import ApiServer
from .objects import cluster, condition

NAMESPACE = "plugin"
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> Iterator[ApiServer]:
    """An API server with one cluster in a namespace of its own."""
    api_server.kubectl("create", "namespace", NAMESPACE)
    manifest = cluster().to_manifest()
    manifest["metadata"] = {"name": "orders", "namespace": NAMESPACE}
    status = manifest.pop("status")
    groups = [
        {
            "apiVersion": manifest["apiVersion"],
            "kind": "BrokerGroup",
            "metadata": {"name": f"orders-{name}", "namespace": NAMESPACE},
            "spec": {"cluster": "orders", "group": name},
        }
        for name in ("g0", "g1")
    ]
    topic = {**groups[0], "kind": "Topic", "metadata": {"name": "events", "namespace": NAMESPACE}}
    topic["spec"] = {"cluster": "orders"}
    items = {"apiVersion": "v1", "kind": "List", "items": [manifest, *groups, topic]}
    api_server.kubectl("apply", "-f", "-", text=json.dumps(items))
    change = {"action": "Restart", "object": "orders-g0-0-aaaa", "reason": "its template changed", "hash": "abc123"}
    patch_status(api_server, "brokercluster", "orders", {**status, "plannedChanges": [change]})
    whole = {"conditions": [condition("Whole", "True", "AllThere")], "heads": 3, "segments": 5}
    for name in ("g0", "g1"):
        patch_status(api_server, "brokergroup", f"orders-{name}", whole)
    yield api_server
    api_server.kubectl("delete", "brokercluster,brokergroup,topic", "--all", "-n", NAMESPACE)


def patch_status(server: ApiServer, kind: str, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    server.kubectl("patch", kind, name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", patch)


@pytest.fixture
def run(server: ApiServer) -> Run:
    """Runs a command as an administrator would, with the server's kubeconfig."""

    def call(*arguments: str, kubeconfig: Path = server.kubeconfig, answer: str | None = None) -> Result:
        flags = ["--kubeconfig", str(kubeconfig), "-n", NAMESPACE]
        return CliRunner().invoke(main, [*arguments, *flags], input=answer)

    return call


def state_of(server: ApiServer, group: str) -> str:
    return server.kubectl("get", "brokergroup", group, "-n", NAMESPACE, "-o", "jsonpath={.spec.state}")


def test_status(run: Run) -> None:
    result = run("status")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("orders in plugin  Ready")
    assert "g1     Active       1      3         5" in result.output


def test_status_of_a_cluster_that_is_not_there(run: Run) -> None:
    result = run("status", "bills")
    assert (result.exit_code, result.output) == (
        2,
        "error: there is no BrokerCluster bills in namespace plugin; there is orders\n",
    )


def test_flags_stand_before_or_behind_the_command(server: ApiServer) -> None:
    flags = ["--kubeconfig", str(server.kubeconfig), "-n", NAMESPACE]
    assert CliRunner().invoke(main, [*flags, "status"]).exit_code == 0
    assert CliRunner().invoke(main, ["status", *flags]).exit_code == 0


def test_chains_offline(run: Run) -> None:
    assert run("chains", "events", "--offline").output.startswith("events  0 partitions, Unknown")
    assert run("chains", "nope", "--offline").exit_code == 2


def test_chains_without_a_broker_say_so(run: Run) -> None:
    result = run("chains", "events")
    assert result.exit_code == 2
    assert "no broker of orders runs" in result.output


def test_plan_is_shown_and_approved(run: Run, server: ApiServer) -> None:
    assert "orders-g0-0-aaaa" in run("plan").output
    refused = run("plan", "--approve", "other")
    assert refused.exit_code == 2
    assert "abc123" in refused.output
    assert run("plan", "--approve", "abc123").exit_code == 0
    noted = server.kubectl(
        "get",
        "brokercluster",
        "orders",
        "-n",
        NAMESPACE,
        "-o",
        r"jsonpath={.metadata.annotations.seriatim\.dev/approve}",
    )
    assert noted == "abc123"


def test_cordon_and_back(run: Run, server: ApiServer) -> None:
    assert run("drain", "g0", "--cordon").exit_code == 0
    assert state_of(server, "orders-g0") == "Cordoned"
    assert "nothing can leave g1" in run("drain", "g1", "--cordon").output
    assert state_of(server, "orders-g1") == "Active"
    assert run("drain", "orders-g0", "--undo").exit_code == 0
    assert state_of(server, "orders-g0") == "Active"


def test_nothing_is_drained_while_no_broker_can_be_asked(run: Run, server: ApiServer) -> None:
    assert run("drain", "g0", "-y").exit_code == 2
    assert state_of(server, "orders-g0") == "Active"


def test_written_fields_bear_the_commands_name(run: Run, server: ApiServer) -> None:
    run("drain", "g0", "--cordon")
    run("drain", "g0", "--undo")
    managers = server.kubectl(
        "get",
        "brokergroup",
        "orders-g0",
        "-n",
        NAMESPACE,
        "--show-managed-fields",
        "-o",
        "jsonpath={.metadata.managedFields[*].manager}",
    )
    assert "kubectl-seriatim" in managers.split()


def test_doctor_ends_with_what_it_found(run: Run) -> None:
    result = run("doctor", "--offline")
    assert result.exit_code == 1
    assert "✘ StorageClass local-nvme: there is no class of that name" in result.output
    assert "remedy:" in result.output


def test_doctor_without_a_name_examines_all_clusters(run: Run, server: ApiServer) -> None:
    assert "orders in plugin" not in run("doctor", "--offline").output, "one cluster needs no heading"
    bills = cluster().to_manifest()
    bills["metadata"] = {"name": "bills", "namespace": NAMESPACE}
    del bills["status"]
    server.kubectl("apply", "-f", "-", text=json.dumps(bills))
    try:
        result = run("doctor", "--offline")
        assert result.exit_code == 1
        assert [line for line in result.output.splitlines() if line.endswith(" in plugin")] == [
            "bills in plugin",
            "orders in plugin",
        ]
        assert "bills in plugin" not in run("doctor", "orders", "--offline").output
        everywhere = CliRunner().invoke(main, ["doctor", "-A", "--offline", "--kubeconfig", str(server.kubeconfig)])
        assert "orders in plugin" in everywhere.output
        assert "leave one of them out" in run("doctor", "orders", "-A").output
    finally:
        server.kubectl("delete", "brokercluster", "bills", "-n", NAMESPACE)
    nothing = CliRunner().invoke(main, ["doctor", "-n", "default", "--kubeconfig", str(server.kubeconfig)])
    assert nothing.exit_code == 2
    assert "no BrokerCluster in namespace default. Remedy: --all-namespaces" in nothing.output


def test_what_a_person_may_not_read_is_left_out(run: Run, server: ApiServer, tmp_path: Path) -> None:
    may = "--resource=brokerclusters.seriatim.dev,brokergroups.seriatim.dev,brokers.seriatim.dev,topics.seriatim.dev"
    server.kubectl("create", "serviceaccount", "reader", "-n", NAMESPACE)
    server.kubectl("create", "role", "reader", "-n", NAMESPACE, "--verb=get,list", may)
    server.kubectl(
        "create", "rolebinding", "reader", "-n", NAMESPACE, "--role=reader", f"--serviceaccount={NAMESPACE}:reader"
    )
    token = server.kubectl("create", "token", "reader", "-n", NAMESPACE).strip()
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    mine = tmp_path / "kubeconfig"
    mine.write_text(yaml.safe_dump(config))
    result = run("status", kubeconfig=mine)
    assert result.exit_code == 0, result.output
    assert "you may not read it: ConsumerGroup, " in result.output
    told = run("doctor", "--offline", kubeconfig=mine).output
    assert "? StorageClass local-nvme: you may not read it" in told
    refused = run("drain", "g0", "--cordon", kubeconfig=mine)
    assert refused.exit_code == 2
    assert "forbidden" in refused.output


def test_an_api_that_is_not_there_and_a_context_that_is_none(bare_api_server: ApiServer, tmp_path: Path) -> None:
    config = yaml.safe_load(bare_api_server.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    nowhere = tmp_path / "kubeconfig"
    nowhere.write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(main, ["status", "--kubeconfig", str(nowhere)])
    assert result.exit_code == 2
    assert "the Kubernetes API does not answer" in result.output
    unknown = CliRunner().invoke(main, ["status", "--context", "nope", "--kubeconfig", str(nowhere)])
    assert unknown.exit_code == 2
    assert "there is no context 'nope'; there are tests" in unknown.output
