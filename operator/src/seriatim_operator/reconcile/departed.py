"""Objects that are gone and still ask for something: what they owned is to be deleted, as their last words say.

In the namespace in which the operator itself lives no object is held by a finalizer, for whoever would honour it goes
with the namespace. There an object is gone before anything was done about it, and its last manifest stands for it until
what it owned is deleted. Only an event of a watch that tells the deletion makes an object one of these: one that is
missing from a listing proves nothing, for a Kubernetes that was restored from an older backup looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from .cache import trimmed

DEPARTED_MAX: Final = 4096
"""Objects of all clusters that are remembered; a manifest takes a few kilobytes. What is over stays in the brokers."""

Manifest = dict[str, Any]

_log = structlog.get_logger(__name__)


class Departed:
    """Last manifests, by UID, as if they still waited for their finalizer to be taken off."""

    def __init__(self) -> None:
        self._objects: dict[str, Manifest] = {}

    def __contains__(self, manifest: Manifest) -> bool:
        return manifest["metadata"]["uid"] in self._objects

    def get(self, uid: str) -> Manifest | None:
        """The last manifest of one."""
        return self._objects.get(uid)

    def add(self, manifest: Manifest, finalizer: str) -> None:
        """An object whose deletion was told. What it said of the finalizer's policy is for the plan to judge."""
        metadata = manifest["metadata"]
        finalizers = list(metadata.get("finalizers") or ())
        if finalizer in finalizers:
            return  # it was held to the last (that is how the API tells it): who took it off has decided
        if len(self._objects) >= DEPARTED_MAX and metadata["uid"] not in self._objects:
            _log.error("deletion_not_followed", kind=manifest["kind"], name=metadata["name"], remembered=DEPARTED_MAX)
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        kept = trimmed(manifest)
        kept["metadata"]["finalizers"] = [*finalizers, finalizer]
        kept["metadata"].setdefault("deletionTimestamp", now)
        self._objects[metadata["uid"]] = kept

    def forget(self, manifest: Manifest) -> None:
        """Nothing is left to do for it."""
        self._objects.pop(manifest["metadata"]["uid"], None)

    def of(self, kind: str, namespace: str) -> Iterator[Manifest]:
        """Those of one kind and namespace."""
        for manifest in list(self._objects.values()):
            if manifest["kind"] == kind and manifest["metadata"]["namespace"] == namespace:
                yield manifest
