"""What a broker knows of the coordinator: whether it takes writes, and whether it has lost decisions."""

from __future__ import annotations

from seriatim_api.ids import PartitionId

from ..values.states import State


class CoordinatorState(State):
    """Refused writes and lost decisions, as far as this broker has seen them."""

    __slots__ = ("behind", "refused", "refuses")

    def __init__(self) -> None:
        # partition -> why its record shows that the coordinator lost decisions, and the number of the segment that must
        # be there again; partition 0 stands for this broker's own member record
        self.behind: dict[PartitionId, tuple[str, int]] = {}
        self.refuses = False  # the coordinator refuses every write
        self.refused: dict[PartitionId, tuple[int, int]] = {}  # -> (last pause after a refused write, until when)
