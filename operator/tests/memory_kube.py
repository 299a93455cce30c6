"""The Kubernetes API in memory: one store of objects for all tests that need no real API server.

It keeps what the operator relies on: UIDs and versions, which a write may name as its precondition; server-side apply,
by which a manager owns what it names; the status apart from the spec; and deletion that waits for finalizers.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from seriatim_operator.cluster.kinds import CONSUMER_GROUP, TOPIC, Kind, kind_of
from seriatim_operator.cluster.kube import ConflictError, KubeError

Manifest = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace and name."""

BEGAN = datetime(2026, 1, 2, tzinfo=UTC)
"""When objects are made, unless they say otherwise."""


class MemoryKube:
    """The API server.

    Args:
        namespace: The namespace of objects that name none.
        refuse: Called with the name of each call and its kind; the error that it returns is raised instead.
        began: When objects are made that do not say it.
    """

    def __init__(
        self,
        namespace: str = "default",
        refuse: Callable[[str, Kind], KubeError | None] = lambda _call, _kind: None,
        began: datetime = BEGAN,
    ) -> None:
        self._began = began
        self.namespace = namespace
        self.refuse = refuse
        self.objects: dict[Key, Manifest] = {}
        self.calls: list[str] = []
        self.writes: list[str] = []
        """Calls that changed something."""
        self.statuses: list[Manifest] = []
        """What was sent as a status, whether it changed something or not."""
        self.events: list[tuple[str, str, str, str]] = []
        """Name of the object, type, reason and note."""
        self.on_write: Callable[[str], None] | None = None
        self.watch: Callable[[str, Manifest], None] = lambda _type, _manifest: None
        """Called with each change of an object, as the API's watches report it."""
        self._numbers = itertools.count(1)

    # ---- as `Kube` ----

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        self._call("get", kind)
        return copy.deepcopy(self.objects.get((kind.kind, namespace or "", name)))

    async def list(self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Manifest]:
        self._call("list", kind)
        paths = [term.partition("=")[::2] for term in fields.split(",") if term]
        terms = [term.partition("=")[::2] for term in selector.split(",") if term]

        def is_meant(manifest: Manifest) -> bool:
            labels = manifest["metadata"].get("labels") or {}
            has_fields = all(_at(manifest, path) == value for path, value in paths)
            return has_fields and all(name in labels and value in ("", labels[name]) for name, value in terms)

        return [
            copy.deepcopy(manifest)
            for manifest in self.of(kind.kind)
            if (namespace is None or manifest["metadata"].get("namespace", "") == namespace) and is_meant(manifest)
        ]

    async def create(self, manifest: Manifest) -> Manifest:
        self._call("create", kind_of(manifest))
        if _key(manifest) in self.objects:
            raise ConflictError(409, "AlreadyExists", "it is there")
        return self._write("create", manifest)

    async def replace(self, manifest: Manifest) -> Manifest:
        self._call("replace", kind_of(manifest))
        assert manifest["metadata"]["resourceVersion"]
        self._found(_key(manifest), manifest["metadata"])
        return self._write("replace", manifest)

    async def apply(self, manifest: Manifest, *, force: bool = True) -> Manifest:
        """What the manager names becomes so; what others wrote stays."""
        self._call("apply", kind_of(manifest))
        if "uid" in manifest["metadata"]:
            self._found(_key(manifest), manifest["metadata"])
        return self._write("apply", _merged(self.objects.get(_key(manifest), {}), manifest))

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """The status, whole: one manager writes it."""
        self._call("apply_status", kind_of(manifest))
        found = self._found(_key(manifest), manifest["metadata"])
        self.statuses.append(copy.deepcopy(manifest))
        return self._write("status", {**found, "status": manifest["status"]})

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: Manifest) -> Manifest:
        self._call("merge", kind)
        metadata = patch.get("metadata", {})
        needs_version = "finalizers" in metadata or kind in (TOPIC, CONSUMER_GROUP)
        assert not needs_version or "resourceVersion" in metadata, "it would undo what another client wrote"
        return self._write("merge", _merged(self._found((kind.kind, namespace or "", name), metadata), patch))

    async def delete(
        self, kind: Kind, namespace: str | None, name: str, *, uid: str, grace_s: int | None = None, version: str = ""
    ) -> bool:
        self._call("delete", kind)
        key = (kind.kind, namespace or "", name)
        if key not in self.objects:
            return False
        self._delete(self._found(key, {"uid": uid, "resourceVersion": version or None}))
        self.wrote(f"delete {kind.kind} {name}")
        return True

    async def event(self, about: Manifest, type_: str, reason: str, note: str, related: Manifest | None = None) -> None:
        """Remembered; it is no write that anything depends on."""
        self.events.append((about["metadata"]["name"], type_, reason, note))

    # ---- other clients of the API ----

    def put(self, manifest: Manifest, *, age: int = 0) -> Manifest:
        """Write a whole object, `age` seconds older than others, and return the one that is kept."""
        made, number = copy.deepcopy(manifest), next(self._numbers)
        metadata = made["metadata"]
        if kind_of(made).namespaced:
            metadata.setdefault("namespace", self.namespace)
        metadata.setdefault("uid", f"uid-{number}")
        metadata.setdefault("generation", 1)
        metadata.setdefault("creationTimestamp", (self._began - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ"))
        metadata["resourceVersion"] = str(number)
        is_gone = "deletionTimestamp" in metadata and not metadata.get("finalizers")
        if is_gone:
            self.objects.pop(_key(made), None)
        else:
            self.objects[_key(made)] = made
        self.watch("DELETED" if is_gone else "MODIFIED", copy.deepcopy(made))
        return made

    def change(self, kind: str, name: str, /, **spec: object) -> None:
        """Change fields of an object's spec."""
        found = copy.deepcopy(self.objects[kind, self.namespace, name])
        found["spec"].update(spec)
        found["metadata"]["generation"] += 1
        self.put(found)

    def remove(self, kind: str, name: str) -> None:
        """Ask for an object's deletion."""
        self._delete(self.objects[kind, self.namespace, name])

    def of(self, kind: str) -> list[Manifest]:
        """The objects of a kind, themselves."""
        return [manifest for (found, _, _), manifest in sorted(self.objects.items()) if found == kind]

    def wrote(self, what: str) -> None:
        """Something was changed, here or at the brokers."""
        self.writes.append(what)
        if self.on_write is not None:
            self.on_write(what)

    def _call(self, name: str, kind: Kind) -> None:
        self.calls.append(name)
        if (error := self.refuse(name, kind)) is not None:
            raise error

    def _found(self, key: Key, preconditions: Manifest) -> Manifest:
        found = self.objects.get(key)
        if found is None:
            raise KubeError(404, "NotFound", f"no {key}")
        for name in ("uid", "resourceVersion"):
            if preconditions.get(name) not in (None, found["metadata"][name]):
                raise ConflictError(409, "Conflict", f"{key} has another {name} by now")
        return found

    def _write(self, verb: str, manifest: Manifest) -> Manifest:
        if self.objects.get(_key(manifest)) != manifest:
            manifest = self.put(manifest)
            self.wrote(f"{verb} {manifest['kind']} {manifest['metadata']['name']}")
        return copy.deepcopy(manifest)

    def _delete(self, found: Manifest) -> None:
        self.put({**found, "metadata": {**found["metadata"], "deletionTimestamp": "2026-11-20T00:00:00Z"}})


def _key(manifest: Manifest) -> Key:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace") or "", metadata["name"]


def _at(value: Any, path: str) -> Any:
    """The field at a path such as `involvedObject.uid`."""
    for name in path.split("."):
        value = (value or {}).get(name)
    return value


def _merged(value: Any, patch: Any) -> Any:
    """As RFC 7396 has it: null takes a field away."""
    if not isinstance(value, dict) or not isinstance(patch, dict):
        return patch
    both = value | {name: _merged(value.get(name), new) for name, new in patch.items()}
    return {name: new for name, new in both.items() if patch.get(name, new) is not None}
