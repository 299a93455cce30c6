"""Watches objects with kopf, which runs in a thread with an event loop of its own.

kopf takes a loop and a process for its own: when it ends, it cancels all tasks that began after it, and in the main
thread it handles the signals. In a thread of its own it can end and begin again, when a kind is deleted or put back.

kopf only watches: it writes to no object and sets no finalizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import kopf

from .cluster.kinds import CLAIM, POD, Kind
from .resources.names import LABEL_CLUSTER

Take = Callable[[Kind, str | None, dict[str, Any]], None]
"""Takes an event of a watch: the kind, the type of the event (None in the first listing), and the object."""

SERVER_S = 300
CLIENT_S = 330


async def watch(kinds: Collection[Kind], namespaces: Sequence[str], take: Take) -> None:
    """Watch all objects of these kinds until the call is cancelled.

    Args:
        kinds: The kinds, which the API server serves.
        namespaces: Their namespaces; empty for all.
        take: Called in the loop of the caller.

    Raises:
        Exception: A watch failed, for instance because its kind was deleted.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    stop = threading.Event()

    def tell(kind: Kind, event_type: str | None, manifest: dict[str, Any]) -> None:
        if not stop.is_set():
            take(kind, event_type, manifest)

    def end(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_exception(error or RuntimeError("kopf ended by itself"))

    def call(function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed
            loop.call_soon_threadsafe(function, *arguments)

    def work() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(_run_kopf(kinds, namespaces, lambda *event: call(tell, *event), stop))
        except BaseException as exc:
            error = exc
        call(end, error)

    threading.Thread(target=work, name="watches", daemon=True).start()
    try:
        await ended
    finally:
        stop.set()


async def _run_kopf(kinds: Collection[Kind], namespaces: Sequence[str], tell: Take, stop: threading.Event) -> None:
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # it warns that it takes no signals here
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for kind in kinds:
        _register(registry, kind, tell)
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True  # which kinds are served decides the caller
    settings.process.ultimate_exiting_timeout = None  # a thread that ends must not kill the process
    settings.watching.server_timeout = SERVER_S
    settings.watching.client_timeout = CLIENT_S
    for kind in (POD, CLAIM):
        settings.watching.label_selectors["v1", kind.plural] = LABEL_CLUSTER
    await kopf.operator(
        registry=registry,
        settings=settings,
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
    )


def _register(registry: kopf.OperatorRegistry, kind: Kind, tell: Take) -> None:
    async def on_event(event: Any, **_: Any) -> None:
        tell(kind, event["type"], dict(event["object"]))

    group, _, version = kind.api_version.rpartition("/")
    kopf.on.event(group, version, kind.plural, registry=registry, id=f"see-{kind.plural}")(on_event)


def _login(**values: Any) -> kopf.ConnectionInfo | None:
    """Log in as `Kube` does: with the pod's service account or, outside of a pod, with a kubeconfig."""
    return kopf.login_with_service_account(**values) or kopf.login_with_kubeconfig(**values)
