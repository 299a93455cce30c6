"""What may go wrong in a run, drawn from the seed: which kinds of fault there are, how many, and how slow things are.

`kinds` names the faults, and `options` is the mix of one run. `ordinary` has the mixes of ordinary worlds; each other
module has the mixes of worlds that look for something rare. `profiles` names them all.
"""

from .kinds import DISK_KINDS, GROUP_KINDS, KINDS, MORE_KINDS, RUNTIME_KINDS, SERVING_KINDS
from .options import Options, draw_latency_us
from .profiles import PROFILES, NotSimulatedError, check_world, draw, draw_for_brokers

__all__ = [
    "DISK_KINDS",
    "GROUP_KINDS",
    "KINDS",
    "MORE_KINDS",
    "PROFILES",
    "RUNTIME_KINDS",
    "SERVING_KINDS",
    "NotSimulatedError",
    "Options",
    "check_world",
    "draw",
    "draw_for_brokers",
    "draw_latency_us",
]
