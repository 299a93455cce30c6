"""Records of a cluster's faults, with their times. Histories, reports and pictures are made from them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

FaultKind = Literal["kill", "stop", "freeze", "cut", "lag", "end"]
"""`end`: a process ended that no command had asked to end. A kill, a stop and an end are healed by a new start."""

FaultPhase = Literal["inject", "heal"]


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """The beginning or the end of one fault.

    Attributes:
        kind: The kind of fault.
        victim: A process; for a cut or a lag the two ends as they were named, `a>b` for one way and `a-b` for both.
        phase: `inject` or `heal`, as in histories.
        at: Seconds of the machine's monotonic clock, which all processes share, read just before the fault.
        details: More, in words for humans.
    """

    kind: FaultKind
    victim: str
    phase: FaultPhase
    at: float = field(default_factory=time.monotonic)
    details: str = ""


FaultListener = Callable[[FaultRecord], None]
"""Called in the event loop for each record, while the fault is carried out. It must be quick."""
