"""`seriatim coordinator rebuild`, as an administrator runs it, on a local cluster."""

from __future__ import annotations

import asyncio
import sys

from seriatim_local import LocalCluster


async def rebuild(cluster: LocalCluster, *options: str) -> str:
    """Return what `seriatim coordinator rebuild` prints.

    Args:
        cluster: The cluster. The command asks all its brokers.
        options: More options, such as `--yes`.
    """
    brokers = ",".join(f"{name}={at}" for name, at in zip(cluster.broker_names, cluster.bootstrap, strict=True))
    words = ["coordinator", "rebuild", "--cluster", cluster.plan.name, "--coordinator", str(cluster.plan.coordinator)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "seriatim_broker", *words, "--brokers", brokers, *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    return said.decode()
