"""Whether all registered brokers read a form of records. In a rolling upgrade some are of the version before."""

from __future__ import annotations

from seriatim_api.v1 import records_pb2

from ...interfaces.coordinator import Compare, Coordinator, unchanged_under
from .keys import Keys


async def all_read(coordinator: Coordinator, keys: Keys, form: int) -> Compare | None:
    """What a transaction compares so that every registered broker reads that form, or all of them; None: not all do."""
    listing = await coordinator.list(keys.members)
    for item in listing.items:
        record = records_pb2.MemberRecord.FromString(item.value)
        # A run that did not say what it reads leaves the fields of an earlier run. Then they do not count.
        if record.forms_run != record.run or record.forms & form != form:
            return None
    return unchanged_under(keys.members, listing.revision) if listing.items else None
