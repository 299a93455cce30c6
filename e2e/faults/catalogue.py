"""All faults, in the order in which they are documented, and the fixed choice for a quick run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from e2e.faults.kinds.balance import UnevenOpenSegments
from e2e.faults.kinds.broker_groups import DrainedBrokerGroup, ReplacedDisk
from e2e.faults.kinds.clocks import ClockJump
from e2e.faults.kinds.coordinator import CompactedWatch, OneOfThree, RebuiltCoordinator
from e2e.faults.kinds.damage import BitFlip
from e2e.faults.kinds.death_certificates import FalseCertificate
from e2e.faults.kinds.delayed import ClockOfWaiting, WaitingSegmentAway
from e2e.faults.kinds.disks import FailingDisk, FullDisk, HungDisk, OldCopy, PowerCut, SlowDisk, WipedDisk
from e2e.faults.kinds.fault import Fault
from e2e.faults.kinds.loss import BothDisksLost
from e2e.faults.kinds.network import all_cuts
from e2e.faults.kinds.processes import (
    FreezeBrokers,
    FreezeClient,
    FreezeCoordinator,
    KillBrokers,
    KillClient,
    KillCoordinator,
    KillInTakeOver,
)
from e2e.faults.kinds.switches import ManySwitches, RollingRestart, SwitchDuringSwitch
from e2e.faults.systems import clusters, shims

HOUR_S: Final = 3600.0
STALL_S: Final = 10.0

QUICK: Final = (
    "kill master",
    "kill both",
    "freeze slave",
    "cut master-slave",
    "cut slave>master",
    "kill coordinator",
    "kill producer",
    "fsync error of master",
    "power cut of both",
    "clock of all jumps ahead",
    "200 switches in a row",
    "bit flip in a table",
    "wiped disk of slave",
    "drained group",
    "unread false certificate of master",
    "kill master in a take-over",
    "segment with delayed messages away",
    "clock of server behind while messages wait",
)
"""At least one fault of each kind. Faults that have found an error come first."""


def all_faults() -> list[Fault]:
    """Make a new object of each fault."""
    return [
        KillBrokers("master"),
        KillBrokers("slave"),
        KillBrokers("both"),
        KillInTakeOver(),
        FreezeBrokers("master"),
        FreezeBrokers("slave"),
        FreezeBrokers("both"),
        KillCoordinator(),
        FreezeCoordinator(),
        FreezeCoordinator(STALL_S),
        KillClient("producer"),
        KillClient("reader"),
        FreezeClient("producer"),
        FreezeClient("reader"),
        *all_cuts(),
        SlowDisk("master"),
        SlowDisk("slave"),
        SlowDisk("both"),
        HungDisk("master"),
        HungDisk("slave"),
        FailingDisk("master", "full"),
        FailingDisk("slave", "full"),
        FullDisk("master"),
        FullDisk("slave"),
        FailingDisk("master", "fail_sync"),
        FailingDisk("slave", "fail_sync"),
        PowerCut("both"),
        PowerCut("master"),
        BitFlip("log"),
        BitFlip("table"),
        BitFlip("table", by="scrub"),
        WipedDisk("master"),
        WipedDisk("slave"),
        ReplacedDisk("master"),
        ReplacedDisk("slave"),
        BothDisksLost(),
        OldCopy("master"),
        OldCopy("slave"),
        FalseCertificate("master"),
        FalseCertificate("slave"),
        FalseCertificate("master", unread=True),
        FalseCertificate("slave", unread=True),
        ClockJump(HOUR_S, "master"),
        ClockJump(-HOUR_S, "master"),
        ClockJump(HOUR_S, "all"),
        ClockJump(-HOUR_S, "all"),
        WaitingSegmentAway(),
        ClockOfWaiting(HOUR_S, "server"),
        ClockOfWaiting(-HOUR_S, "server"),
        ClockOfWaiting(HOUR_S, "next master"),
        ClockOfWaiting(-HOUR_S, "next master"),
        SwitchDuringSwitch(),
        RollingRestart(),
        ManySwitches(),
        DrainedBrokerGroup(),
        UnevenOpenSegments(),
        CompactedWatch(),
        RebuiltCoordinator(),
        KillCoordinator("etcd"),
        FreezeCoordinator(kind="etcd"),
        FreezeCoordinator(STALL_S, kind="etcd"),
        CompactedWatch("etcd"),
        OneOfThree("kill"),
        OneOfThree("freeze"),
    ]


def by_name() -> dict[str, Callable[[], Fault]]:
    """Return a function for each name that makes the fault. (An object serves one case at a time.)"""

    def maker(name: str) -> Callable[[], Fault]:
        return lambda: next(fault for fault in all_faults() if fault.name == name)

    return {fault.name: maker(fault.name) for fault in all_faults()}


def missing(fault: Fault) -> str:
    """Say what this machine lacks for a fault; empty if nothing."""
    if fault.needs_shims and shims.find_compiler() is None:
        return "no C compiler"
    if fault.needs_root and os.geteuid() != 0:
        return "not root"
    if fault.kind != "embedded" and not clusters.has_etcd():
        return "no etcd (make tools)"
    return ""
