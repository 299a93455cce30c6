"""What was done to a cluster, and when: the record that histories, reports and pictures are made from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

FaultKind = Literal["kill", "stop", "freeze", "cut", "end"]
"""`end` is a process that ended without having been asked to; healing a kill, a stop or an end is a new start."""

FaultPhase = Literal["inject", "heal"]


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """One fault, or the end of one.

    Attributes:
        victim: A process, or for a cut the two ends as they were named, `a>b` one way and `a-b` both ways.
        phase: `inject` or `heal`, as histories have it.
        at: When, in seconds of the machine's monotonic clock, which all processes share; read just before the deed.
        details: More, for people.
    """

    kind: FaultKind
    victim: str
    phase: FaultPhase
    at: float = field(default_factory=time.monotonic)
    details: str = ""


FaultListener = Callable[[FaultRecord], None]
"""Called in the event loop, as part of the deed: it must be quick."""
