"""What an administrator and Prometheus see of a cluster at one moment, as text: the columns of `kubectl get`,
conditions, what the two commands say, the metrics, and the alerts that would fire if all of it stayed so.

A case looks before a fault and during it. The texts are kept in the directory of the case.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.kubernetes.place import Place
from tools.chart import render
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import ROOT

KINDS: Final = ("brokerclusters", "brokergroups", "brokers", "topics", "consumergroups")
PLUGIN: Final = Path(sys.executable).parent / "kubectl-seriatim"
STATUS: Final = (PLUGIN, "status")
DOCTOR: Final = (PLUGIN, "doctor")
PROMTOOL: Final = ROOT / ".tools" / "bin" / "promtool"
COMMAND_S: Final = 60.0
PORTS: Final = {"broker": "https:{}:7101", "operator": "{}:7102", "etcd": "{}:2381"}
"""How the API server reaches the metrics of each component."""

BETWEEN_S: Final = 5.0
"""Between two readings of a page. Counters continue as between them."""

STAYS_S: Final = 3600
STEP_S: Final = 30

STATES: Final = re.compile(
    r"up\{|seriatim_(cluster|ready|controller|coordinator_(refuses|behind)|operator_leader|operator_condition\{|"
    r"quarantined)|etcd_server_has_leader"
)
"""The metrics that report a state. The others move with the traffic."""

POLL_S: Final = 0.5
AT_ONCE: Final = 3
"""Pages that are read at the same time. Each takes a thread, and conditions are read in others meanwhile."""

Series = dict[str, float]
"""Values by name and labels, as `name{label="value"}`."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen.

    Attributes:
        seconds: The time that it took to look, because some of it is a little older than the rest.
        texts: The output of each command.
        conditions: `Kind name: Type=Status/Reason` of all objects.
        metrics: The series of all pages, with the labels that Prometheus adds.
        growing: Series per second, for those that grew between two readings.
        alerts: Alerts that would fire if all stayed so for an hour; empty without promtool.
    """

    seconds: float
    texts: Mapping[str, str]
    conditions: tuple[str, ...]
    metrics: Series
    growing: Series = field(default_factory=dict)
    alerts: tuple[str, ...] = ()

    def render(self, before: Sight | None = None) -> str:
        """The human-readable text. Of the metrics only those without a rate, and with another value than before."""
        parts = [f"$ {command}\n{text.rstrip()}" for command, text in self.texts.items()]
        parts.append("conditions:\n" + "\n".join(self.conditions))
        if before is not None:
            parts.append("metrics that changed:\n" + "\n".join(changed(before, self)))
        parts.append("alerts, if this stays for an hour: " + (", ".join(self.alerts) or "none"))
        return "\n\n".join([f"looked for {self.seconds:.1f} s", *parts]) + "\n"


def changed(before: Sight, after: Sight) -> list[str]:
    """The series of our gauges that differ, as `name: before -> after`."""

    def told(sight: Sight, name: str) -> str:
        return f"{sight.metrics[name]:g}" if name in sight.metrics else "-"

    names = sorted(before.metrics.keys() | after.metrics.keys())
    return [
        f"{name}: {told(before, name)} -> {told(after, name)}"
        for name in names
        if STATES.match(name) and told(before, name) != told(after, name)
    ]


async def look(place: Place) -> Sight:
    """Look at everything in the namespace. If something does not answer, its text says so."""
    began = time.monotonic()
    commands: dict[str, Sequence[str | Path]] = {
        **{f"kubectl get {kind}": ("kubectl", "get", f"{kind}.seriatim.dev") for kind in KINDS},
        "kubectl seriatim status": STATUS,
        "kubectl seriatim doctor": DOCTOR,
    }
    conditions = await _conditions(place)
    texts = await asyncio.gather(*(output(place, command) for command in commands.values()))
    first, first_at = await _metrics(place), time.monotonic()
    await asyncio.sleep(BETWEEN_S)
    metrics = await _metrics(place)
    between_s = time.monotonic() - first_at
    seconds = time.monotonic() - began
    growing = {
        name: (value - first[name]) / between_s
        for name, value in metrics.items()
        if re.search(r"(_total|_count|_sum|_bucket)(\{|\Z)", name) and value > first.get(name, value)
    }
    alerts = await asyncio.to_thread(alerts_of, metrics, growing, place.namespace)
    return Sight(seconds, dict(zip(commands, texts, strict=True)), conditions, metrics, growing, alerts)


async def output(place: Place, command: Sequence[str | Path]) -> str:
    """What a command prints about the namespace."""
    environment = {**os.environ, **place.cluster.environment(), "COLUMNS": "140"}
    process = await asyncio.create_subprocess_exec(
        *command, f"--namespace={place.namespace}", env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(COMMAND_S):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        return f"(no end after {COMMAND_S:.0f} s)"
    return out.decode(errors="replace")


async def _conditions(place: Place) -> tuple[str, ...]:
    found = []
    for kind in KINDS:
        for item in await place.list(kind):
            conditions = (item.get("status") or {}).get("conditions") or ()
            told = " ".join(f"{c['type']}={c['status']}/{c['reason']}" for c in conditions)
            found.append(f"{item['kind']} {item['metadata']['name']}: {told}")
    return tuple(found)


@asynccontextmanager
async def recorded(place: Place, path: Path) -> AsyncIterator[None]:
    """Write each change of a condition into a file for as long as the block lasts, with the seconds since its begin."""
    began = time.monotonic()
    lines: list[str] = []

    async def follow() -> None:
        before: dict[str, str] = {}
        while True:
            with suppress(ClusterError):
                now = {
                    f"{told.partition(': ')[0]} {one.partition('=')[0]}": one.partition("=")[2]
                    for told in await _conditions(place)
                    for one in told.partition(": ")[2].split()
                }
                at = time.monotonic() - began
                changes = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
                lines.extend(
                    f"{at:6.1f} s  {name}: {before.get(name)} -> {now.get(name)}" for name in changes if before
                )
                before = now
            await asyncio.sleep(POLL_S)

    task = asyncio.create_task(follow(), name="conditions")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(path.write_text, "\n".join(lines) + "\n")


# ---- metrics ---------------------------------------------------------------------------------------------------


async def _metrics(place: Place) -> Series:
    """The series of all pods, and `up` of each. The labels are those of the chart's PodMonitors."""
    pods = [pod for pod in await place.list("pods") if not pod["metadata"].get("deletionTimestamp")]
    gate = asyncio.Semaphore(AT_ONCE)
    pages = await asyncio.gather(*(_page(place, pod, gate) for pod in pods))
    return {name: value for page in pages for name, value in page.items()}


async def _page(place: Place, pod: Mapping[str, Any], gate: asyncio.Semaphore) -> Series:
    labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
    component = labels.get("app.kubernetes.io/component", "")
    if component not in PORTS:
        return {}
    more = {"namespace": place.namespace, "pod": name, "job": f"{place.namespace}/seriatim-{component}"}
    if component == "broker":
        more |= {"seriatim_cluster": labels["seriatim.dev/cluster"], "seriatim_group": labels["seriatim.dev/group"]}
    try:
        async with gate:
            text = await page_of(place, component, name)
    except ClusterError:
        return {_named("up", more): 0.0}
    return {**series_of(text, more), _named("up", more): 1.0}


async def page_of(place: Place, component: str, pod: str) -> str:
    """The metrics of a pod, as Prometheus reads them.

    Raises:
        ClusterError: It does not answer in 5 s.
    """
    path = f"/api/v1/namespaces/{place.namespace}/pods/{PORTS[component].format(pod)}/proxy/metrics"
    return await place.kubectl("get", "--raw", path, "--request-timeout=5s", timeout_s=10)


def names_on(page: str) -> set[str]:
    """The names of all series that a page has or will have: a counter with labels has no series until it counts."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE):
        found |= {f"{name}{end}" for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return found


def _named(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in sorted(labels.items()))}}}"


def series_of(page: str, more: Mapping[str, str]) -> Series:
    """The series of a page of metrics. Labels of the page win over those of `more`, as with `honorLabels`."""
    found = {}
    for line in page.splitlines():
        matched = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?", line)
        if matched is None:
            continue
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', matched[2] or ""))
        found[_named(matched[1], {**more, **labels})] = float(matched[3])
    return found


# ---- alerts ----------------------------------------------------------------------------------------------------


def rules_of(namespace: str) -> dict[str, Any]:
    """The chart's rules for a release in this namespace, as Prometheus reads them."""
    manifests = yaml.safe_load_all(render("--set", "monitoring.rules=Always", "--namespace", namespace))
    (spec,) = [found["spec"] for found in manifests if found and found["kind"] == "PrometheusRule"]
    return dict(spec)


def names_in(expression: str) -> set[str]:
    """The names of metrics in an expression."""
    return set(re.findall(r"\b(?:seriatim|etcd)_\w+|\bup\b", re.sub(r'"[^"]*"', '""', expression))) - LABELS


LABELS: Final = frozenset({"seriatim_cluster", "seriatim_group"})


def alerts_of(metrics: Series, growing: Series, namespace: str) -> tuple[str, ...]:
    """Alerts that fire after an hour in which gauges stay, and counters continue to grow; empty without promtool."""
    if not os.access(PROMTOOL, os.X_OK):
        return ()
    rules = rules_of(namespace)
    alerts = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    wanted = {name for rule in alerts.values() for name in names_in(rule["expr"])}
    steps = STAYS_S // STEP_S
    now = time.time()
    series = []
    for name, value in metrics.items():
        if name.partition("{")[0] not in wanted or value != value:
            continue
        if "timestamp_seconds" in name or "start_time_seconds" in name:
            value = value - now + STAYS_S if value else 0.0  # the clock of promtool begins at 0
        step = growing.get(name, 0.0) * STEP_S
        series.append({"series": name, "values": f"{value:g}+{step:g}x{steps}"})
    questions = [
        {"expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}', "eval_time": f"{STAYS_S}s"} for alert in alerts
    ]
    with tempfile.TemporaryDirectory() as directory:
        (path := Path(directory) / "rules.yaml").write_text(yaml.safe_dump(rules))
        tests = [{"interval": f"{STEP_S}s", "input_series": series, "promql_expr_test": questions}]
        written = {"rule_files": [str(path)], "evaluation_interval": f"{STEP_S}s", "tests": tests}
        (test := Path(directory) / "test.yaml").write_text(yaml.safe_dump(written))
        return _firing(test, alerts)


def _firing(test: Path, alerts: Mapping[str, Any]) -> tuple[str, ...]:
    """Run promtool on questions to which no answer is expected. What it complains about is what fires."""
    done = subprocess.run([PROMTOOL, "test", "rules", test], check=False, capture_output=True, text=True)
    told = set(re.findall(r'got:.*?alertname="(\w+)"', (done.stdout + done.stderr), re.DOTALL))
    return tuple(sorted(told & alerts.keys()))
