"""All rules of the judge, each with the part of the run that it must know."""

from __future__ import annotations

from seriatim_broker.core.values.config import BrokerConfig

from .append_time import AppendTime
from .calm import Calm
from .copies import Copies
from .cursors import Cursors
from .dead_letters import DeadLetters
from .delayed import Delayed
from .deliveries import Deliveries
from .full_disks import FullDisks
from .gaps import Gaps
from .growth import Growth
from .ledgers import Ledgers
from .modes import Modes
from .one_log import OneLog
from .operations import Operations
from .order import Order
from .outcomes import Outcomes
from .producer_tables import ProducerTables
from .retention import Retention
from .sealed_lengths import SealedLengths
from .seen import Seen
from .servers import Servers
from .suspicions import Suspicions
from .told_once import ToldOnce
from .transitions import Transitions
from .two_copies import TwoCopies


class Rules:
    """One rule, or a small family of rules, for each attribute.

    Args:
        seen: The record of the run.
        limits: The limits at which brokers may forget producers.
        ahead_ms_max: How far append time may be ahead of the wall clock of the master that appends.
        may_miss: Whether a producer asks for a level without a promise, so that acknowledged batches may be gone.
    """

    def __init__(self, seen: Seen, limits: BrokerConfig, *, ahead_ms_max: int, may_miss: bool) -> None:
        self.seen = seen
        self.one_log = OneLog(seen)
        self.lengths = SealedLengths(seen)
        self.transitions = Transitions(seen)
        self.two_copies = TwoCopies(seen)
        self.copies = Copies(seen)
        self.servers = Servers(seen)
        self.append_time = AppendTime(seen, ahead_ms_max)
        self.tables = ProducerTables(seen, limits, may_miss=may_miss)
        self.outcomes = Outcomes(seen)
        self.order = Order(seen)
        self.delayed = Delayed(seen, self.two_copies)
        self.deliveries = Deliveries(seen, self.outcomes, self.delayed)
        self.operations = Operations(seen)
        self.keyed = Modes(seen)
        self.ledgers = Ledgers(seen, self.keyed)
        self.cursors = Cursors(seen, self.deliveries, self.operations, self.ledgers)
        self.gaps = Gaps(seen, self.keyed)
        self.retention = Retention(seen, self.gaps)
        self.told_once = ToldOnce(seen)
        self.full_disks = FullDisks(seen)
        self.dead_letters = DeadLetters(seen)
        self.suspicions = Suspicions(seen)
        self.calm = Calm(seen)
        self.growth = Growth(seen)
