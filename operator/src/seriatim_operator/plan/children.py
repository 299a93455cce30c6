"""The builders of one cluster, as the plan calls them: pure, and every name decided in one place."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Protocol

from ..spec.broker import UID_LENGTH, Broker

Manifest = dict[str, Any]


class Children(Protocol):
    """Makes manifests; see `resources`."""

    def shared(self) -> list[Manifest]:
        """What the cluster has one of: Services, ConfigMap, ServiceAccount, NetworkPolicy."""

    def group(self, group: str) -> Manifest:
        """A BrokerGroup object, without what users may say in it."""

    def broker(self, group: str, slot: int, uid: str, replaces: str | None) -> Manifest:
        """A Broker object."""

    def claim(self, broker: Broker) -> Manifest:
        """The volume claim of a broker."""

    def pod(self, broker: Broker) -> Manifest:
        """The pod of a broker, with the hash of its template among the annotations."""

    def budget(self, group: str, disruptions_max: int) -> Manifest:
        """The disruption budget of a group."""


def uid_of(cluster_uid: str, group: str, slot: int, generation: int) -> str:
    """The short name of the nth disk in a slot.

    It is derived, not drawn: an operator that died right after it wrote the object, or a second one, comes to the same
    name, and a write sent twice makes one object.
    """
    text = f"{cluster_uid}/{group}/{slot}/{generation}".encode()
    return base64.b32encode(hashlib.sha256(text).digest()).decode().lower()[:UID_LENGTH]
