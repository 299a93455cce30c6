"""`seriatim operator apply`: applies the chart's BrokerCluster.

Helm cannot have it among its other objects, for two reasons. At the first install the API does not know its kind yet.
And Helm adopts an object that was made otherwise without comparing its fields. So a hook applies it with server-side
apply, under a field manager of its own. Fields in the values are set, fields that left the values are removed, and
fields that others set stay.

The number of broker groups is the exception: if the values do not name it, it stays as it is. So neither another
default of a later chart, nor a rollback, moves the messages of a broker group.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from .cluster.kinds import BROKER_CLUSTER, kind_of
from .cluster.kube import InvalidError, Kube, KubeError, UnknownKindError

FIELD_MANAGER = "seriatim-chart"

PATIENCE_S = 60.0
"""Seconds for which an object is tried again, because an API server may be busy."""

UNKNOWN_KIND_S = 10.0
"""Seconds for which an unknown kind is tried again. The API serves a new definition after about 1 s."""

AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class _BrokerGroups:
    """How many broker groups a BrokerCluster gets: `if_new` or, if it exists, the number that it has or more."""

    if_new: int
    remove_none: bool

    async def settle(self, kube: Kube, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest with the number. If it is that of the object, it is for that version of the object only."""
        metadata, spec = manifest["metadata"], manifest.get("spec") or {}
        if kind_of(manifest) != BROKER_CLUSTER or ("groups" in spec and not self.remove_none):
            return manifest
        found = await kube.get(BROKER_CLUSTER, metadata.get("namespace"), metadata["name"])
        has = int(((found or {}).get("spec") or {}).get("groups") or 0)
        if found is None or not has:
            return {**manifest, "spec": {"groups": self.if_new, **spec}}
        if (wanted := int(spec.get("groups") or 0)) >= has:
            return manifest
        if wanted:
            click.echo(f"BrokerCluster {metadata['name']} keeps its {has} broker groups: this revision had {wanted}")
        version = found["metadata"]["resourceVersion"]
        return {**manifest, "metadata": {**metadata, "resourceVersion": version}, "spec": {**spec, "groups": has}}


def apply_file(
    path: Path, patience_s: float = PATIENCE_S, *, groups_if_new: int = 3, remove_no_groups: bool = False
) -> None:
    """Apply every object in a file of manifests, in the order of the file.

    Args:
        path: The file, YAML with one or more documents.
        patience_s: Seconds for which an object is tried again.
        groups_if_new: Broker groups of a new BrokerCluster whose manifest names no number.
        remove_no_groups: Leave a BrokerCluster at least the broker groups that it has.

    Raises:
        InvalidError: The API refuses an object as invalid. Objects before it are applied.
        UnknownKindError: The API still does not know a kind 10 s after it first said so.
        KubeError: The API did not accept an object within `patience_s`.
    """
    broker_groups = _BrokerGroups(groups_if_new, remove_no_groups)
    asyncio.run(_apply_all([item for item in yaml.safe_load_all(path.read_text()) if item], patience_s, broker_groups))


async def _apply_all(manifests: list[dict[str, Any]], patience_s: float, broker_groups: _BrokerGroups) -> None:
    kube = Kube(field_manager=FIELD_MANAGER)
    try:
        for manifest in manifests:
            applied = await _apply(kube, manifest, time.monotonic() + patience_s, broker_groups)
            click.echo(
                f"{manifest['kind']} {manifest['metadata']['name']}: generation {applied['metadata']['generation']}"
            )
    finally:
        kube.close()


async def _apply(
    kube: Kube, manifest: dict[str, Any], deadline_s: float, broker_groups: _BrokerGroups
) -> dict[str, Any]:
    has_taken_back = is_unknown = False
    while True:
        try:
            return await kube.apply(await broker_groups.settle(kube, manifest))
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
"""Paths of the maps in a BrokerCluster's spec."""


async def _take_back(kube: Kube, manifest: dict[str, Any]) -> bool:
    """Remove keys of maps that this field manager set and that left the manifest. Returns False if there are none.

    Server-side apply removes them by itself, with one exception. If another field manager wrote the map too, the
    removal of the last key leaves `null`, which the definition refuses. A merge patch leaves an empty map.
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
