"""What administrators and Prometheus hear while etcd's majority or the operator is away, and whether the pages
have all metrics that alerts and dashboards name.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Final

from seriatim import Client, Tls

from e2e.kubernetes import coordinator
from e2e.kubernetes.cases.operators import OPERATOR
from e2e.kubernetes.cases.pods import has_restarted
from e2e.kubernetes.machines import kill_container
from e2e.kubernetes.place import Manifest, condition
from e2e.kubernetes.release import CLUSTER, RELEASE, topic_manifest
from e2e.kubernetes.sight import DOCTOR, PORTS, STATUS, Sight, names_in, names_on, output, page_of, rules_of
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import bootstrap_of, wait_topic_ready
from tools.kubernetes.layout import ROOT

ETCD: Final = f"statefulset/{RELEASE}-etcd"
GAP_LIMIT_S: Final = 0.3
SILENT_MESSAGES: Final = 3_000
TOLD_S: Final = 120.0
TOLD_LIMIT_S: Final = 30.0
STALE_S: Final = 240.0
STALE_LIMIT_S: Final = 30.0

BACK_S: Final = 120.0
UNREAD: Final = 200
READ_S: Final = 60.0


async def etcd_majority_away(stage: Stage) -> None:
    """Two of three members of etcd are away: messages continue, nothing can fail over, and the BrokerCluster says
    so."""
    async with stage.traffic() as traffic, stage.recorded():
        await stage.look("before")
        async with traffic.struck("two of three members of etcd away", ETCD):
            await stage.place.kubectl("scale", ETCD, "--replicas=1")
            try:
                stage.figure("EtcdSilent after", await _degraded(stage, "EtcdSilent"), limit=TOLD_LIMIT_S)
                await traffic.load.goes_on(SILENT_MESSAGES)
                stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
                seen = await stage.look("etcd-majority-away")
                _expects(stage, seen, "EtcdSilent", "SeriatimEtcdMemberDown")
            finally:
                await stage.place.kubectl("scale", ETCD, "--replicas=3")
        began = time.monotonic()
        await coordinator.wait_ready(stage.place)
        await stage.wait_healthy()
        stage.figure("Stable again after", time.monotonic() - began)
        await stage.look("after")


async def operator_away(stage: Stage) -> None:
    """No operator runs while a broker dies: the commands say since when the columns are old."""
    async with stage.traffic() as traffic, stage.recorded():
        await stage.look("before")
        async with traffic.struck("no operator", OPERATOR):
            await stage.place.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=0")
            try:
                victim = await traffic.master()
                before = await stage.pod_of(victim)
                kill_container(before)
                stage.figure("gap", await traffic.gap_s(), limit=GAP_LIMIT_S)
                stage.figure("reported as old after", await _says(stage, "no operator acts"), limit=STALE_LIMIT_S)
                seen = await stage.look("operator-away")
                _expects(stage, seen, "no operator acts", "SeriatimOperatorDown")
                if "operator" not in await output(stage.place, DOCTOR):
                    stage.problem("doctor does not say that no operator acts")
            finally:
                await stage.place.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=1")
        await stage.wait_until(f"{victim} has restarted", lambda: has_restarted(stage, victim, before), BACK_S)
        await stage.wait_healthy()


OF_THE_MACHINE: Final = frozenset(
    ("SeriatimDiskFilling", "SeriatimEtcdSlow", "SeriatimFlushSlow", "SeriatimLoopLag", "SeriatimOneBrokerBusy",
     "SeriatimStorageSaturated", "SeriatimSwitchSlow")
)  # fmt: skip
"""Alerts that report the disk and the processors. All nodes share those of this machine with whatever else runs, so
these alerts may be right on a healthy cluster. They are noted."""


async def metrics_read(stage: Stage) -> None:
    """The pages have every metric that an alert or a dashboard names, and the lag of a consumer group."""
    place, name = stage.place, f"unread-{stage.number}"
    await place.apply(topic_manifest(place.namespace, name, 2), _group(place.namespace, name))
    await wait_topic_ready(place, name)
    async with (
        Client.connect(bootstrap_of(place), name="unread", tls=Tls(**await stage.certificates())) as client,
        client.producer(name) as producer,
    ):
        for number in range(UNREAD):
            await producer.send(b"%d" % number, partition=number % 2)
    seen: list[Sight] = []

    async def unread() -> bool:
        seen[:] = [await stage.look("metrics")]
        return _sum(seen[0], "unread_messages", name) == UNREAD and _sum(seen[0], "unread_seconds", name) > 0

    await stage.wait_until(f"the lag of {UNREAD} messages is on the pages", unread, READ_S)
    pages = await asyncio.gather(*(
        page_of(place, component, pod["metadata"]["name"])
        for pod in await place.list("pods")
        if (component := pod["metadata"]["labels"].get("app.kubernetes.io/component", "")) in PORTS
    ))  # fmt: skip
    there = {"up"}.union(*map(names_on, pages))
    missing = {name: where for name, where in _named().items() if name not in there}
    stage.figure("metrics that alerts and dashboards name", len(_named()), "")
    for metric, where in sorted(missing.items()):
        stage.problem(f"no page has {metric}, which {where} names")
    firing = set(seen[0].alerts)
    if of_machine := firing & OF_THE_MACHINE:
        stage.note(f"this machine is slow or full: {', '.join(sorted(of_machine))}")
    if wrong := firing - OF_THE_MACHINE - {"SeriatimGroupNotConsumed"}:
        stage.problem(f"alerts would fire on a healthy cluster: {', '.join(sorted(wrong))}")
    await place.kubectl("delete", "consumergroup,topics.seriatim.dev", name)


def _named() -> dict[str, str]:
    """The metrics that alerts and dashboards name, and for each where."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "files" / "dashboards").glob("*.json")):
        if path.name == "spark.json":
            continue  # pipelines serve its metrics, and the suite's installation has none
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                found |= dict.fromkeys(names_in(target["expr"]), path.name)
    for group in rules_of("shop")["groups"]:
        for rule in group["rules"]:
            found |= dict.fromkeys(names_in(rule["expr"]), str(rule.get("alert") or rule.get("record")))
    return found


def _sum(seen: Sight, name: str, topic: str) -> float:
    """The sum of a metric of consumer groups over all pages."""
    begin, label = f"seriatim_consumer_group_{name}{{", f'topic="{topic}"'
    return sum(value for series, value in seen.metrics.items() if series.startswith(begin) and label in series)


def _group(namespace: str, topic: str) -> Manifest:
    return {
        "apiVersion": "seriatim.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": topic, "namespace": namespace},
        "spec": {"cluster": CLUSTER, "topic": topic, "start": "Earliest"},
    }


async def _degraded(stage: Stage, reason: str) -> float:
    """Wait until the BrokerCluster is Degraded for that reason. Return how many seconds it took."""

    async def told() -> bool:
        found = condition(await stage.cluster(), "Degraded")
        return (found.get("status"), found.get("reason")) == ("True", reason)

    return await stage.wait_until(f"the cluster is Degraded: {reason}", told, TOLD_S)


async def _says(stage: Stage, words: str) -> float:
    """Wait until `kubectl seriatim status` says these words. Return how many seconds it took."""

    async def told() -> bool:
        return words in await output(stage.place, STATUS)

    return await stage.wait_until(f"status says {words}", told, STALE_S)


def _expects(stage: Stage, seen: Sight, words: str, alert: str) -> None:
    """Check that `kubectl seriatim status` or a condition says these words, and that this alert would fire."""
    if words not in seen.texts["kubectl seriatim status"] + "".join(seen.conditions):
        stage.problem(f"neither status nor a condition says {words}")
    if seen.alerts and alert not in seen.alerts:
        stage.problem(f"{alert} would not fire; what would: {', '.join(seen.alerts)}")
