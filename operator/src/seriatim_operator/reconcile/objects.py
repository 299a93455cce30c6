"""Writes to objects that users own: the status, a finalizer, and Events. The operator changes nothing else of them."""

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
"""The reason in an object's condition while this version cannot read the object."""

NOT_RENEWED = "NotRenewed"
"""The reason in an object's conditions while the operator's passes fail."""

_GOOD = ("Ready", "Whole", "Stable")
"""The conditions of all kinds that say, when they are True, that something is well."""

_REMEDY = "correct it; until then the operator changes nothing"

_log = structlog.get_logger(__name__)


class StatusWriter:
    """Writes the status of objects of one kind.

    Args:
        api: The API.
        cache: Gets what was written at once, so that the next pass does not read the object as it was before.
        kind: The kind of the objects.
    """

    def __init__(self, api: Api, cache: Cache, kind: Kind) -> None:
        self._api = api
        self._cache = cache
        self._kind = kind

    async def write_status(self, manifest: Manifest, status: Status) -> Manifest | None:
        """Write the status. Returns the object as it is now, or None if it is gone.

        Raises:
            KubeError: The API refuses the status or does not answer.
        """
        return await self._apply_status(manifest, status.to_manifest())

    async def report_unreadable(self, manifest: Manifest, error: InvalidManifestError) -> None:
        """Report on an object why the operator does not act on it, unless the status says so already.

        The rest of the status stays, because no other place has it. The other conditions are removed, because they
        would be about fields that the operator does not read now.

        Raises:
            KubeError: The status cannot be written; an Event with the message was posted instead. Server-side apply
                refuses an object with a value of another type than its definition has.
        """
        message = f"{_problems_of(manifest, error)[: MESSAGE_LENGTH_MAX - len(_REMEDY) - 2]}: {_REMEDY}"
        known = (manifest.get("status") or {}).get("conditions") or ()
        if any(each.get("reason") == UNREADABLE and each.get("message") == message for each in known):
            return
        _log.warning("object_unreadable", kind=self._kind.kind, error=str(error))
        await self._warn(manifest, [_condition(manifest, "Ready", "False", UNREADABLE, message)], message, UNREADABLE)

    async def report_not_renewed(self, manifest: Manifest, message: str) -> bool:
        """Report on an object that it is not known any more whether the good things in its status are true.

        Returns:
            Whether the status was written now. It is not if nothing good is in it.

        Raises:
            KubeError: The status cannot be written; an Event with the message was posted instead.
        """
        known = (manifest.get("status") or {}).get("conditions") or []
        if not any(each.get("type") in _GOOD and each.get("status") == "True" for each in known):
            return False
        text = message[:MESSAGE_LENGTH_MAX]
        conditions = [
            _condition(manifest, each["type"], "Unknown", NOT_RENEWED, text) if each.get("type") in _GOOD else each
            for each in known
        ]
        await self._warn(manifest, conditions, text, NOT_RENEWED)
        return True

    async def _warn(self, manifest: Manifest, conditions: list[Manifest], message: str, reason: str) -> None:
        """Write the conditions, and leave the rest of the status; if that is refused, post an Event instead."""
        try:
            await self._apply_status(manifest, {**(manifest.get("status") or {}), "conditions": conditions})
        except KubeError:
            await self._api.event(manifest, "Warning", reason, message)
            raise

    async def _apply_status(self, manifest: Manifest, status: Manifest) -> Manifest | None:
        metadata = manifest["metadata"]
        body = {
            "apiVersion": self._kind.api_version,
            "kind": self._kind.kind,
            # With the UID, a new object of the same name is a conflict and is not written to.
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
        cache: The cache of all objects.
        kind: The kind of the objects.
        finalizer: The operator's finalizer for this kind.
    """

    def __init__(self, api: Api, cache: Cache, kind: Kind, finalizer: str) -> None:
        super().__init__(api, cache, kind)
        self._finalizer = finalizer

    async def do(self, manifest: Manifest, step: Action, surroundings: Surroundings) -> bool:
        """Take a step on the object alone. Returns False if no further step may be taken for it, or it is gone.

        Raises:
            KubeError: The API refuses a call or does not answer.
        """
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
                raise AssertionError(f"no code takes the step {step}")

    async def may_release(self, manifest: Manifest, surroundings: Surroundings) -> bool:
        """Whether the finalizer may be removed.

        If the cache has no cluster, the API is asked. Otherwise a cache that is behind could let an object go before
        its data.
        """
        return surroundings is not Surroundings.GONE or not await self._is_cluster_there(manifest)

    async def _is_there(self, manifest: Manifest) -> bool:
        """Whether the API has the object with this UID, and it is not being deleted."""
        metadata = manifest["metadata"]
        found = await self._api.get(self._kind, metadata["namespace"], metadata["name"])
        is_same = found is not None and found["metadata"]["uid"] == metadata["uid"]
        return is_same and found is not None and not found["metadata"].get("deletionTimestamp")

    async def _is_cluster_there(self, manifest: Manifest) -> bool:
        """Whether the API has the cluster, and it is not being deleted."""
        namespace = manifest["metadata"]["namespace"]
        found = await self._api.get(BROKER_CLUSTER, namespace, manifest["spec"]["cluster"])
        return found is not None and not found["metadata"].get("deletionTimestamp")

    async def _set_finalizer(self, manifest: Manifest, *, is_held: bool) -> bool:
        """Set or remove the finalizer, if the object has not changed since it was read. Returns False if it is gone."""
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
            return True  # this was its last finalizer: the object is gone, and the watch will report its deletion
        self._cache.answered(self._kind.kind, written)
        manifest["metadata"] = written["metadata"]
        return True


def _condition(manifest: Manifest, type_: str, status: str, reason: str, message: str) -> Manifest:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": datetime.fromtimestamp(int(time.time()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": manifest["metadata"].get("generation", 0),
    }


def _problems_of(manifest: Manifest, error: InvalidManifestError) -> str:
    """The problems, with the name of the object if it is not this one but one on which this one depends."""
    is_own = (error.kind, error.name) == (manifest["kind"], manifest["metadata"]["name"])
    return "; ".join(error.problems) if is_own else str(error)
