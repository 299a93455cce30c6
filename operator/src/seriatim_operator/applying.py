"""`seriatim operator apply`: the chart's BrokerCluster, given to the API as the chart has it.

Helm cannot have it among its other objects: at the first install its kind is not known yet, and an object that was made
otherwise is taken over by Helm without a look at what it says. So a hook applies it, on the server's side and under a
name of its own: what the values say is set, what they no longer say is taken back, what others set is left alone.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import click
import yaml

from .cluster.kube import InvalidError, Kube, KubeError

FIELD_MANAGER = "seriatim-chart"

PATIENCE_S = 60.0
"""A definition that was made a moment ago is served after about a second; a busy API server gets time."""

AGAIN_S = 1.0


def apply_file(path: Path, patience_s: float = PATIENCE_S) -> None:
    """Apply every object of a file of manifests.

    Raises:
        InvalidError: The API refuses one as it is.
        KubeError: It could not be asked, or does not know the kind, for so long.
    """
    asyncio.run(_apply_all([item for item in yaml.safe_load_all(path.read_text()) if item], patience_s))


async def _apply_all(manifests: list[dict[str, Any]], patience_s: float) -> None:
    kube = Kube(field_manager=FIELD_MANAGER)
    try:
        for manifest in manifests:
            applied = await _apply(kube, manifest, time.monotonic() + patience_s)
            click.echo(
                f"{manifest['kind']} {manifest['metadata']['name']}: generation {applied['metadata']['generation']}"
            )
    finally:
        kube.close()


async def _apply(kube: Kube, manifest: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    while True:
        try:
            return await kube.apply(manifest)
        except InvalidError:
            raise
        except KubeError:
            if time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(AGAIN_S)
