"""The chart refuses an operator that would watch the namespaces of another one, as a real API server reports it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tools.chart import KUBE_VERSION, HelmError, find_helm, run_helm

from ..api_server import ApiServer

pytestmark = pytest.mark.skipif(find_helm() is None, reason="there is no helm: `make e2e-cluster` builds one")

OUTSIDE_ETCD = "etcd.create=false,etcd.endpoints={etcd.elsewhere:2379}"


def render(server: ApiServer, release: str, values: str, namespace: str = "default") -> list[dict[str, Any]]:
    """What Helm would send to the server for a release."""
    arguments = ["--namespace", namespace, "--dry-run=server", "--kube-version", KUBE_VERSION]
    arguments.append(f"--kubeconfig={server.kubeconfig}")
    made = run_helm("template", release, ".", *arguments, "--set", f"{OUTSIDE_ETCD},{values}")
    return [each for each in yaml.safe_load_all(made) if each]


@pytest.fixture
def watched(api_server: ApiServer) -> Iterator[ApiServer]:
    """A server on which the operator of a release `first` watches `default` and `shop`."""
    manifests = render(api_server, "first", "watchNamespaces={default,shop}")
    [deployment] = [each for each in manifests if each["kind"] == "Deployment"]
    api_server.kubectl("apply", "-f", "-", text=json.dumps(deployment))
    yield api_server
    api_server.kubectl("delete", "deployment", deployment["metadata"]["name"])


@pytest.mark.parametrize("values", ["watchNamespaces=null", "watchNamespaces={shop,billing}", "rbac.scope=Namespace"])
def test_a_second_operator_over_the_same_namespaces_is_refused(values: str, watched: ApiServer) -> None:
    with pytest.raises(HelmError, match=r"operator default/first.*-operator watches .*uninstall it"):
        render(watched, "second", values)


def test_other_namespaces_and_the_release_itself_are_taken(watched: ApiServer) -> None:
    assert render(watched, "second", "watchNamespaces={billing}")
    assert render(watched, "first", "watchNamespaces={default,shop,billing}")
    name = watched.kubectl("get", "deployment", "-o", "name").strip()
    watched.kubectl("scale", name, "--replicas=0")
    assert render(watched, "second", "watchNamespaces={shop}")
