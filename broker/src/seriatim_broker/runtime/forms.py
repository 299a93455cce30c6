"""Whether all registered brokers read a form of records. In a rolling upgrade some are of older versions."""

from __future__ import annotations

from seriatim_api.v1 import records_pb2

from ..interfaces.coordinator import Compare, Coordinator, unchanged_under
from .keys import Keys


async def all_read(coordinator: Coordinator, keys: Keys, form: int) -> Compare | None:
    """What a transaction compares so that every registered broker reads that form, or all of them; None: not all do."""
    listing = await coordinator.list(keys.members)
    for item in listing.items:
        record = records_pb2.MemberRecord.FromString(item.value)
        # A version without these fields keeps them from an earlier run, and raises `run`. Then they do not count.
        if record.forms_run != record.run or record.forms & form != form:
            return None
    return unchanged_under(keys.members, listing.revision) if listing.items else None
