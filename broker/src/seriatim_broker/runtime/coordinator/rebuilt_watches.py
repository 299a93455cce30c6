"""A coordinator whose watches end when it was rebuilt, so that copies are listed again.

After a restore from an older copy, or after its data was lost, the coordinator counts revisions from a lower one. A
watch that began before is silent until the revision at which it stands comes again. So a copy that rests on a watch
does not get what is written until then. To list again as soon as the revision falls would be worse: until the rebuild
has written the lost records, a broker would take members and topics from its copies that are there.

The rebuild writes its time last (`ClusterRecord.rebuilt_at_ms`). `LostRecords` reads it every 2 s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from seriatim_api.errors import CompactedError

from ...interfaces.coordinator import Coordinator, Listing, WatchBatch


class RebuiltWatches:
    """Passes all calls on to a coordinator, and ends its watches when `end_watches` is called.

    Rule `rebuilt-is-listed` (I13): copies are listed again after a rebuild. Without it:
      1. A broker's copy of the members is of revision 900. The coordinator loses its data, and is rebuilt.
      2. Another broker starts again. Its new run and address are written at revision 60.
      3. The first broker learns neither before revision 900 comes again. Until then it sends clients the old address.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._rebuild_count = 0
        self._waiting: dict[asyncio.Timeout, None] = {}  # of the watches that wait for a change, as they began to
        self.get = coordinator.get
        self.txn = coordinator.txn
        self.grant = coordinator.grant
        self.keep_alive = coordinator.keep_alive
        self.revoke = coordinator.revoke
        self.close = coordinator.close

    def end_watches(self) -> None:
        """The coordinator was rebuilt: all watches raise `CompactedError`, and their callers list again."""
        self._rebuild_count += 1
        for limit in self._waiting:
            limit.reschedule(asyncio.get_running_loop().time())

    async def list(self, prefix: str, **options: Any) -> Listing:
        """Read all keys that begin with `prefix`, as `Coordinator.list` does: again if a rebuild is noticed meanwhile.

        The answer may be older than the restore, and a watch from its revision on would be silent.
        """
        while True:
            count = self._rebuild_count
            listing = await self._coordinator.list(prefix, **options)
            if count == self._rebuild_count:
                return listing

    def watch(self, key: str, *, start_revision: int, prefix: bool = False) -> AsyncGenerator[WatchBatch, None]:
        """Follow a key, or all keys under a prefix, as `Coordinator.watch` does.

        Raises:
            CompactedError: As there; or the coordinator was rebuilt since this call, which the caller makes as soon as
                it has the list. It need not begin to read the watch then.
            PreconditionError: As there.
        """
        return self._watch(self._rebuild_count, key, start_revision, prefix)

    async def _watch(self, count: int, key: str, start_revision: int, prefix: bool) -> AsyncGenerator[WatchBatch, None]:
        watch = self._coordinator.watch(key, start_revision=start_revision, prefix=prefix)
        async with contextlib.aclosing(watch) as batches:
            while count == self._rebuild_count:
                try:
                    async with asyncio.timeout(None) as limit:
                        self._waiting[limit] = None
                        try:
                            batch = await anext(batches, None)
                        finally:
                            del self._waiting[limit]
                except TimeoutError:
                    if not limit.expired():
                        raise
                    break
                if batch is None:
                    return
                yield batch
        raise CompactedError(f"the coordinator was rebuilt, so the watch of {key!r} ends")
