"""A cluster of real processes on one machine: run, killed, frozen, cut off, healed.

`LocalCluster` is what the demo, the benchmark and the process tests use; `seriatim cluster` puts it behind a runner.
The public names are loaded when they are asked for: the proxy's process lives in this package and needs no gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seriatim_broker.local.cluster import BrokerStatus, ClusterStatus, LocalCluster
    from seriatim_broker.local.faults import FaultKind, FaultRecord
    from seriatim_broker.local.plan import BrokerPlan, ClusterPlan
    from seriatim_broker.local.programs import Programs, SeriatimPrograms

__all__ = [
    "BrokerPlan",
    "BrokerStatus",
    "ClusterPlan",
    "ClusterStatus",
    "FaultKind",
    "FaultRecord",
    "Hosts",
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
    "LocalCluster": "cluster",
    "Network": "network",
    "Programs": "programs",
    "SeriatimPrograms": "programs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
