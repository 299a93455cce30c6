"""What a transaction that changes a writer's record compares. If it has changed since it was read, nothing is written.

Both rules are about publications (docs/internals/publications.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...interfaces.coordinator import Compare, mod_revision_is, unchanged_under
from .keys import Keys


def of_record(keys: Keys, incarnation: str, writer: str, revision: int) -> Sequence[Compare]:
    """The record is still the one of `revision`. 0: there is still no record."""
    # Rule `compares-record` (ONE, NEXT, FENCE). Without it:
    # 1. Two publishers read that nothing is decided.
    # 2. One of them decides publication 7, and has it carried out.
    # 3. The other one writes another publication 7 over it.
    return [mod_revision_is(keys.writer(incarnation, writer), revision)]


def of_floors(keys: Keys, as_of: int) -> Sequence[Compare]:
    """No floor of staged data was raised since revision `as_of`, at which the publisher looked at the floors."""
    # Rule `compares-floors` (KEPT-STAGE). Without it:
    # 1. The publisher finds that all staged data is above the floors, and is frozen.
    # 2. Retention raises a floor, finds no record that is DECIDED, and drops the staged data.
    # 3. The publisher decides, and no disk has the rows.
    return [unchanged_under(keys.stage_floors, as_of)]
