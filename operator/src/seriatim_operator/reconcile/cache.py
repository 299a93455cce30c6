"""What the watches have told: the newest manifest of each object, by kind and name.

A cache may lag behind the API, so nothing is taken away on its word alone: before a disruptive step the same questions
are asked of the API itself (`cluster.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

_UNREAD = ("managedFields",)
"""Parts of metadata that nobody reads here, and that make most of an object's size."""

_UNREAD_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
"""The whole object once more."""


class Cache:
    """Objects by kind, namespace and name."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[tuple[str, str], Manifest]] = {}

    def put(self, kind: str, manifest: Manifest) -> None:
        """An object as the API says it is, or said before: nothing older takes the place of what is known.

        1  the operator writes an object's status
        2  somebody deletes the object, and the watch tells so
        3  the answer to 1 arrives: without this rule, the deletion would be forgotten until everything is listed again
        """
        objects, key = self._objects.setdefault(kind, {}), _key(manifest["metadata"])
        if key not in objects or not _is_older(manifest["metadata"], objects[key]["metadata"]):
            objects[key] = trimmed(manifest)

    def answered(self, kind: str, manifest: Manifest) -> None:
        """An object as the API gave it back when it was written.

        It takes the place of what is known of that object, and brings none back: it may have gone since.
        """
        metadata = manifest["metadata"]
        known = self.get(kind, *_key(metadata))
        if known is not None and known["metadata"].get("uid") == metadata.get("uid"):
            self.put(kind, manifest)

    def drop(self, kind: str, manifest: Manifest) -> None:
        """An object that is no more; a later one of the same name stays."""
        objects = self._objects.get(kind, {})
        key = _key(manifest["metadata"])
        found = objects.get(key)
        if found is not None and found["metadata"].get("uid") == manifest["metadata"].get("uid"):
            del objects[key]

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """One object, if it was seen."""
        return self._objects.get(kind, {}).get((namespace, name))

    def of(self, kind: str, namespace: str | None = None) -> Iterator[Manifest]:
        """All objects of a kind, or those of one namespace."""
        for (where, _), manifest in list(self._objects.get(kind, {}).items()):
            if namespace is None or where == namespace:
                yield manifest

    def count(self, kind: str) -> int:
        """How many objects of a kind there are."""
        return len(self._objects.get(kind, {}))


def trimmed(manifest: Manifest) -> Manifest:
    """The object without what nobody reads."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _UNREAD}
    if _UNREAD_ANNOTATION in (metadata.get("annotations") or {}):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != _UNREAD_ANNOTATION}
    return {**manifest, "metadata": metadata}


def _is_older(metadata: Manifest, known: Manifest) -> bool:
    """Whether the same object was seen at a later version. Kubernetes lets versions of one resource be compared."""
    if metadata.get("uid") != known.get("uid"):
        return False
    version, known_version = str(metadata.get("resourceVersion", "")), str(known.get("resourceVersion", ""))
    return version.isdecimal() and known_version.isdecimal() and int(version) < int(known_version)


def _key(metadata: Manifest) -> tuple[str, str]:
    return str(metadata.get("namespace") or ""), str(metadata["name"])
