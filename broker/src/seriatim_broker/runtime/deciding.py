"""What a write of a writer's record compares: it fails if what it was made from has changed since."""

from __future__ import annotations

from collections.abc import Sequence

from ..interfaces.coordinator import Compare, mod_revision_is, unchanged_under
from .keys import Keys


def of_record(keys: Keys, incarnation: str, writer: str, revision: int) -> Sequence[Compare]:
    """Rule `compares-record` (P2): the record is still the one of that revision; 0: there is still none.

    Without it: (1) two publishers read that nothing is decided; (2) one decides 7, and has it carried out; (3) the
    other one decides another 7 over it.
    """
    return [mod_revision_is(keys.writer(incarnation, writer), revision)]


def of_floors(keys: Keys, as_of: int) -> Sequence[Compare]:
    """Rule `compares-floors` (P6): what the manifest names was not let go since that revision, when it was looked at.

    Without it: (1) the publisher finds all that is staged above the floors, and is frozen; (2) retention raises a
    floor, finds no record that is DECIDED, and drops; (3) the publisher decides, and nobody has the rows.
    """
    return [unchanged_under(keys.stage_floors, as_of)]
