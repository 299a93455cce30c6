"""What may go wrong in a run, drawn from the seed: which kinds of fault there are, how many, and how slow things are.

kinds         names of all kinds of fault
options       the mix of one run, as a record of numbers
profiles      all mixes by their names, and the draw of one for a seed

ordinary      processes that end, disks and links that fail
chains        long chains, switches, gaps, moved segments
crossings     several features at once
dead_letters  messages that go to a dead-letter topic
delayed       due times and cancellations
disks         failing, hung, full, damaged, older and copied disks
keyed         consumer groups in which order is by key
links         links, clocks, certificates, the coordinator
producers     weak ack levels, impatience, silence, publications
retention     topics and consumer groups that are made again, moved, or emptied
servers       which member may deliver, and what a new server knows
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
