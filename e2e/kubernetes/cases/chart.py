"""The chart: its own test, an upgrade and a rollback, an uninstall while topics exist, and a deleted namespace."""

from __future__ import annotations

import json
import time
from typing import Final

from e2e.kubernetes.place import Place
from e2e.kubernetes.release import CLUSTER, RELEASE, Release, topic_manifest
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import bootstrap_of, first_message, wait_topic_ready, write_certificates
from tools.kubernetes.errors import ClusterError

GAP_LIMIT_S: Final = 0.3
CHANGED_S: Final = 300.0
DEADLINE_S: Final = 240.0
SETTING: Final = "heal_after_s"


async def chart_tested(stage: Stage) -> None:
    """Run `helm test`."""
    began = time.monotonic()
    said = await stage.release.helm("test", RELEASE, "--logs")
    stage.figure("helm test", time.monotonic() - began)
    if "Phase:          Succeeded" not in said:
        stage.problem(f"helm test: {said[-500:]}")


async def upgraded_and_back(stage: Stage) -> None:
    """Change a broker setting and the operator's log level with `helm upgrade`, then go back with `helm rollback`."""
    # A rollback restores the values of the release, and not values that an administrator patched meanwhile.
    before = (stage.release.all_values()["cluster"]["spec"].get("settings") or {}).get(SETTING)
    value = "91" if await _setting(stage) != "91" else "92"
    async with stage.traffic() as traffic:
        await stage.release.upgrade(stage.directory, {})  # the BrokerCluster becomes a part of the release
        await stage.wait_healthy()
        async with traffic.struck("helm upgrade", value):
            began = time.monotonic()
            more = {"operator": {"logLevel": "debug"}, "cluster": {"spec": {"settings": {SETTING: value}}}}
            await stage.release.upgrade(stage.directory, more)
            await stage.wait_until("the setting has arrived", lambda: _is(stage, value), CHANGED_S)
            await stage.wait_healthy(CHANGED_S)
            stage.figure("upgraded after", time.monotonic() - began)
            stage.figure("gap while upgrading", await traffic.gap_s(), limit=GAP_LIMIT_S)
        async with traffic.struck("helm rollback", value):
            began = time.monotonic()
            await stage.release.helm("rollback", RELEASE)
            await stage.wait_until("the setting is as before", lambda: _is(stage, before), CHANGED_S)
            await stage.wait_healthy(CHANGED_S)
            stage.figure("rolled back after", time.monotonic() - began)
            stage.figure("gap while going back", await traffic.gap_s(), limit=GAP_LIMIT_S)
        stage.figure("two copies again", await traffic.has_two_copies())
    if stage.counts["failed"]:
        stage.problem(f"{stage.counts['failed']} sends failed")


async def uninstalled(stage: Stage) -> None:
    """Check that `helm uninstall` is refused while topics exist.

    Force it: the brokers continue. Install again: all is found.
    """
    async with stage.traffic() as traffic:
        async with traffic.struck("helm uninstall", RELEASE):
            try:
                await stage.release.helm("uninstall", RELEASE)
                stage.problem("helm uninstall was not refused although there are topics")
            except ClusterError as error:
                stage.note("helm uninstall is refused")
                if CLUSTER not in str(error):
                    stage.problem(f"the refusal does not name the cluster: {error}")
            await _rolled_back(stage)
            await stage.wait_healthy()
            await stage.release.upgrade(stage.directory, {"uninstall": {"force": True}})
            await stage.wait_healthy()
            await stage.release.helm("uninstall", RELEASE)
            stage.figure("gap while it goes", await traffic.gap_s(), limit=GAP_LIMIT_S)
        async with traffic.struck("helm install again", RELEASE):
            began = time.monotonic()
            await stage.release.install(stage.directory)
            await stage.wait_healthy(DEADLINE_S)
            stage.figure("healthy after a new install", time.monotonic() - began)
            stage.figure("gap while it comes back", await traffic.gap_s(), limit=GAP_LIMIT_S)
        stage.figure("two copies again", await traffic.has_two_copies())


async def namespaced(stage: Stage) -> None:
    """Install without rights to the whole cluster, in a namespace of its own. Then delete the namespace."""
    place = Place(stage.place.cluster, f"{stage.place.namespace}-own")
    small = {
        "rbac": {"scope": "Namespace", "readNodes": False, "aggregate": False},
        "watchNamespaces": [],
        "etcd": {"members": 1},
        "cluster": {"spec": {"groups": 2}},
    }
    release = Release(place, stage.release.images, small)
    await release.prepare()
    try:
        began = time.monotonic()
        await release.install(stage.directory)
        # This topic has a finalizer, which only an operator removes. The namespace must go nevertheless.
        await place.apply(topic_manifest(place.namespace, "first", 1, deletionPolicy="Delete"))
        await wait_topic_ready(place, "first", DEADLINE_S)
        await first_message(place, "first", await write_certificates(place, stage.directory / "tls"), DEADLINE_S)
        stage.figure(f"first message at {bootstrap_of(place)} after", time.monotonic() - began)
        found = await place.kubectl("get", "clusterrolebindings", "-o=name")
        if place.namespace in found:
            stage.problem(f"a namespaced install has bindings for the whole cluster: {found}")
        began = time.monotonic()
        await place.kubectl("delete", "namespace", place.namespace, "--wait=false")
        await place.wait_until("the namespace is gone", lambda: _is_gone(place), DEADLINE_S)
        stage.figure("namespace deleted after", time.monotonic() - began)
    finally:
        await release.remove()


async def _setting(stage: Stage) -> str | None:
    found = (await stage.cluster())["spec"].get("settings") or {}
    return None if SETTING not in found else str(found[SETTING])


async def _is(stage: Stage, value: str | None) -> bool:
    return await _setting(stage) == value


async def _rolled_back(stage: Stage) -> None:
    """Do what the refusal advises: roll back, because Helm has marked the release as uninstalling although all of it
    exists.
    """
    history = json.loads(await stage.release.helm("history", RELEASE, "-o=json"))
    await stage.release.helm("rollback", RELEASE, str(history[-1]["revision"]))


async def _is_gone(place: Place) -> bool:
    return await place.read(f"/api/v1/namespaces/{place.namespace}") is None
