"""How many messages a consumer asks each partition for, when a program asks for some. Pure.

What is asked for and not wanted any more goes back to the brokers. So a program that asks for one message of eight
partitions should not ask for eight. But the partition that is asked may have no message while others have.
"""

from __future__ import annotations

from collections.abc import Sequence

from .state import State


class Demand(State):
    """Which partitions are asked, and for how much.

    A partition that was asked and gave nothing is *dry*, until it gives something. Dry partitions are asked beside the
    others: most of them have nothing, so nothing comes for which no program asked.
    """

    __slots__ = ("_asked", "_dry", "_is_late", "_turn")

    def __init__(self) -> None:
        self._dry: set[int] = set()
        self._asked: set[int] = set()  # partitions that were asked, and gave nothing yet
        self._turn = 0
        self._is_late = False

    def shares(self, wanted: int, partitions: Sequence[int]) -> dict[int, int]:
        """How many messages to ask each partition for. Those that are not dry share what is wanted, and take turns."""
        if wanted <= 0:
            self._asked.clear()
            self._is_late = False
            return dict.fromkeys(partitions, 0)
        wet = [number for number in partitions if number not in self._dry]
        shares = dict.fromkeys(partitions, -(-wanted // len(partitions)))
        if wet and not self._is_late:
            each, more = divmod(wanted, len(wet))
            self._turn += 1
            for place, number in enumerate(wet):
                shares[number] = each + ((place - self._turn * more) % len(wet) < more)
        self._asked = {number for number, share in shares.items() if share}
        return shares

    def came(self, number: int) -> None:
        """A partition gave messages."""
        self._dry.discard(number)
        self._asked.discard(number)
        self._is_late = False

    def nothing_came(self) -> None:
        """No partition that was asked has given anything in `ASK_ALL_S`: they are dry, and all others are asked too."""
        self._dry |= self._asked
        self._is_late = True
