"""Which way between two brokers is open: cuts, both ways or one way, counted, since several faults may cut the same."""

from __future__ import annotations


class Paths:
    """The cuts between named brokers."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[str, str], int] = {}

    def cut(self, source: str, target: str) -> None:
        """Nothing more arrives at `target` from `source` until `heal`."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        """Undo one `cut`; what was held arrives now."""
        count = self._cuts.get((source, target), 0)
        if count > 1:
            self._cuts[source, target] = count - 1
            return
        self._cuts.pop((source, target), None)
        self.opened(source, target)

    def heal_all(self) -> None:
        """Undo all cuts."""
        for source, target in sorted(self._cuts):
            self._cuts[source, target] = 1
            self.heal(source, target)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from `source` to `target` now."""
        return (source, target) in self._cuts

    def opened(self, source: str, target: str) -> None:
        """The way is open again: what waited for it may go on."""
