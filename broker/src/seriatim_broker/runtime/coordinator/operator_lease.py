"""Operators: if two operators act at once, only the one with the newer Lease changes anything.

An operator names the epoch of its Lease with each call. The coordinator has the highest epoch that was seen. A call
with a lower one is refused. A higher one is written there before anything else. Each transaction of the call compares
that record. So a call that was overtaken on its way changes nothing either (rules `older-operator` and
`operator-compare`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from seriatim_api.errors import StaleOperatorError
from seriatim_api.v1 import records_pb2

from ...interfaces.coordinator import Compare, Coordinator, Put, mod_revision_is
from .keys import Keys

Guard = Callable[[], Awaitable[Sequence[Compare]]]
"""What a transaction must compare so that an older operator changes nothing. It is asked again for each try.

Raises `StaleOperatorError` if a newer operator was seen.
"""


async def unguarded() -> Sequence[Compare]:
    """The guard of calls that no operator makes: it compares nothing."""
    return ()


def guard_of(coordinator: Coordinator, keys: Keys, epoch: int) -> Guard:
    """The guard of a call that names this epoch. The rule that it keeps is `older-operator` (OPERATOR)."""

    async def compares() -> Sequence[Compare]:
        while True:
            item = await coordinator.get(keys.operator)
            record = records_pb2.OperatorRecord.FromString(item.value) if item is not None else None
            if item is not None and record is not None and record.epoch == epoch:
                return (mod_revision_is(keys.operator, item.mod_revision),)
            if record is not None and record.epoch > epoch:
                raise StaleOperatorError(
                    f"an operator with epoch {record.epoch} was here; this one, with {epoch}, changes nothing any more",
                    epoch=epoch,
                    newest=record.epoch,
                )
            raised = records_pb2.OperatorRecord()
            if record is not None:
                raised.CopyFrom(record)
            raised.epoch = epoch
            known = item.mod_revision if item is not None else 0
            await coordinator.txn(
                [mod_revision_is(keys.operator, known)], [Put(keys.operator, raised.SerializeToString())]
            )

    return compares
