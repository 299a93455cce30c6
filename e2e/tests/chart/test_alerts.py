"""The chart's alerts, tested with promtool: each fires in its example, and does not in the one that is near to it.

Needs helm and promtool (`make promtool`), but no cluster.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.chart import ROOT, find_helm, render

PROMTOOL = ROOT / ".tools" / "bin" / "promtool"
ALERTS = [alert["name"] for alert in yaml.safe_load((ROOT / "files" / "alerts" / "alerts.yaml").read_text())]
EXAMPLES = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())
STEP = "30s"
CLUSTER = 'namespace="shop",seriatim_cluster="orders"'
LABELS = {
    "b": f'{CLUSTER},seriatim_group="g0",pod="p0",broker="g0-0"',
    "c": CLUSTER,
    "t": f'{CLUSTER},topic="payments",consumer_group="ledger"',
}


@pytest.fixture(scope="module")
def promtool() -> str:
    """promtool. Without it and helm the test is skipped, unless SERIATIM_REQUIRE_PROMTOOL=1 forbids that."""
    missing = "helm" if find_helm() is None else "promtool" if not os.access(PROMTOOL, os.X_OK) else ""
    if missing and os.environ.get("SERIATIM_REQUIRE_PROMTOOL") == "1":
        pytest.fail(f"there is no {missing}: `make promtool` and `make e2e-cluster` build them")
    if missing:
        pytest.skip(f"there is no {missing}: `make promtool` and `make e2e-cluster` build them")
    return str(PROMTOOL)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory, promtool: str) -> Path:
    """The chart's rules, as Prometheus reads them."""
    manifests = yaml.safe_load_all(render("--set", "monitoring.rules=Always"))
    (spec,) = [found["spec"] for found in manifests if found and found["kind"] == "PrometheusRule"]
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def series(example: dict[str, Any]) -> list[dict[str, str]]:
    """The series of an example, with all their labels."""

    def whole(found: re.Match[str]) -> str:
        return found[1] + ",".join(LABELS.get(label, label) for label in found[2].split(",")) + "}"

    return [
        {"series": re.sub(r"^([^{]*\{)(.*)\}$", whole, name), "values": values}
        for name, values in example["series"].items()
    ]


def complaints(path: Path, rules: Path, examples: list[tuple[str, dict[str, Any], dict[str, str] | None]]) -> str:
    """Run promtool on examples. Returns its complaints; empty if there are none.

    Args:
        path: A directory to write in.
        rules: The rules.
        examples: For each the alert, the example, and the labels with which the alert must fire; None: it must not.
    """
    severities = {
        rule["alert"]: rule["labels"]["severity"] for rule in yaml.safe_load(rules.read_text())["groups"][0]["rules"]
    }
    tests = []
    for alert, example, labels in examples:
        expr = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        known = {"alertname": alert, "alertstate": "firing", "severity": severities[alert], **(labels or {})}
        told = ",".join(f'{name}="{value}"' for name, value in sorted(known.items()))
        samples = [] if labels is None else [{"labels": f"ALERTS{{{told}}}", "value": 1}]
        question = {"expr": expr, "eval_time": example["at"], "exp_samples": samples}
        tests.append({"interval": STEP, "input_series": series(example), "promql_expr_test": [question]})
    written = {"rule_files": [str(rules)], "evaluation_interval": STEP, "tests": tests}
    (path / "tests.yaml").write_text(yaml.safe_dump(written))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", str(path / "tests.yaml")], check=False, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_each_alert_has_an_example_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert set(EXAMPLES) == set(ALERTS)
    assert all(set(found) == {"fires", "quiet"} for found in EXAMPLES.values())


def test_prometheus_takes_the_rules(promtool: str, rules: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", str(rules)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path, promtool: str, rules: Path) -> None:
    examples: list[tuple[str, dict[str, Any], dict[str, str] | None]] = []
    for alert, found in EXAMPLES.items():
        examples += [(alert, found["fires"], found["fires"]["labels"]), (alert, found["quiet"], None)]
    assert complaints(tmp_path, rules, examples) == ""


def test_an_alert_that_is_expected_wrongly_is_found(tmp_path: Path, promtool: str, rules: Path) -> None:
    found = EXAMPLES["SeriatimBrokerDown"]
    assert "FAILED" in complaints(tmp_path, rules, [("SeriatimBrokerDown", found["fires"], None)])
    assert "FAILED" in complaints(tmp_path, rules, [("SeriatimBrokerDown", found["quiet"], found["fires"]["labels"])])


def test_prometheus_takes_the_queries_of_dashboards(tmp_path: Path, promtool: str) -> None:
    records = []
    for path in sorted((ROOT / "files" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "1m")
                records.append(
                    {"record": f"query:{path.stem.replace('-', '_')}_{panel['id']}_{target['refId']}", "expr": query}
                )
    written = tmp_path / "queries.yaml"
    written.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))
    done = subprocess.run([promtool, "check", "rules", str(written)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(records)} rules found" in done.stdout
