"""Keeps the newest manifest of each object that the watches reported, by kind and name.

A cache may be behind the API. So before a step that takes something away, the operator reads the objects again from the
API itself (`cluster.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

_UNREAD = ("managedFields",)
"""Parts of the metadata that the operator does not read, and that make most of an object's size."""

_UNREAD_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
"""An annotation that has the whole object a second time."""


class Cache:
    """Manifests by kind, namespace and name."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[tuple[str, str], Manifest]] = {}

    def put(self, kind: str, manifest: Manifest) -> None:
        """Keep an object as the API reported it, unless the cache has a newer version of it.

        Without this rule:

        1. The operator writes an object's status.
        2. An administrator deletes the object, and the watch reports it.
        3. The answer to step 1 arrives, and the cache forgets the deletion until the next listing.
        """
        objects, key = self._objects.setdefault(kind, {}), _key(manifest["metadata"])
        if key not in objects or not _is_older(manifest["metadata"], objects[key]["metadata"]):
            objects[key] = trimmed(manifest)

    def answered(self, kind: str, manifest: Manifest) -> None:
        """Keep an object as the API returned it from a write, if the cache still has the object.

        If the cache does not have it, the object may have been deleted since the write.
        """
        metadata = manifest["metadata"]
        known = self.get(kind, *_key(metadata))
        if known is not None and known["metadata"].get("uid") == metadata.get("uid"):
            self.put(kind, manifest)

    def drop(self, kind: str, manifest: Manifest) -> None:
        """Remove an object that was deleted. A later object of the same name stays."""
        objects = self._objects.get(kind, {})
        key = _key(manifest["metadata"])
        found = objects.get(key)
        if found is not None and found["metadata"].get("uid") == manifest["metadata"].get("uid"):
            del objects[key]

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """One object, or None if the cache does not have it."""
        return self._objects.get(kind, {}).get((namespace, name))

    def of(self, kind: str, namespace: str | None = None) -> Iterator[Manifest]:
        """All objects of a kind, in one namespace or (None) in all."""
        for (where, _), manifest in list(self._objects.get(kind, {}).items()):
            if namespace is None or where == namespace:
                yield manifest

    def count(self, kind: str) -> int:
        """How many objects of a kind the cache has."""
        return len(self._objects.get(kind, {}))


def trimmed(manifest: Manifest) -> Manifest:
    """The object without the parts that the operator does not read."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _UNREAD}
    if _UNREAD_ANNOTATION in (metadata.get("annotations") or {}):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != _UNREAD_ANNOTATION}
    return {**manifest, "metadata": metadata}


def _is_older(metadata: Manifest, known: Manifest) -> bool:
    """Whether the known manifest is a later version of the same object. Versions of one resource can be compared."""
    if metadata.get("uid") != known.get("uid"):
        return False
    version, known_version = str(metadata.get("resourceVersion", "")), str(known.get("resourceVersion", ""))
    return version.isdecimal() and known_version.isdecimal() and int(version) < int(known_version)


def _key(metadata: Manifest) -> tuple[str, str]:
    return str(metadata.get("namespace") or ""), str(metadata["name"])
