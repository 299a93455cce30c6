"""What a broker knows of the coordinator: whether it takes writes, and whether it has lost decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import PartitionId

from ..values.chain import Chain
from ..values.states import State


@dataclass(slots=True, eq=False)
class CoordinatorState(State):
    """Refused writes and lost decisions, as far as this broker has seen them."""

    # partition -> why its record shows that the coordinator lost decisions, and the number of the segment that must
    # be there again; partition 0 stands for this broker's own member record
    behind: dict[PartitionId, tuple[str, int]] = field(default_factory=dict)
    refuses: bool = False  # the coordinator refuses every write
    # -> (last pause after a refused write, until when)
    refused: dict[PartitionId, tuple[int, int]] = field(default_factory=dict)
    # -> before this time no read of the record begins only because of a refusal
    checked: dict[PartitionId, int] = field(default_factory=dict)
    # -> the record of the last write that ended without success: it may be carried out all the same
    unanswered: dict[PartitionId, Chain] = field(default_factory=dict)
