"""Pictures of the chart's dashboards: every query can be asked, and every panel is drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from e2e.kubernetes.pictures import DASHBOARDS, DRAWN, Line, amount, filled, legend, picture
from e2e.kubernetes.watching import configure, target_of


def panels(name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((DASHBOARDS / f"{name}.json").read_text())["panels"]
    return found


@pytest.mark.parametrize("name", DRAWN)
def test_no_variable_of_grafana_is_left_in_a_query(name: str) -> None:
    for panel in panels(name):
        for target in panel["targets"]:  # type: ignore[attr-defined]
            assert "$" not in filled(target["expr"]), panel["title"]


@pytest.mark.parametrize("name", DRAWN)
def test_each_panel_has_its_title_and_its_series(name: str) -> None:
    line = Line("one", ((0.0, 1.0), (10.0, 3.0)))
    whole = panels(name)
    lines = [[line] if number else [] for number in range(len(whole))]
    drawn = picture("a title", list(zip(whole, lines, strict=True)), 0.0, 10.0)
    texts = [element.text for element in drawn.iter("text")]
    assert {panel["title"] for panel in whole} <= set(texts)
    assert texts.count("no data") == 1
    plotted = sum(panel["type"] == "timeseries" for panel in whole[1:])
    assert len(drawn.findall("polyline")) == plotted


def test_a_legend_has_the_labels_that_its_form_names() -> None:
    assert legend("{{topic}} {{consumer_group}}", {"topic": "orders", "consumer_group": "audit"}) == "orders audit"
    assert legend("", {"__name__": "up", "pod": "a"}) == "pod=a"


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [(0.5, "percentunit", "50%"), (0.0021, "s", "2.1 ms"), (2_500_000, "Bps", "2.5 MB/s"), (3, "none", "3")],
)
def test_amounts_have_their_unit(value: float, unit: str, said: str) -> None:
    assert amount(value, unit) == said


def test_the_key_in_prometheuss_settings_is_for_the_owner_alone(tmp_path: Path) -> None:
    kubeconfig, file = tmp_path / "kubeconfig", tmp_path / "prometheus.yaml"
    (tmp_path / "key").write_text("a key")
    user = {"client-certificate-data": "YQ==", "client-key": str(tmp_path / "key")}
    clusters = [{"cluster": {"certificate-authority-data": "Yg=="}}]
    kubeconfig.write_text(json.dumps({"clusters": clusters, "users": [{"user": user}]}))
    file.write_text("of an earlier run, for all to read")
    file.chmod(0o644)
    configure(kubeconfig, file, tmp_path / "targets.json")
    assert file.stat().st_mode & 0o777 == 0o600
    (pods,) = yaml.safe_load(file.read_text())["scrape_configs"]
    assert pods["tls_config"] == {"ca": "b", "cert": "a", "key": "a key"}


def pod(component: str, **metadata: object) -> dict[str, object]:
    labels = {
        "app.kubernetes.io/component": component,
        "seriatim.dev/cluster": "orders",
        "seriatim.dev/group": "g0",
    }
    return {"metadata": {"name": "pod-0", "labels": labels, **metadata}}


def test_a_broker_is_read_through_the_api_server_with_the_labels_of_the_chart() -> None:
    (target,) = target_of(pod("broker"), "https://10.0.0.1:6443", "shop")
    assert target["targets"] == ["10.0.0.1:6443"]
    labels = target["labels"]
    assert isinstance(labels, dict)
    assert labels["__metrics_path__"] == "/api/v1/namespaces/shop/pods/https:pod-0:7101/proxy/metrics"
    assert (labels["namespace"], labels["seriatim_cluster"], labels["seriatim_group"]) == ("shop", "orders", "g0")


def test_a_pod_without_metrics_and_one_that_ends_are_not_read() -> None:
    assert target_of(pod("console"), "https://10.0.0.1:6443", "shop") == []
    assert target_of(pod("broker", deletionTimestamp="now"), "https://10.0.0.1:6443", "shop") == []
