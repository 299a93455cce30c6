"""What belongs to others: a Service with the name of a child, a second operator, a kind that goes and comes back."""

from __future__ import annotations

import asyncio
import copy
import time
from typing import Final

from e2e.kubernetes.cases.corrections import small_cluster
from e2e.kubernetes.cases.operators import OPERATOR
from e2e.kubernetes.place import Manifest, condition, is_true
from e2e.kubernetes.release import CLUSTER, topic_manifest
from e2e.kubernetes.sight import DOCTOR, output
from e2e.kubernetes.stage import Stage
from tools.kubernetes.layout import ROOT

READY_S: Final = 180.0
TOLD_LIMIT_S: Final = 10.0
SETTLED_S: Final = 15.0
REST_S: Final = 30.0
BACK_LIMIT_S: Final = 15.0
SECOND: Final = "second"
CRD: Final = "brokerclusters.seriatim.dev"


async def name_taken(stage: Stage) -> None:
    """A team's Service has the name of a new cluster: it stays as it is, and the cluster serves and says so."""
    place, name = stage.place, f"small{stage.number}"
    spec = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
    metadata = {"name": name, "namespace": place.namespace, "labels": {"app": "web"}}
    await place.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    before = await place.get("services", name)
    assert before is not None
    async with small_cluster(stage) as it:

        async def told() -> bool:
            return condition(await it.manifest(), "Degraded").get("reason") == "NameTaken"

        stage.figure(
            "NameTaken reported after", await stage.wait_until("it is reported", told, READY_S), limit=TOLD_LIMIT_S
        )

        async def ready() -> bool:
            return is_true(await it.manifest(), "Ready")

        await stage.wait_until("all the rest serves", ready, READY_S)
        words = f"Service {name} was not made by the operator"
        if words not in " ".join((await output(place, (*DOCTOR, name))).split()):
            stage.problem(f"doctor does not say {words!r}")
        after = await place.get("services", name)
        if after is None or (after["spec"], after["metadata"]["uid"]) != (before["spec"], before["metadata"]["uid"]):
            stage.problem("the Service was written to")
    if await place.get("services", name) is None:
        stage.problem("the Service was deleted with the cluster")
    await place.kubectl("delete", "service", name)


async def other_operator(stage: Stage) -> None:
    """A second operator with a Lease of its own over the same namespace leaves the cluster alone, and says so."""
    place = stage.place
    found = await place.get("deployments", OPERATOR)
    assert found is not None
    made: Manifest = {key: copy.deepcopy(found[key]) for key in ("apiVersion", "kind", "spec")}
    labels = made["spec"]["template"]["metadata"]["labels"] | {"app.kubernetes.io/instance": SECOND}
    made["metadata"] = {"name": SECOND, "namespace": place.namespace, "labels": labels}
    made["spec"]["selector"] = {"matchLabels": labels}
    made["spec"]["template"]["metadata"]["labels"] = labels
    for variable in made["spec"]["template"]["spec"]["containers"][0]["env"]:
        if variable["name"] == "SERIATIM_OPERATOR_LEASE_NAME":
            variable["value"] = SECOND
    account = made["spec"]["template"]["spec"]["serviceAccountName"]
    await place.kubectl("create", "role", SECOND, "--verb=get,update", "--resource=leases", f"--resource-name={SECOND}")
    await place.kubectl(
        "create", "rolebinding", SECOND, f"--role={SECOND}", f"--serviceaccount={place.namespace}:{account}"
    )
    began = time.monotonic()
    await place.apply(made)
    try:

        async def told() -> bool:
            events = await place.list("events")
            return any(event["reason"] == "OtherOperator" and SECOND in event["message"] for event in events)

        stage.figure(
            "the second says that it leaves the cluster alone after",
            await stage.wait_until("it is reported", told, READY_S),
        )
        await asyncio.sleep(max(0.0, SETTLED_S - (time.monotonic() - began)))  # the time in which they must settle
        first = await _versions(stage)
        warnings = len([event for event in await place.list("events") if event["type"] == "Warning"])
        await asyncio.sleep(REST_S)  # this waits for no state: nothing may happen in this time
        written = [name for name, version in (await _versions(stage)).items() if first.get(name) != version]
        stage.figure(f"objects written in {REST_S:g} s", len(written), "", 1)
        more = len([event for event in await place.list("events") if event["type"] == "Warning"]) - warnings
        if more:
            stage.problem(f"{more} Warnings while two operators watch the namespace")
        said = " ".join((await output(place, (*DOCTOR, CLUSTER))).split())
        for lease in (f"{place.namespace}/{OPERATOR} (looks after this cluster)", f"{place.namespace}/{SECOND}"):
            if lease not in said:
                stage.problem(f"doctor does not name {lease}: {said}")
    finally:
        await place.kubectl(
            "delete", f"deployment/{SECOND}", f"role/{SECOND}", f"rolebinding/{SECOND}", f"lease/{SECOND}"
        )
    await stage.wait_healthy()


async def kind_put_back(stage: Stage) -> None:
    """The definition of BrokerClusters is deleted and put back, and the cluster made again: its topics are Ready."""
    place, topic = stage.place, f"kept-{stage.number}"
    await place.apply(topic_manifest(place.namespace, topic, 1, deletionPolicy="Delete"))

    async def ready() -> bool:
        return is_true(await place.get("topics", topic), "Ready")

    await stage.wait_until("the topic is Ready", ready, READY_S)
    cluster = await stage.cluster()
    kept = {key: cluster["metadata"].get(key) for key in ("name", "namespace", "labels", "annotations")}
    kept["annotations"] = {k: v for k, v in (kept["annotations"] or {}).items() if not k.startswith("seriatim.dev/")}
    await place.kubectl("delete", "crd", CRD)

    async def is_silent() -> bool:
        return not await ready()

    await stage.wait_until("the topic is reported to have no cluster", is_silent, READY_S)
    await place.kubectl("apply", "--server-side", "--force-conflicts", "-f", ROOT / "crds")
    await place.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")
    await place.apply({key: cluster[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": kept})
    began = time.monotonic()

    async def reported() -> bool:
        return bool(((await stage.cluster()).get("status") or {}).get("reportedAt"))

    stage.figure("cluster seen after", await stage.wait_until("the cluster is seen", reported, READY_S), limit=10.0)
    await stage.wait_until("its topics are Ready", ready, READY_S)
    stage.figure("topic Ready after", time.monotonic() - began, limit=BACK_LIMIT_S)
    await stage.wait_healthy()
    await place.kubectl("delete", "topic", topic)


async def _versions(stage: Stage) -> dict[str, str]:
    found = {}
    for plural in ("topics", "brokerclusters", "brokergroups", "brokers", "pods", "services", "configmaps"):
        for item in await stage.place.list(plural):
            found[f"{plural}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    return found
