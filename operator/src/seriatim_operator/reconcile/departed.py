"""Keeps the last manifests of deleted objects until what they owned is deleted, as their `deletionPolicy` says.

In its own namespace the operator sets no finalizers, because it would be deleted with the namespace and nothing would
remove them. So an object there is gone before the operator has acted, and its last manifest takes its place.

Only a DELETED event of a watch makes an object a departed one. An object that is missing from a listing proves nothing,
because a Kubernetes that was restored from an older backup looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from .cache import trimmed

DEPARTED_MAX: Final = 4096
"""The most objects of all clusters that are kept; each needs a few kilobytes. What further objects owned stays in the
brokers, and an error is logged."""

Manifest = dict[str, Any]

_log = structlog.get_logger(__name__)


class Departed:
    """Last manifests by UID, each as if the object were being deleted and still had the finalizer."""

    def __init__(self) -> None:
        self._objects: dict[str, Manifest] = {}

    def __contains__(self, manifest: Manifest) -> bool:
        return manifest["metadata"]["uid"] in self._objects

    def get(self, uid: str) -> Manifest | None:
        """The last manifest of the object with this UID, or None."""
        return self._objects.get(uid)

    def add(self, manifest: Manifest, finalizer: str) -> None:
        """Keep the last manifest of an object whose deletion a watch reported, with the finalizer added.

        Nothing is kept if the object had the finalizer to the end, because then its removal was decided.
        """
        metadata = manifest["metadata"]
        finalizers = list(metadata.get("finalizers") or ())
        if finalizer in finalizers:
            return  # the API reports it with the finalizer that was removed last
        if len(self._objects) >= DEPARTED_MAX and metadata["uid"] not in self._objects:
            _log.error("deletion_not_followed", kind=manifest["kind"], name=metadata["name"], remembered=DEPARTED_MAX)
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        kept = trimmed(manifest)
        kept["metadata"]["finalizers"] = [*finalizers, finalizer]
        kept["metadata"].setdefault("deletionTimestamp", now)
        self._objects[metadata["uid"]] = kept

    def forget(self, manifest: Manifest) -> None:
        """Forget an object for which nothing is left to do."""
        self._objects.pop(manifest["metadata"]["uid"], None)

    def of(self, kind: str, namespace: str) -> Iterator[Manifest]:
        """The last manifests of one kind and namespace."""
        for manifest in list(self._objects.values()):
            if manifest["kind"] == kind and manifest["metadata"]["namespace"] == namespace:
                yield manifest
