"""Names that a plan gives: of disks that were not there before."""

from __future__ import annotations

import base64
import hashlib

from ..spec.broker import UID_LENGTH


def uid_of(cluster_uid: str, group: str, slot: int, generation: int) -> str:
    """The short name of the nth disk in a slot.

    It is derived, not drawn: an operator that died right after it wrote the object, or a second one, comes to the same
    name, and a write sent twice makes one object.
    """
    text = f"{cluster_uid}/{group}/{slot}/{generation}".encode()
    return base64.b32encode(hashlib.sha256(text).digest()).decode().lower()[:UID_LENGTH]
