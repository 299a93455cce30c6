"""The parts of one world, which clusters and faults reach, and what a world requires of a cluster.

Faults strike all that there is, and processes of brokers meet clients, other programs and the judge. All others get
only the parts that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from .basics.interfaces import Broker, Cluster
from .basics.setting import Setting
from .condition.copies import Copies
from .condition.draining import Draining
from .condition.health import Health
from .faults import Options
from .judge import Judge
from .people.operations import People
from .people.parked_keys import KeyPeople
from .programs.clients import Clients
from .programs.dead_letters import Forwards
from .programs.delayed import Delayed
from .programs.population import Population
from .publishing.environment import Publishing


@dataclass(frozen=True, slots=True)
class Scene:
    """The parts of one world. Each is there before the run begins."""

    setting: Setting
    cluster: Cluster
    judge: Judge
    clients: Clients
    population: Population
    people: People
    key_people: Sequence[KeyPeople]
    publishing: Publishing
    forwards: Forwards
    delayed: Delayed
    copies: Copies
    health: Health
    draining: Draining


class SimulatedCluster(Cluster, Protocol):
    """A cluster that is put into a world, in three steps: it is made, connected, and then enters the scene."""

    def connect(self, judge: Judge) -> None:
        """Make the network and the coordinator; the world has a judge now."""

    def enter(self, scene: Scene) -> None:
        """All parts are there."""


class Faults(Protocol):
    """The faults of one run."""

    def plan(self) -> None:
        """Schedule them."""

    def heal(self) -> None:
        """Undo all of them."""

    def restart_hung(self, broker: Broker) -> None:
        """A supervisor ends a process whose disk hangs."""


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """One of the clusters that may be simulated.

    Attributes:
        draw: Draws what may go wrong, from the chance of the run, a profile (or ""), a number of batches (0: drawn),
            and the chance by which a world gets something more than an ordinary one.
        make: Makes the cluster.
        injector: Makes the faults that such a cluster can meet; the numbers are of those that do not strike.
    """

    draw: Callable[[Random, str, int, Random], Options]
    make: Callable[[Setting], SimulatedCluster]
    injector: Callable[[Scene, frozenset[int]], Faults]
