"""Faults: when they strike, which broker they hit, and how they heal.

Each module has the faults of one kind, as methods `inject_<kind>`; `Injector` has them all, and draws the plan.

    injector     all faults, and the draw of their plan
    strikes      what all faults need: a victim, and ways to strike it

    coordinator  away, refusing, or back in time
    disks        slow, hung, full, or an older copy
    links        between brokers, and between clients and brokers
    processes    ended, frozen, certified dead while they live
    servers      rare moments that decide which member may deliver
    switches     requests that cause switches, and faults in the middle of one
"""

from .injector import Injector, NoSuchFaultError
from .links import CONTROL_LANE, DATA_LANE

__all__ = ["CONTROL_LANE", "DATA_LANE", "Injector", "NoSuchFaultError"]
