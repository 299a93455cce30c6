"""The evidence that is kept of a failed case: objects, events, and the logs of operator, brokers and etcd."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from e2e.kubernetes.place import Place
from tools.kubernetes.errors import ClusterError

KINDS: Final = "brokerclusters,brokergroups,brokers,topics,consumergroups"
LOG_LINES: Final = 5000
COMMAND_S: Final = 60.0


async def gather(place: Place, directory: Path) -> None:
    """Write all of it into files. If something cannot be read, its file says why."""
    target = directory / "evidence"
    target.mkdir(exist_ok=True)
    wanted: dict[str, tuple[str, ...]] = {
        "objects.yaml": ("get", KINDS, "-o=yaml"),
        "pods.yaml": ("get", "pods,persistentvolumeclaims,poddisruptionbudgets", "-o=yaml"),
        "overview.txt": ("get", f"pods,persistentvolumeclaims,poddisruptionbudgets,{KINDS}", "-o=wide"),
        "events.txt": ("get", "events", "--sort-by=.metadata.creationTimestamp"),
        "nodes.txt": ("get", "nodes,persistentvolumes", "-o=wide"),
    }
    try:
        pods = [pod["metadata"]["name"] for pod in await place.list("pods")]
    except ClusterError as error:
        pods = []
        (target / "error.txt").write_text(str(error))
    for pod in pods:
        wanted[f"{pod}.log"] = ("logs", pod, "--all-containers", f"--tail={LOG_LINES}")
        wanted[f"{pod}.previous.log"] = ("logs", pod, "--previous", f"--tail={LOG_LINES}")
    await asyncio.gather(*(_keep(place, target / name, command) for name, command in wanted.items()))


async def _keep(place: Place, path: Path, command: tuple[str, ...]) -> None:
    try:
        text = await place.kubectl(*command, timeout_s=COMMAND_S)
    except ClusterError as error:
        if path.name.endswith(".previous.log"):
            return  # this container has not been restarted
        text = str(error)
    await asyncio.to_thread(path.write_text, text)
