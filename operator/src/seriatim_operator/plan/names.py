"""Names of new disks."""

from __future__ import annotations

import base64
import hashlib

from ..spec.broker import UID_LENGTH


def uid_of(cluster_uid: str, group: str, slot: int, generation: int) -> str:
    """The short name of a disk in a slot; `generation` is the number of disks that the slot had before.

    The name is derived and not random. So an operator that restarts right after a write gets the same name, a second
    operator gets it too, and a write that is sent twice makes one object.
    """
    text = f"{cluster_uid}/{group}/{slot}/{generation}".encode()
    return base64.b32encode(hashlib.sha256(text).digest()).decode().lower()[:UID_LENGTH]
