"""The cuts between brokers, by direction. They are counted, because several faults may cut the same direction."""

from __future__ import annotations


class Paths:
    """The cuts between named brokers."""

    def __init__(self) -> None:
        self._cuts: dict[tuple[str, str], int] = {}

    def cut(self, source: str, target: str) -> None:
        """Let nothing from `source` arrive at `target` until `heal`."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        """Undo one `cut`. If it was the last one of this direction, messages that were held arrive now."""
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
        """Whether the direction from `source` to `target` is cut now."""
        return (source, target) in self._cuts

    def opened(self, source: str, target: str) -> None:
        """Called when a direction is open again. A subclass delivers what waited for it."""
