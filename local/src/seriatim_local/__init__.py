"""A cluster of real processes on one machine, which can be killed, frozen, cut off and healed.

The demo, the benchmark and the process tests use `LocalCluster`. `seriatim cluster` runs one in a process of its own,
the runner. The public names are imported only when code uses them, because the proxy's process is in this package and
needs no gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seriatim_local.cluster import BrokerStatus, ClusterStatus, LocalCluster
    from seriatim_local.delays import LinkDelay
    from seriatim_local.faults import FaultKind, FaultRecord
    from seriatim_local.plan import BrokerPlan, ClusterPlan
    from seriatim_local.programs import Programs, SeriatimPrograms

__all__ = [
    "BrokerPlan",
    "BrokerStatus",
    "ClusterPlan",
    "ClusterStatus",
    "FaultKind",
    "FaultRecord",
    "Hosts",
    "LinkDelay",
    "LocalCluster",
    "Network",
    "Programs",
    "SeriatimPrograms",
]

_HOMES = {
    "BrokerPlan": "plan",
    "BrokerStatus": "cluster",
    "ClusterPlan": "plan",
    "ClusterStatus": "cluster",
    "FaultKind": "faults",
    "FaultRecord": "faults",
    "Hosts": "plan",
    "LinkDelay": "delays",
    "LocalCluster": "cluster",
    "Network": "network",
    "Programs": "programs",
    "SeriatimPrograms": "programs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
