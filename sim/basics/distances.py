"""How far apart processes are: a latency for each link, drawn once for a world.

It is in addition to what each message takes by chance. All clients are at one place.
"""

from __future__ import annotations

import random

from ..faults import Options

CLIENTS = "clients"
"""The place of all clients."""

_NEAR_US = 100


class Distances:
    """Draws a latency from 0.1 ms up for each pair of places; as many are short as are long."""

    def __init__(self, seed: int, options: Options) -> None:
        self._seed = seed
        self._far_us_max = options.far_us_max

    def us(self, one: str, other: str) -> int:
        """How long anything takes at least from one to the other, and as long back."""
        if not self._far_us_max:
            return 0
        # A broker group must answer a switch within 250 ms, and a member a heartbeat within 300 ms. So brokers that are
        # 125 ms apart can prepare nothing, and those that are 150 ms apart cannot serve.
        far_us = self._far_us_max if CLIENTS in (one, other) else self._far_us_max // 2
        drawn = random.Random(f"distance {self._seed} {min(one, other)} {max(one, other)}").random()
        return int(_NEAR_US * (far_us / _NEAR_US) ** drawn)
