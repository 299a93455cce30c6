"""Faults: when they strike, which broker they hit, and how they heal.

Each module has the faults of one kind, as methods `inject_<kind>`; `Injector` has them all, and draws the plan.
"""

from .injector import Injector, NoSuchFaultError
from .links import CONTROL_LANE, DATA_LANE

__all__ = ["CONTROL_LANE", "DATA_LANE", "Injector", "NoSuchFaultError"]
