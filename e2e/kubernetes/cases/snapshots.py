"""The chart's etcd loses all of its disks. The runbook is typed, with a snapshot and without one, and what etcd lost is
rebuilt from the brokers.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path
from typing import Final

from seriatim_operator.resources.names import BROKER_PORT

from e2e.kubernetes import coordinator
from e2e.kubernetes.place import Place, is_true
from e2e.kubernetes.release import CLUSTER, RELEASE
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import Traffic
from e2e.pages import ROOT, Step, blocks_of

RUNBOOK: Final = "docs/operating/runbooks/coordinator-behind.md"
WITH_SNAPSHOT: Final = "with a snapshot"
WITHOUT_SNAPSHOT: Final = "without a snapshot"
"""The notes `on Kubernetes: …` before the runbook's commands."""

SNAPSHOTS: Final = "etcd-snapshots"
JOB_S: Final = 180.0
BEHIND_S: Final = 120.0


async def etcd_restored(stage: Stage) -> None:
    """A snapshot is taken, and after it a master dies. Then all disks of etcd are given up, and the snapshot is
    restored: messages flow until brokers notice what is missing, and again when it is rebuilt.
    """
    claim = await _make_claim(stage)
    await stage.release.upgrade(stage.directory, {"etcd": {"snapshots": {"schedule": "0 3 1 1 *", "to": claim}}})
    await coordinator.wait_ready(stage.place)
    await stage.wait_healthy()
    async with stage.traffic() as traffic:
        await _take(stage)
        pod = await stage.pod_of(await traffic.master())
        await stage.place.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        await traffic.gap_s()
        await stage.wait_healthy()
        await _replace_etcd(stage, traffic, WITH_SNAPSHOT)


async def etcd_begun_anew(stage: Stage) -> None:
    """All disks of etcd are given up, and there is no snapshot: the members begin an empty etcd, and all is rebuilt."""
    async with stage.traffic() as traffic:
        pod = await stage.pod_of(await traffic.master())
        await stage.place.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        await traffic.gap_s()
        await stage.wait_healthy()
        await _replace_etcd(stage, traffic, WITHOUT_SNAPSHOT)


async def _replace_etcd(stage: Stage, traffic: Traffic, way: str) -> None:
    """Type the runbook while messages flow."""
    async with traffic.struck("replace etcd", "all members"):
        began = time.monotonic()
        *replace, go_on = typed(way)
        for step in replace:
            await _type(stage, step)
        stage.figure("another etcd of three members", time.monotonic() - began)
        await coordinator.wait_ready(stage.place)
        stage.note(await _rebuild(stage))
        told = await _rebuild(stage, "--yes")
        stage.note(told)
        if "status 0" not in told:
            stage.problem("the rebuild has left something")
        stage.figure("rebuilt", time.monotonic() - began)
        await _type(stage, go_on)
        await stage.wait_healthy()
        stage.figure("healthy again", time.monotonic() - began)
        if way == WITHOUT_SNAPSHOT:
            await traffic.start_again()  # as the runbook says: its topics were made again
        stage.figure("gap", await traffic.gap_s())
    await stage.place.wait_until("EtcdHealthy", lambda: _is_well(stage), BEHIND_S)
    stage.figure("two copies again", await traffic.has_two_copies())


def typed(way: str) -> list[Step]:
    """The commands of the runbook for that way, as a reader types them."""
    text = "\n".join(line.removeprefix("   ") for line in (ROOT / RUNBOOK).read_text().splitlines())
    steps = [step for block in blocks_of(RUNBOOK, text) if block.note("on Kubernetes") == way for step in block.steps()]
    assert len(steps) >= 8, f"the runbook says what to type {way}"
    return steps


async def _type(stage: Stage, step: Step) -> None:
    words = shlex.split(step.command.replace("\\\n", " "))
    assert words[:3] == ["kubectl", "-n", "shop"], step.command
    stage.note(await stage.place.kubectl(*words[3:], timeout_s=600))


async def _make_claim(stage: Stage) -> str:
    """Make a claim whose volume all nodes of this machine can mount. The volume goes when the claim goes.

    Returns:
        The name of the claim, which no earlier run has used.
    """
    directory = await asyncio.to_thread(_made, stage.directory / SNAPSHOTS)
    claim = f"{SNAPSHOTS}-{stage.number}"
    name = f"{stage.place.namespace}-{claim}"
    modes = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    await stage.place.apply(
        {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                **modes, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(directory)},
                "claimRef": {"namespace": stage.place.namespace, "name": claim},
            },
        },
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": stage.place.namespace},
            "spec": {**modes, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
        },
    )  # fmt: skip
    await stage.place.kubectl("delete", "persistentvolume", name, "--wait=false")
    return claim


def _made(directory: Path) -> Path:
    directory.mkdir()
    directory.chmod(0o777)
    return directory.resolve()


async def _take(stage: Stage) -> None:
    began = time.monotonic()
    await stage.place.kubectl("create", "job", "snapshot-now", f"--from=cronjob/{RELEASE}-etcd-snapshots")
    await stage.place.kubectl(
        "wait", "--for=condition=complete", "job/snapshot-now", f"--timeout={JOB_S:.0f}s", timeout_s=JOB_S + 10
    )
    stage.figure("a snapshot", time.monotonic() - began)
    stage.note(await stage.place.kubectl("logs", "job/snapshot-now", "--all-containers"))


async def _rebuild(stage: Stage, *more: str) -> str:
    """Run the rebuild in a broker's pod. Return what it prints, with its exit status."""
    pods = await stage.pods()
    namespace = stage.place.namespace
    names = sorted(
        f"{pod['metadata']['labels']['seriatim.dev/group']}-{pod['metadata']['labels']['seriatim.dev/slot']}"
        for pod in pods
    )
    tls, etcd_tls = "/etc/seriatim/tls", "/etc/seriatim/etcd-tls"
    script = [
        "seriatim", "coordinator", "rebuild", "--cluster", f"{namespace}.{CLUSTER}",
        "--coordinator", f"{RELEASE}-etcd-0.{RELEASE}-etcd.{namespace}.svc:2379",
        "--brokers", ",".join(f"{name}={name}.{CLUSTER}-brokers.{namespace}.svc:{BROKER_PORT}" for name in names),
        "--tls-ca", f"{tls}/ca.crt", "--tls-cert", f"{tls}/tls.crt", "--tls-key", f"{tls}/tls.key",
        "--coordinator-tls-ca", f"{etcd_tls}/ca.crt", "--coordinator-tls-cert", f"{etcd_tls}/tls.crt",
        "--coordinator-tls-key", f"{etcd_tls}/tls.key", *more,
    ]  # fmt: skip
    return await _said(stage.place, pods[0]["metadata"]["name"], script)


async def _said(place: Place, pod: str, command: list[str]) -> str:
    ended = f"{shlex.join(command)} 2>&1; echo status $?"
    return await place.kubectl("exec", pod, "--", "sh", "-c", ended, timeout_s=180)


async def _is_well(stage: Stage) -> bool:
    return is_true(await stage.cluster(), "EtcdHealthy")
