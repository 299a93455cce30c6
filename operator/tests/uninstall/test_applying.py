"""The chart's BrokerCluster, applied to a real API server again and again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from seriatim_operator.applying import apply_file
from seriatim_operator.cluster.kinds import BROKER_CLUSTER
from seriatim_operator.cluster.kube import InvalidError, KubeError, UnknownKindError

from ..api_server import ApiServer
from ..spec.objects import good

# The test's API server has a certificate of its own making.
pytestmark = pytest.mark.filterwarnings("ignore:Unverified HTTPS request")

NAMESPACE = "applying"
PATH = f"/apis/seriatim.dev/v1alpha1/namespaces/{NAMESPACE}/brokerclusters"


def written(directory: Path, **spec: Any) -> Path:
    """A file with a cluster."""
    path = directory / "cluster.yaml"
    path.write_text(yaml.safe_dump(good("BrokerCluster", namespace=NAMESPACE, **spec)))
    return path


@pytest.fixture
def server(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """With an empty namespace."""
    # The client's library reads the environment once, when it is imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(api_server.kubeconfig))
    api_server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    api_server.call("DELETE", PATH)
    return api_server


def spec_of(server: ApiServer) -> dict[str, Any]:
    """The cluster's, as it is."""
    return dict(server.call("GET", f"{PATH}/orders").body["spec"])


def test_what_is_said_is_set_what_is_no_longer_said_is_taken_back_and_others_words_stay(
    server: ApiServer, tmp_path: Path
) -> None:
    apply_file(written(tmp_path, nodeLossTimeoutSeconds=120, settings={"heal_after_s": "300"}))
    assert spec_of(server)["nodeLossTimeoutSeconds"] == 120
    pause = {"spec": {"paused": True}}
    server.call("PATCH", f"{PATH}/orders", pause, "application/merge-patch+json")
    apply_file(written(tmp_path, nodeLossTimeoutSeconds=90, groups=3))
    spec = spec_of(server)
    assert spec["nodeLossTimeoutSeconds"] == 90
    assert spec["groups"] == 3
    assert spec["paused"] is True
    assert "heal_after_s" not in spec.get("settings", {})


def test_a_number_of_groups_that_is_not_said_stays_as_it_is(server: ApiServer, tmp_path: Path) -> None:
    path = written(tmp_path)
    manifest = yaml.safe_load(path.read_text())
    del manifest["spec"]["groups"]
    path.write_text(yaml.safe_dump(manifest))
    apply_file(path, groups_if_new=2)
    assert spec_of(server)["groups"] == 2
    apply_file(path, groups_if_new=3)  # a later chart has another default
    assert spec_of(server)["groups"] == 2
    server.call("PATCH", f"{PATH}/orders", {"spec": {"groups": 5}}, "application/merge-patch+json")
    apply_file(path)
    assert spec_of(server)["groups"] == 5


def test_a_rollback_adds_groups_and_removes_none(server: ApiServer, tmp_path: Path) -> None:
    apply_file(written(tmp_path, groups=4))
    apply_file(written(tmp_path, groups=3, nodeLossTimeoutSeconds=90), remove_no_groups=True)
    assert (spec_of(server)["groups"], spec_of(server)["nodeLossTimeoutSeconds"]) == (4, 90)
    apply_file(written(tmp_path, groups=6), remove_no_groups=True)
    assert spec_of(server)["groups"] == 6
    apply_file(written(tmp_path, groups=3))
    assert spec_of(server)["groups"] == 3, "an upgrade that names a number means it"


def test_what_the_api_refuses_is_told_in_its_words_and_at_once(server: ApiServer, tmp_path: Path) -> None:
    apply_file(written(tmp_path))
    with pytest.raises(InvalidError, match="make a new cluster"):
        apply_file(written(tmp_path, membersPerGroup=3))


def test_what_cannot_be_applied_yet_is_waited_for_so_long_and_no_longer(server: ApiServer, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(written(tmp_path).read_text().replace(NAMESPACE, "no-such-namespace"))
    with pytest.raises(KubeError, match="no-such-namespace"):
        apply_file(path, patience_s=0.1)


def test_a_kind_that_is_not_defined_is_told_soon_with_what_to_do(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_s = dataclasses.replace(BROKER_CLUSTER, api_version="seriatim.dev/v0")
    monkeypatch.setattr("seriatim_operator.cluster.kube.kind_of", lambda _: nobody_s)
    monkeypatch.setattr("seriatim_operator.applying.UNKNOWN_KIND_S", 0.1)
    with pytest.raises(UnknownKindError, match=r"crds\.install=true"):
        apply_file(written(tmp_path))


def test_the_last_key_of_a_map_is_taken_back_where_somebody_else_had_written_one(
    server: ApiServer, tmp_path: Path
) -> None:
    apply_file(written(tmp_path))
    patch = {"spec": {"settings": {"heal_after_s": "60"}, "podTemplate": {"labels": {"team": "a"}}}}
    assert server.call("PATCH", f"{PATH}/orders", patch, "application/merge-patch+json").complaint == ""
    apply_file(written(tmp_path, settings={"heal_after_s": "91"}, podTemplate={"labels": {"team": "b"}}))
    assert spec_of(server)["settings"] == {"heal_after_s": "91"}
    apply_file(written(tmp_path))
    assert not spec_of(server).get("settings")
    assert not spec_of(server)["podTemplate"].get("labels")
