"""Reads from a kubelet's Events why a pod cannot start with its volumes. No status of a pod says that."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Protocol

from .kinds import EVENT, Kind
from .kube import KubeError

Manifest = dict[str, Any]

REASONS: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
"""The reasons of Events about volumes that cannot be used (`pkg/kubelet/events` of Kubernetes)."""

TEXT_LENGTH_MAX: Final = 300


class Lister(Protocol):
    """The part of the API that is used."""

    async def list(self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Manifest]:
        """List objects of a kind that match the field selector."""


async def why_not_mounted(api: Lister, namespace: str, uid: str, since_s: float = 0.0) -> str:
    """The newest such Event about the pod with this UID, in its own words.

    Empty if there is none, or the Events cannot be read. An Event outlives its cause by an hour, so ask only about a
    pod whose container has not started, and name the time since which it waits (Unix time in seconds).
    """
    try:
        found = await api.list(EVENT, namespace, fields=f"involvedObject.uid={uid},type=Warning")
    except KubeError:
        return ""
    told = [event for event in found if event.get("reason") in REASONS and _at_s(event) >= since_s]
    newest = max(told, key=_at_s, default={})
    return str(newest.get("message") or "")[:TEXT_LENGTH_MAX]


def _at_s(event: Manifest) -> float:
    """When an Event was last reported, as Unix time in seconds; 0 if it does not say."""
    said = event.get("lastTimestamp") or event.get("eventTime")
    return datetime.fromisoformat(str(said)).timestamp() if said else 0.0
