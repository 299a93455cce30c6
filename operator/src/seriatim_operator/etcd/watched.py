"""Watches the etcd of the operator's release: its members, and the age of its newest snapshot.

It reads the members' pods from Kubernetes, and how full each disk is from the page for Prometheus. It never asks etcd
itself: what the operator decides never depends on the coordinator, and this is shown to administrators only.

A member's pod is ready only if the member reads with the quorum. So one ready pod proves that there is a quorum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import aiohttp
import structlog

from ..cluster.kinds import CRON_JOB, POD
from ..cluster.kube import Api, KubeError
from ..plan.observed import EtcdMember, EtcdView

LOOK_S: Final = 3.0

USE_S: Final = 60.0
"""Seconds between two looks at how full the disks are."""

METRICS_PORT: Final = 2381
ASK_S: Final = 2.0
PAGE_BYTES_MAX: Final = 4 << 20

_USED, _QUOTA = "etcd_mvcc_db_total_size_in_bytes", "etcd_server_quota_backend_bytes"

_log = structlog.get_logger(__name__)


class WatchedEtcd:
    """Looks at the etcd again and again.

    Args:
        api: Reads pods and the CronJob.
        namespace: Namespace of the release.
        name: Name of the etcd's StatefulSet.
        members: How many members it has.
        snapshots: Name of the CronJob that takes snapshots; empty: there is none.
        changed: Called when the view has changed, other than in how full a disk is.
        page: Reads the page for Prometheus of the member with this address; "" if it does not answer.

    Attributes:
        view: What was seen last; None: nothing yet.
        snapshot_at: When the last snapshot succeeded, or, before the first one, when the CronJob was made. None: there
            is no CronJob, or it was not read.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        members: int,
        snapshots: str,
        changed: Callable[[], None],
        page: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._members = members
        self._snapshots = snapshots
        self._changed = changed
        self._page = page or _read_page
        self._used: dict[str, float] = {}
        self._used_at_s = float("-inf")
        self.view: EtcdView | None = None
        self.snapshot_at: datetime | None = None

    def view_for(self, endpoints: Iterable[str]) -> EtcdView | None:
        """The view, if these endpoints of a cluster are those of this etcd."""
        ours = f".{self._name}.{self._namespace}.svc"
        hosts = [endpoint.rpartition(":")[0] for endpoint in endpoints]
        return self.view if any(ours in f"{host}." for host in hosts) else None

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            try:
                await self.look(asyncio.get_running_loop().time())
            except KubeError as exc:
                _log.info("etcd_not_seen", error=str(exc))
                self._take(None)
            await asyncio.sleep(LOOK_S)

    async def look(self, now_s: float) -> None:
        """Look once.

        Raises:
            KubeError: The API does not answer.
        """
        names = [f"{self._name}-{number}" for number in range(self._members)]
        pods = dict(zip(names, await asyncio.gather(*(self._pod(name) for name in names)), strict=True))
        if now_s - self._used_at_s >= USE_S:
            self._used_at_s = now_s
            found = await asyncio.gather(*(self._use(pod) for pod in pods.values()))
            self._used = {name: used for name, used in zip(pods, found, strict=True) if used is not None}
            await self._look_at_snapshots()
        members = tuple(EtcdMember(name, _why_away(pod), self._used.get(name)) for name, pod in pods.items())
        self._take(EtcdView(members))

    def _take(self, view: EtcdView | None) -> None:
        before, self.view = self.view, view
        if _state(before) != _state(view):
            self._changed()

    async def _pod(self, name: str) -> Mapping[str, Any] | None:
        return await self._api.get(POD, self._namespace, name)

    async def _use(self, pod: Mapping[str, Any] | None) -> float | None:
        """The part of the quota that a member uses; None if it does not report."""
        ip = ((pod or {}).get("status") or {}).get("podIP")
        page = await self._page(ip) if ip else ""
        values = {name: _value(page, name) for name in (_USED, _QUOTA)}
        used, quota = values[_USED], values[_QUOTA]
        return used / quota if used is not None and quota else None

    async def _look_at_snapshots(self) -> None:
        if not self._snapshots:
            return
        found = await self._api.get(CRON_JOB, self._namespace, self._snapshots)
        if found is None:
            self.snapshot_at = None
            return
        said = (found.get("status") or {}).get("lastSuccessfulTime") or found["metadata"]["creationTimestamp"]
        self.snapshot_at = said if isinstance(said, datetime) else datetime.fromisoformat(str(said))


def _state(view: EtcdView | None) -> object:
    return view and tuple((member.name, member.why_away, member.is_filling) for member in view.members)


def _why_away(pod: Mapping[str, Any] | None) -> str:
    """Why a member does not serve; empty if it does."""
    if pod is None:
        return "has no pod"
    status = pod.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    if conditions.get("Ready", {}).get("status") == "True" and not pod["metadata"].get("deletionTimestamp"):
        return ""
    if conditions.get("PodScheduled", {}).get("status") == "False":
        return f"has no node: {conditions['PodScheduled'].get('message', '')}"[:200]
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state, last = each.get("state") or {}, (each.get("lastState") or {}).get("terminated") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or last
        if waiting.get("reason") not in (None, "PodInitializing"):
            told = str((ended or {}).get("message") or waiting.get("message") or "").strip()
            return f"{each['name']} waits ({waiting['reason']}): {told}"[-300:].rstrip(": ")
    return "is not ready"


def _value(page: str, name: str) -> float | None:
    """The sample of a metric without labels."""
    at = page.find(f"\n{name} ")
    if at < 0:
        return None
    try:
        return float(page[at + len(name) + 2 :].split("\n", 1)[0])
    except ValueError:
        return None


async def _read_page(ip: str) -> str:
    host = f"[{ip}]" if ":" in ip else ip
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S)) as session,
            session.get(f"http://{host}:{METRICS_PORT}/metrics") as response,
        ):
            body = bytearray()
            async for piece in response.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > PAGE_BYTES_MAX:
                    return ""
            return f"\n{body.decode(errors='replace')}" if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError):
        return ""
