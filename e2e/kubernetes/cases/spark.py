"""Spark: a pipeline loses its executor, its driver and its node; applications are submitted.

Checkpoint and archive are on a volume that all nodes see. Here it is a directory of the host; in production it is a
shared file system.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from seriatim import Client, Tls

from e2e.kubernetes.place import Manifest, Place
from e2e.kubernetes.release import CLUSTER, RELEASE
from e2e.kubernetes.stage import Stage
from e2e.kubernetes.traffic import Traffic, bootstrap_of

CLAIM: Final = "pipelines"
SIZE: Final = "5Gi"
NOBODY_ELSE: Final = 10001
"""The user of our images. The suite gives it the directory of the host, because Kubernetes does not."""

STARTED_S: Final = 240.0
GOES_ON_S: Final = 240.0
WHOLE_S: Final = 240.0
SUBMITTED_S: Final = 420.0
ROWS: Final = 2_000
"""The stream continues if the archive has this many new rows."""

DRIVER: Final = "seriatim.dev/pipeline={},spark-role=driver"
EXECUTOR: Final = "seriatim.dev/pipeline={},spark-role=executor"


async def archived(stage: Stage) -> None:
    """A stream into an archive continues after it lost its executor, its driver and its node.

    The archive must miss nothing.
    """
    async with _volume(stage) as shared:
        async with stage.traffic() as traffic:
            await stage.release.upgrade(stage.directory, _pipelines(traffic.load.topic))
            stage.figure("first rows after", await _grows(stage, shared, STARTED_S))
            for what, selector in (("executor", EXECUTOR), ("driver", DRIVER)):
                await _kill(stage, traffic, what, selector.format("archive"))
                stage.figure(f"continues after its {what} was killed", await _grows(stage, shared, GOES_ON_S))
            node = (await _pod(stage.place, DRIVER.format("archive")))["spec"]["nodeName"]
            async with traffic.struck("lose node", node), stage.machines.down(node):
                stage.figure("continues after its node was lost", await _grows(stage, shared, GOES_ON_S))
            await stage.wait_healthy()
        topic, offsets = await _all_of(stage, traffic.load.topic)
        wanted = sum(len(part) for part in offsets)
        stage.figure(
            "archive is complete", await stage.place.wait_until(
                f"the archive has {wanted} rows", lambda: _has(shared, wanted), WHOLE_S, lambda: f"{_rows(shared)} rows"
            )
        )  # fmt: skip
        await stage.release.upgrade(stage.directory, {"spark": {"enabled": False}})
        await asyncio.to_thread(_compare, stage, shared, topic, offsets)
        stage.note(f"{wanted} rows in {len(_files(shared))} files, each message once and in order")


async def submitted(stage: Stage) -> None:
    """Submit an archive and its audit with `spark-submit --deploy-mode cluster`, as the page about it says."""
    async with _volume(stage) as shared:
        async with stage.traffic() as traffic:
            spark = {"enabled": True, "pipelines": [], "submit": {"create": True, "cluster": CLUSTER, "claim": CLAIM}}
            await stage.release.upgrade(stage.directory, {"spark": spark})
            await traffic.load.goes_on(5_000)
        await stage.place.kubectl("rollout", "status", "deployment", f"{RELEASE}-spark-submit", "--timeout=120s")
        topic, offsets = await _all_of(stage, traffic.load.topic)
        wanted = sum(len(part) for part in offsets)
        came_from = (
            "--bootstrap", bootstrap_of(stage.place), "--topic", topic, "--tls-ca", "/etc/seriatim/tls/ca.crt",
            "--tls-cert", "/etc/seriatim/tls/tls.crt", "--tls-key", "/etc/seriatim/tls/tls.key",
        )  # fmt: skip
        to = ("--to", "/data/archive", "--checkpoint", "/data/checkpoints/once", "--once")
        for name, arguments in (
            ("archive", ("archive", *came_from, *to)),
            ("audit", ("audit", *came_from, "--json")),
            ("audit-files", ("audit", "--archive", "/data/archive", "--json")),
        ):
            stage.figure(f"{name} took", await _submit(stage, name, arguments, wanted))
        if _rows(shared) != wanted:
            stage.problem(f"{wanted} messages, and {_rows(shared)} rows in the archive")
        await asyncio.to_thread(_compare, stage, shared, topic, offsets)
        await stage.release.upgrade(stage.directory, {"spark": {"enabled": False}})


async def _submit(stage: Stage, name: str, arguments: tuple[str, ...], wanted: int) -> float:
    """Run an application to its end. Return how many seconds it took. Its driver's output is kept in a file."""
    began = time.monotonic()
    said = await stage.place.kubectl(
        "exec", f"deploy/{RELEASE}-spark-submit", "--", "spark-submit", "--deploy-mode", "cluster", "--name", name,
        "local:///opt/seriatim/pipelines.py", *arguments, timeout_s=SUBMITTED_S,
    )  # fmt: skip
    (stage.directory / f"{name}-submit.txt").write_text(said)
    pod = await _pod(stage.place, f"{DRIVER.format('submit')},spark-app-name={name}", ended=True)
    log = await stage.place.kubectl("logs", pod["metadata"]["name"])
    (stage.directory / f"{name}-driver.txt").write_text(log)
    status = pod["status"]
    if status["phase"] != "Succeeded":
        stage.problem(f"{name}: {status['phase']}: {log[-500:]}")
    elif name.startswith("audit"):
        report = json.loads(log.splitlines()[-1])
        if report["findings"] or report["rows"] != wanted:
            stage.problem(f"{name} of {report['rows']} rows, where there are {wanted}, found {report['findings']}")
    return time.monotonic() - began


def _pipelines(topic: str) -> dict[str, Any]:
    return {
        "spark": {
            "enabled": True,
            "driverMemory": "512m",
            "executorMemory": "512m",
            "pipelines": [
                {
                    "name": "archive", "run": "archive", "cluster": CLUSTER, "claim": CLAIM, "executors": 1,
                    "options": {
                        "topic": topic, "to": "/data/archive", "checkpoint": "/data/checkpoints/archive",
                        "every": "2 seconds", "group": "archive",
                    },
                }
            ],
        }
    }  # fmt: skip


# ---- the volume ----


@asynccontextmanager
async def _volume(stage: Stage) -> AsyncIterator[Path]:
    """Make a claim on a directory that all nodes see. Give the directory of the archive in it."""
    shared = (stage.directory / "shared").resolve()
    shared.mkdir()
    await asyncio.to_thread(_give, shared)
    name = f"{stage.place.namespace}-{CLAIM}-{stage.number}"
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeMode": "Filesystem"}
    claimed_by = {"namespace": stage.place.namespace, "name": CLAIM}
    volume: Manifest = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            **common, "capacity": {"storage": SIZE}, "claimRef": claimed_by, "hostPath": {"path": str(shared)},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }  # fmt: skip
    claim: Manifest = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM},
        "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": SIZE}}},
    }  # fmt: skip
    await stage.place.apply(volume, claim)
    try:
        yield shared / "archive"
    finally:
        await stage.place.kubectl("delete", "pod", "--selector=spark-role", "--wait=false")
        await stage.place.kubectl("delete", "pvc", CLAIM, "--wait=false")
        await stage.place.kubectl("delete", "pv", name, "--wait=false")


def _give(directory: Path) -> None:
    os.chown(directory, NOBODY_ELSE, NOBODY_ELSE)


# ---- pods ----


async def _pod(place: Place, selector: str, *, ended: bool = False) -> Manifest:
    """Return the pod of a selector that runs, or that has ended.

    Raises:
        StillNotError: No such pod came within the deadline.
    """
    found: list[Manifest] = []
    phases = ("Succeeded", "Failed") if ended else ("Running",)

    async def there() -> bool:
        found[:] = [
            pod
            for pod in await place.list("pods", selector)
            if pod["status"].get("phase") in phases and not pod["metadata"].get("deletionTimestamp")
        ]
        return bool(found)

    await place.wait_until(f"there is a pod of {selector}", there, STARTED_S)
    return max(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


async def _kill(stage: Stage, traffic: Traffic, what: str, selector: str) -> None:
    pod = await _pod(stage.place, selector)
    name = pod["metadata"]["name"]
    async with traffic.struck(f"kill {what}", name):
        await stage.place.kubectl("delete", "pod", name, "--force", "--grace-period=0")
    stage.note(f"{what} {name} was killed")


# ---- the archive ----


def _files(archive: Path) -> list[Path]:
    return sorted(path for path in archive.rglob("topic=*/**/*.parquet") if "_aside" not in path.parts)


def _rows(archive: Path) -> int:
    return sum(int(pq.read_metadata(path).num_rows) for path in _files(archive))


async def _has(archive: Path, rows: int) -> bool:
    return await asyncio.to_thread(_rows, archive) >= rows


async def _grows(stage: Stage, archive: Path, deadline_s: float) -> float:
    """Wait until the archive has more rows than now. Return how many seconds it took."""
    more = await asyncio.to_thread(_rows, archive) + ROWS
    return await stage.place.wait_until(
        f"the archive has {more} rows", lambda: _has(archive, more), deadline_s, lambda: f"{_rows(archive)} rows"
    )


async def _all_of(stage: Stage, topic: str) -> tuple[str, list[list[tuple[int, bytes]]]]:
    """Return offsets and values of all messages of a topic, by partition."""
    found = []
    tls = Tls(**await stage.certificates())
    async with Client.connect(bootstrap_of(stage.place), name="suite", tls=tls) as client:
        for end in await client.offsets(topic):
            rows: list[tuple[int, bytes]] = []
            async with await client.read_range(topic, end.partition, "earliest", end.offset) as reader:
                while (table := await reader.fetch_table()) is not None:
                    values = table.table.column("value").to_pylist()
                    rows += [(table.offset + index, value) for index, value in enumerate(values)]
            found.append(rows)
    return topic, found


def _compare(stage: Stage, archive: Path, topic: str, wanted: list[list[tuple[int, bytes]]]) -> None:
    """Check that the archive has exactly these messages in their order, file after file."""
    for partition, rows in enumerate(wanted):
        files = [path for path in _files(archive) if f"partition={partition}" in path.parts]
        files.sort(key=lambda path: path.name)
        table = ds.dataset([str(path) for path in files], format="parquet").to_table(columns=["offset", "value"])
        found = list(zip(table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True))
        if found != rows:
            stage.problem(f"{topic}/{partition}: {len(rows)} messages, and {len(found)} rows that are not the same")
