"""A cluster of real processes on one machine: run, killed, frozen, cut off, healed.

`LocalCluster` is what the demo, the benchmark and the process tests use; `seriatim cluster` puts it behind a runner.
"""

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
    "LocalCluster",
    "Programs",
    "SeriatimPrograms",
]
