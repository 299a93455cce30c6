"""What is drawn for a world before anything in it is made, and what draws more while it runs."""

from __future__ import annotations

import random
from collections.abc import Iterator

from seriatim_api.ids import PartitionId
from seriatim_broker.core.broker import BrokerCore
from seriatim_broker.core.values.messages import FORMS

from ..faults import Options
from .distances import Distances
from .interfaces import Broker
from .limits import draw_limits
from .schedule import Schedule


class Setting:
    """The time, the chance and the limits of one world.

    Args:
        seed: Decides everything that is drawn.
        schedule: The virtual time of this seed.
        options: What may go wrong.
        core_kind: The class of the brokers' cores.

    Attributes:
        updates: A chance of its own for what was added after seeds of other draws were known.
        forms: What all brokers say that they read.
        partitions: Those of the topic. A topic that is made again has others, and a topic that grows has more.
    """

    def __init__(
        self, seed: int, schedule: Schedule, options: Options, core_kind: type[BrokerCore] = BrokerCore
    ) -> None:
        self.seed = seed
        self.schedule = schedule
        self.options = options
        self.core_kind = core_kind
        self.updates = random.Random(f"updates {seed}")
        self.config = draw_limits(options, self.updates)
        self.partitions = [PartitionId(number + 1) for number in range(options.partition_count)]
        self.distances = Distances(seed, options)
        self.forms = FORMS
        clocks = random.Random(f"clock {seed}")
        self._wrong_clock = clocks.choice([name for name, _ in self.slots()]) if options.one_clock_wrong else ""

    def slots(self) -> Iterator[tuple[str, str]]:
        """The name and the broker group of each broker."""
        for group in range(self.options.group_count):
            for slot in range(self.options.member_count):
                yield f"g{group}-{slot}", f"g{group}"

    def clock_is_right(self, name: str) -> bool:
        """Whether the wall clock of the broker is that of the world."""
        return bool(self._wrong_clock) and name != self._wrong_clock

    def new_incarnation(self) -> str:
        """The incarnation of an empty disk."""
        return self.schedule.rng.randbytes(16).hex()

    def flush_us(self, broker: Broker) -> int:
        """How long the next flush takes."""
        rng = self.schedule.rng
        if broker.hung_until_us > self.schedule.now_us:
            return broker.hung_until_us - self.schedule.now_us
        if broker.slow_until_us > self.schedule.now_us:
            return rng.randint(20_000, 150_000)
        return rng.randint(self.options.flush_us_min, self.options.flush_us_max)
