"""Removes an etcd of the chart that has never had a volume, so that the upgrade can recreate it in another class.

Kubernetes lets no StatefulSet change the class of its volumes. If the first install named a class that gives no
volumes, an upgrade that names another one would be refused for ever. The chart runs this before such an upgrade.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Protocol

from ..cluster.kinds import CLAIM, STATEFUL_SET, Kind

GONE_S: Final = 90.0
LOOK_S: Final = 0.5


class HasVolumesError(Exception):
    """A member has a volume, so etcd may have data. Nothing was removed."""


class StillThereError(Exception):
    """A claim is still there after the deadline."""


class Api(Protocol):
    """The part of the API that is used."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        """Read one object; None if it does not exist."""

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str) -> bool:
        """Delete exactly the object with this UID; False if it was gone already."""


async def remove_stranded(
    api: Api, namespace: str, name: str, members: int, *, gone_s: float = GONE_S, look_s: float = LOOK_S
) -> None:
    """Delete the StatefulSet and the claims of its members, and wait until they are gone.

    Args:
        api: The Kubernetes API.
        namespace: The namespace of the release.
        name: The name of the StatefulSet.
        members: How many members it has.
        gone_s: The longest wait, in seconds.
        look_s: Seconds between two looks.

    Raises:
        HasVolumesError: A claim is bound.
        StillThereError: They are not gone in time.
        KubeError: The API refuses a call or does not answer.
    """
    names = [f"data-{name}-{number}" for number in range(members)]
    claims = [claim for claim in [await api.get(CLAIM, namespace, one) for one in names] if claim is not None]
    bound = [claim["metadata"]["name"] for claim in claims if claim.get("spec", {}).get("volumeName")]
    if bound:
        raise HasVolumesError(f"{', '.join(bound)} has a volume: etcd stays as it is")
    found = await api.get(STATEFUL_SET, namespace, name)
    if found is not None:
        await api.delete(STATEFUL_SET, namespace, name, uid=found["metadata"]["uid"])
    for claim in claims:
        await api.delete(CLAIM, namespace, claim["metadata"]["name"], uid=claim["metadata"]["uid"])
    deadline = time.monotonic() + gone_s
    for claim in claims:
        while await _is_there(api, namespace, claim):
            if time.monotonic() > deadline:
                raise StillThereError(f"claim {claim['metadata']['name']} is still there after {gone_s:g} s")
            await asyncio.sleep(look_s)


async def _is_there(api: Api, namespace: str, claim: dict[str, Any]) -> bool:
    found = await api.get(CLAIM, namespace, claim["metadata"]["name"])
    return found is not None and found["metadata"]["uid"] == claim["metadata"]["uid"]
