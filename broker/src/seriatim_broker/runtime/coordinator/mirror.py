"""A copy in memory of all keys under a prefix of the coordinator, kept current by a watch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

import structlog
from seriatim_api.errors import CompactedError, SeriatimError

from ...interfaces.coordinator import Coordinator, EventKind

RETRY_S = 0.2
"""Pause after a listing that failed. The coordinator is away, and no request waits for this."""

_log = structlog.get_logger(__name__)

Changed = Callable[[Mapping[str, bytes], Sequence[str]], None]
"""Called with the complete copy and the keys that changed (made, written or deleted) since the last call."""


async def mirror(coordinator: Coordinator, prefix: str, changed: Changed, keys_per_call_max: int | None = None) -> None:
    """Keep a copy until cancelled, also over outages of the coordinator and compactions of its history.

    Args:
        coordinator: It has the keys.
        prefix: Of the keys.
        changed: Called with the copy and the keys that changed. The first call names all keys. It is made even if there
            are none.
        keys_per_call_max: Maximum number of keys that are named in one call; everything else has its turn between
            calls. None: no limit.
    """
    values: dict[str, bytes] = {}
    first = True
    while True:
        try:
            listing = await coordinator.list(prefix)
            watch = coordinator.watch(prefix, start_revision=listing.revision + 1, prefix=True)
            found = {item.key: item.value for item in listing.items}
            keys = [key for key in {**values, **found} if values.get(key) != found.get(key)]
            values = found
            if keys or first:
                per_call = max(len(keys), 1) if keys_per_call_max is None else keys_per_call_max
                for begin in range(0, max(len(keys), 1), per_call):
                    changed(values, keys[begin : begin + per_call])
                    await asyncio.sleep(0)
            first = False
            async with contextlib.aclosing(watch) as batches:
                async for batch in batches:
                    for event in batch.events:
                        if event.kind is EventKind.PUT:
                            values[event.item.key] = event.item.value
                        else:
                            values.pop(event.item.key, None)
                    changed(values, [event.item.key for event in batch.events])
        except CompactedError:  # or the coordinator was rebuilt
            continue
        except SeriatimError as exc:
            _log.warning("mirror_interrupted", prefix=prefix, error=str(exc))
        await asyncio.sleep(RETRY_S)
