"""Calls the Kubernetes API. No other module of the operator calls it.

Objects are plain dictionaries. A write is mostly a server-side apply under one field manager. A conflict with another
manager is logged, and then the fields are taken over. A delete names the UID, and mostly the version, of the object
that was read. The calls run in threads of their own, because the library blocks, and each has a deadline of 10 s.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlencode

import structlog
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError

from .kinds import EVENT, Kind, kind_of

FIELD_MANAGER = "seriatim-operator"

CALLS_AT_ONCE = 8
CALL_TIMEOUT_S = 10.0
PAGE_ITEMS = 250
EVENTS_REMEMBERED_MAX = 1000

Manifest = dict[str, Any]

_log = structlog.get_logger(__name__)


class KubeError(Exception):
    """The API answered with an error, or did not answer.

    Attributes:
        status: The HTTP status; 0 if there was no answer. A write without an answer may have been carried out.
        reason: The API's own word for the error, such as "Conflict".
        sentence: The API's own sentence, without the call; the whole message if the API gave none.
    """

    def __init__(self, status: int, reason: str, message: str, sentence: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.sentence = sentence or message


class ConflictError(KubeError):
    """The object has changed since it was read, or another object has its name now. Read it again."""


class InvalidError(KubeError):
    """The API refuses the object as invalid. Sending the same object again gives the same answer."""


class UnknownKindError(KubeError):
    """The API server does not serve this kind: its definition is not installed, or was made about 1 s ago."""


class Api(Protocol):
    """The methods of `Kube` that the rest of the operator calls. Test doubles have them too.

    Every method except `event` raises `KubeError` if the API refuses the call or does not answer.
    """

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """Read one object from the API and not from a cache; None if it does not exist."""

    async def list(self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Manifest]:
        """List all objects of a kind that match the label and field selectors, in one namespace or (None) in all."""

    async def apply(self, manifest: Manifest, *, force: bool = True) -> Manifest:
        """Write an object with server-side apply, and return it as the API has it now.

        Without `force`, fields of other managers are not taken over.
        """

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Write the status of an object with server-side apply, and return the object as the API has it now."""

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: Manifest) -> Manifest:
        """Send a merge patch, for what apply cannot do: remove annotations, and change finalizers."""

    async def delete(
        self, kind: Kind, namespace: str | None, name: str, *, uid: str, grace_s: int | None = None, version: str = ""
    ) -> bool:
        """Delete exactly the object with this UID; False if it was gone already."""

    async def event(self, about: Manifest, type_: str, reason: str, note: str, related: Manifest | None = None) -> None:
        """Post an Event about an object. A failure is only logged."""


class Kube:
    """A client of the API server, with the account of this pod or of a kubeconfig.

    A call that is cancelled may still be carried out.

    Args:
        before_write: Called before each write. It raises an error to refuse the write.
        configuration: The connection. None uses the pod's account or, outside of a pod, the usual kubeconfig.
        field_manager: The field manager in whose name fields are written.
    """

    def __init__(
        self,
        before_write: Callable[[], None] | None = None,
        configuration: client.Configuration | None = None,
        field_manager: str = FIELD_MANAGER,
    ) -> None:
        self._api = client.ApiClient(configuration or _configuration())
        self._field_manager = field_manager
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="kube")
        self._before_write = before_write or (lambda: None)
        self._told: dict[tuple[str, ...], tuple[str, int]] = {}

    # ---- reading ----

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """Read one object from the API and not from a cache; None if it does not exist."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except KubeError as exc:
            if exc.status == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Manifest]:
        """List all objects of a kind that match the label and field selectors, in pages of 250."""
        items: list[Manifest] = []
        token = ""
        while True:
            query = {"limit": str(PAGE_ITEMS)}
            if selector:
                query["labelSelector"] = selector
            if fields:
                query["fieldSelector"] = fields
            if token:
                query["continue"] = token
            page = await self._call("GET", kind.path(namespace), query)
            for item in page.get("items") or []:
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.kind)
                items.append(item)
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return items

    async def served(self, api_version: str) -> frozenset[str]:
        """The plurals of the kinds that the API server serves of an API version with a group."""
        try:
            answer = await self._call("GET", f"/apis/{api_version}")
        except KubeError as exc:
            if exc.status == 404:
                return frozenset()
            raise
        return frozenset(str(each["name"]) for each in answer.get("resources") or ())

    # ---- writing ----

    async def apply(self, manifest: Manifest, *, force: bool = True) -> Manifest:
        """Write an object with server-side apply, and return it as the API has it now.

        Args:
            manifest: The fields. With `metadata.uid`, only the object with this UID is changed.
            force: Take over fields of other field managers, which is logged.

        Raises:
            ConflictError: Without `force` another manager has a field, or the object with this UID is gone.
            InvalidError: The API refuses the object as invalid, or another object has the name now.
            UnknownKindError: The API does not know the kind.
            KubeError: The API refuses the write for another reason, or does not answer.
        """
        return await self._apply(manifest, None, force=force)

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Write the status of an object with server-side apply, as `apply` does."""
        return await self._apply(manifest, "status", force=True)

    async def _apply(self, manifest: Manifest, subresource: str | None, *, force: bool) -> Manifest:
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata.get("namespace"), metadata["name"], subresource)
        query = {"fieldManager": self._field_manager, "fieldValidation": "Strict"}
        try:
            return await self._write("PATCH", path, query, manifest, "application/apply-patch+yaml")
        except ConflictError as exc:
            if not force:
                raise
            _log.warning("field_taken_over", kind=manifest["kind"], name=metadata["name"], error=str(exc))
        return await self._write("PATCH", path, {**query, "force": "true"}, manifest, "application/apply-patch+yaml")

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object that does not exist yet.

        Raises:
            ConflictError: It exists.
        """
        path = kind_of(manifest).path(manifest["metadata"].get("namespace"))
        return await self._write("POST", path, {"fieldManager": self._field_manager}, manifest, "application/json")

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace the whole object, if the API still has the version in `manifest`.

        Raises:
            ConflictError: The object has another version now.
        """
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata.get("namespace"), metadata["name"])
        return await self._write("PUT", path, {"fieldManager": self._field_manager}, manifest, "application/json")

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: Manifest) -> Manifest:
        """Send a merge patch, for what apply cannot do: remove annotations, and change finalizers."""
        path = kind.path(namespace, name)
        return await self._write(
            "PATCH", path, {"fieldManager": self._field_manager}, patch, "application/merge-patch+json"
        )

    async def delete(
        self, kind: Kind, namespace: str | None, name: str, *, uid: str, grace_s: int | None = None, version: str = ""
    ) -> bool:
        """Delete exactly the object with this UID; False if it was gone already.

        Args:
            kind: The kind of the object.
            namespace: Its namespace; None for a kind without namespaces.
            name: Its name.
            uid: Its UID.
            grace_s: Grace period in seconds; None for the object's own.
            version: Its resource version; empty to delete any version.

        Raises:
            ConflictError: Another object has the name now, or the object has another version than `version`.
        """
        preconditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        options: Manifest = {"preconditions": preconditions, "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._write("DELETE", kind.path(namespace, name), {}, options, "application/json")
        except KubeError as exc:
            if exc.status == 404:
                return False
            raise
        return True

    async def event(self, about: Manifest, type_: str, reason: str, note: str, related: Manifest | None = None) -> None:
        """Post an Event about an object. The same reason and note again raise the count of the first Event.

        A failure is only logged.
        """
        metadata = about["metadata"]
        namespace = metadata.get("namespace", "default")
        key = (str(metadata.get("uid")), reason, note)
        now = _now()
        name, count = self._told.get(key, ("", 0))
        try:
            if name:
                patch = {"count": count + 1, "lastTimestamp": now}
                await self._write("PATCH", EVENT.path(namespace, name), {}, patch, "application/merge-patch+json")
                self._told[key] = (name, count + 1)
                return
            body: Manifest = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{metadata['name']}.", "namespace": namespace},
                "involvedObject": _reference(about),
                "type": type_,
                "reason": reason,
                "message": note[:1024],
                "source": {"component": FIELD_MANAGER},
                "reportingComponent": FIELD_MANAGER,
                "reportingInstance": FIELD_MANAGER,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            }
            if related is not None:
                body["related"] = _reference(related)
            made = await self._write("POST", EVENT.path(namespace), {}, body, "application/json")
            if len(self._told) >= EVENTS_REMEMBERED_MAX:
                self._told.clear()
            self._told[key] = (made["metadata"]["name"], 1)
        except KubeError as exc:
            self._told.pop(key, None)
            _log.info("event_not_posted", reason=reason, error=str(exc))

    def close(self) -> None:
        """Stop the threads. Calls under way end at their deadline, 10 s after their start at the latest."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- calls ----

    async def _write(self, method: str, path: str, query: dict[str, str], body: Any, content_type: str) -> Manifest:
        self._before_write()
        return await self._call(method, path, query, body, content_type)

    async def _call(
        self, method: str, path: str, query: dict[str, str] | None = None, body: Any = None, content_type: str = ""
    ) -> Manifest:
        call = partial(self._call_now, method, path, query or {}, body, content_type)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _call_now(self, method: str, path: str, query: dict[str, str], body: Any, content_type: str) -> Manifest:
        headers = {"Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        # An apply patch must be YAML, and JSON is YAML. The library sends only a text as it is, so it gets a text.
        data: Any = json.dumps(body) if content_type.endswith("yaml") else body
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, data)
        url = f"{self._api.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._api.call_api(method, url, headers, data, _request_timeout=CALL_TIMEOUT_S)
            raw = response.read()  # type: ignore[no-untyped-call]
        except (ApiException, HTTPError, OSError) as exc:
            raise KubeError(0, "Unreachable", f"{method} {path}: {exc}") from exc
        try:
            answer: Manifest = json.loads(raw) if raw else {}
        except ValueError:
            answer = {}
        if response.status >= 400:
            raise _error(response.status, answer, f"{method} {path}")
        return answer


def _error(status: int, answer: Manifest, what: str) -> KubeError:
    if status == 404 and not answer:
        # If an object does not exist, the server answers with a Status. If it does not serve the path, it answers with
        # plain text.
        remedy = "check that this is the address of a Kubernetes API"
        if "/apis/seriatim.dev/" in what:
            remedy = "install Seriatim's definitions (Helm: crds.install=true; or kubectl apply --server-side -f crds/)"
        return UnknownKindError(status, "UnknownKind", f"{what}: the server does not know the kind. Remedy: {remedy}")
    reason, message = str(answer.get("reason", "")), str(answer.get("message", "")) or f"HTTP status {status}"
    kind = {409: ConflictError, 422: InvalidError, 400: InvalidError}.get(status, KubeError)
    return kind(status, reason, f"{what}: {message}", message)


def _reference(about: Manifest) -> Manifest:
    metadata = about["metadata"]
    reference = {"apiVersion": about["apiVersion"], "kind": about["kind"], "name": metadata["name"]}
    for name in ("namespace", "uid"):
        if metadata.get(name):
            reference[name] = metadata[name]
    return reference


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _configuration() -> client.Configuration:
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except ConfigException:
        config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = CALLS_AT_ONCE
    return configuration
