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

from .cluster.kinds import kind_of
from .cluster.kube import InvalidError, Kube, KubeError, UnknownKindError

FIELD_MANAGER = "seriatim-chart"

PATIENCE_S = 60.0
"""A busy API server gets time."""

UNKNOWN_KIND_S = 10.0
"""A definition that was made a moment ago is served after about a second; one that is not there, never."""

AGAIN_S = 1.0


def apply_file(path: Path, patience_s: float = PATIENCE_S) -> None:
    """Apply every object of a file of manifests.

    Raises:
        InvalidError: The API refuses one as it is.
        UnknownKindError: It does not know the kind, ten seconds after it said so first.
        KubeError: It could not be asked for so long.
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
    has_taken_back = is_unknown = False
    while True:
        try:
            return await kube.apply(manifest)
        except InvalidError:
            if has_taken_back or not await _take_back(kube, manifest):
                raise
            has_taken_back = True
            continue
        except KubeError as exc:
            if isinstance(exc, UnknownKindError) and not is_unknown:
                is_unknown, deadline_s = True, min(deadline_s, time.monotonic() + UNKNOWN_KIND_S)
            if time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(AGAIN_S)


# ---- maps whose last key is taken back ---------------------------------------------------------------------

MAPS = (
    ("settings",),
    ("podTemplate", "labels"),
    ("podTemplate", "annotations"),
    ("podTemplate", "nodeSelector"),
    ("podTemplate", "resources", "requests"),
    ("podTemplate", "resources", "limits"),
)
"""Of a BrokerCluster's spec."""


async def _take_back(kube: Kube, manifest: dict[str, Any]) -> bool:
    """Take the keys out of maps that this manager set and no longer says; False if there are none.

    Server-side apply does it by itself, but where somebody else has written the map too, the last key leaves `null`
    behind, which the definition refuses. A merge patch leaves an empty map.
    """
    metadata = manifest["metadata"]
    found = await kube.get(kind_of(manifest), metadata.get("namespace"), metadata["name"])
    patch: dict[str, Any] = {}
    for path in MAPS:
        for key in sorted(_owned_keys(found or {}, path) - set(_at(manifest.get("spec"), path))):
            inner = patch
            for name in path:
                inner = inner.setdefault(name, {})
            inner[key] = None
    if patch:
        await kube.merge(kind_of(manifest), metadata.get("namespace"), metadata["name"], {"spec": patch})
    return bool(patch)


def _owned_keys(found: dict[str, Any], path: tuple[str, ...]) -> set[str]:
    entries = (found.get("metadata") or {}).get("managedFields") or ()
    ours = [entry.get("fieldsV1") or {} for entry in entries if entry.get("manager") == FIELD_MANAGER]
    fields = ("f:spec", *(f"f:{name}" for name in path))
    return {key[2:] for entry in ours for key in _at(entry, fields) if key.startswith("f:")}


def _at(value: Any, path: tuple[str, ...]) -> dict[str, Any]:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
