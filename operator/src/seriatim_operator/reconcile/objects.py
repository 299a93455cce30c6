"""What is written to objects that users own: a status, a finalizer, an Event. Nothing else of them is ours."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import structlog

from ..cluster.kinds import BROKER_CLUSTER, Kind
from ..cluster.kube import Api, KubeError
from ..plan.actions import Action
from ..plan.topics import ConfirmObject, HoldObject, ReleaseObject, Surroundings, TellObject
from ..spec.base import Status
from ..spec.errors import InvalidManifestError
from ..status.conditions import MESSAGE_LENGTH_MAX
from .cache import Cache

Manifest = dict[str, Any]

_NOT_FOUND = 404

UNREADABLE = "InvalidSpec"
"""The reason that an object bears while this version cannot read it."""

_REMEDY = "correct it; until then the operator leaves everything as it is"

_log = structlog.get_logger(__name__)


class StatusWriter:
    """Writes the status of objects of one kind.

    Args:
        api: The API.
        cache: Learns at once what was written, so that the next look does not see the object as it was.
        kind: Of the objects.
    """

    def __init__(self, api: Api, cache: Cache, kind: Kind) -> None:
        self._api = api
        self._cache = cache
        self._kind = kind

    async def write_status(self, manifest: Manifest, status: Status) -> Manifest | None:
        """Report; returns the object as it is now, or None if it is gone."""
        return await self._apply_status(manifest, status.to_manifest())

    async def report_unreadable(self, manifest: Manifest, error: InvalidManifestError) -> None:
        """Say on the object why it is left alone, unless that stands there already.

        What else the status holds is kept, for it is remembered there and nowhere else; other conditions would speak of
        what nobody looks at.

        Raises:
            KubeError: The status cannot be written (server-side apply does not take an object with a value of another
                type than its definition has); then it was told in an Event.
        """
        message = f"{_problems_of(manifest, error)[: MESSAGE_LENGTH_MAX - len(_REMEDY) - 2]}: {_REMEDY}"
        before = manifest.get("status") or {}
        said = before.get("conditions") or ()
        if any(known.get("reason") == UNREADABLE and known.get("message") == message for known in said):
            return
        _log.warning("object_unreadable", kind=self._kind.kind, error=str(error))
        condition = {
            "type": "Ready",
            "status": "False",
            "reason": UNREADABLE,
            "message": message,
            "lastTransitionTime": datetime.fromtimestamp(int(time.time()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "observedGeneration": manifest["metadata"].get("generation", 0),
        }
        try:
            await self._apply_status(manifest, {**before, "conditions": [condition]})
        except KubeError:
            await self._api.event(manifest, "Warning", UNREADABLE, message)
            raise

    async def _apply_status(self, manifest: Manifest, status: Manifest) -> Manifest | None:
        metadata = manifest["metadata"]
        body = {
            "apiVersion": self._kind.api_version,
            "kind": self._kind.kind,
            # With the UID a namesake that was made meanwhile is a conflict, and not written to.
            "metadata": {name: metadata[name] for name in ("name", "namespace", "uid")},
            "status": status,
        }
        try:
            written = await self._api.apply_status(body)
        except KubeError as exc:
            if exc.status != _NOT_FOUND:
                raise
            return None
        self._cache.answered(self._kind.kind, written)
        return written


class Writer(StatusWriter):
    """Writes to the objects of one kind that users make.

    Args:
        api: The API.
        cache: Of all objects.
        kind: Of the objects.
        finalizer: That we put on them.
    """

    def __init__(self, api: Api, cache: Cache, kind: Kind, finalizer: str) -> None:
        super().__init__(api, cache, kind)
        self._finalizer = finalizer

    async def do(self, manifest: Manifest, step: Action, surroundings: Surroundings) -> bool:
        """Take a step that concerns the object alone; False if the object must be left, or is gone."""
        match step:
            case HoldObject():
                return await self._set_finalizer(manifest, is_held=True)
            case ConfirmObject():
                return await self._is_there(manifest)
            case ReleaseObject():
                if not await self.may_release(manifest, surroundings):
                    return False
                await self._set_finalizer(manifest, is_held=False)
                return not manifest["metadata"].get("deletionTimestamp")
            case TellObject(reason=reason, note=note, is_warning=is_warning):
                await self._api.event(manifest, "Warning" if is_warning else "Normal", reason, note)
                return True
            case _:
                raise AssertionError(f"nobody takes the step {step}")

    async def may_release(self, manifest: Manifest, surroundings: Surroundings) -> bool:
        """Whether an object may go: not before its data because the cache was behind, and knew of no cluster."""
        return surroundings is not Surroundings.GONE or not await self._is_cluster_there(manifest)

    async def _is_there(self, manifest: Manifest) -> bool:
        """Whether the API itself has the object, and not on its way out."""
        metadata = manifest["metadata"]
        found = await self._api.get(self._kind, metadata["namespace"], metadata["name"])
        is_same = found is not None and found["metadata"]["uid"] == metadata["uid"]
        return is_same and found is not None and not found["metadata"].get("deletionTimestamp")

    async def _is_cluster_there(self, manifest: Manifest) -> bool:
        """Whether the API itself has the cluster, and not on its way out."""
        namespace = manifest["metadata"]["namespace"]
        found = await self._api.get(BROKER_CLUSTER, namespace, manifest["spec"]["cluster"])
        return found is not None and not found["metadata"].get("deletionTimestamp")

    async def _set_finalizer(self, manifest: Manifest, *, is_held: bool) -> bool:
        """Put it on or take it off, if the object is still as it was seen; False if it is gone."""
        metadata = manifest["metadata"]
        others = [name for name in metadata.get("finalizers") or () if name != self._finalizer]
        finalizers = [*others, self._finalizer] if is_held else others
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
        try:
            written = await self._api.merge(self._kind, metadata["namespace"], metadata["name"], patch)
        except KubeError as exc:
            if exc.status != _NOT_FOUND:
                raise
            return False
        if written["metadata"].get("deletionTimestamp") and not written["metadata"].get("finalizers"):
            return True  # this was its last: it is gone, and its deletion is about to be told
        self._cache.answered(self._kind.kind, written)
        manifest["metadata"] = written["metadata"]
        return True


def _problems_of(manifest: Manifest, error: InvalidManifestError) -> str:
    """What is wrong; with the name of the object if it is another one, which this one depends on."""
    is_own = (error.kind, error.name) == (manifest["kind"], manifest["metadata"]["name"])
    return "; ".join(error.problems) if is_own else str(error)
