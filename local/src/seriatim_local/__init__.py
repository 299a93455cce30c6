"""A cluster of real processes on one machine, which can be killed, frozen, cut off and healed.

The demo, the benchmark and the process tests use `LocalCluster`. `seriatim cluster` runs one in a process of its own,
the runner. The public names are imported only when code uses them, because the proxy's process is in this package and
needs no gRPC.

    commands            `seriatim cluster …` and `seriatim standalone`
    serving             the work of `seriatim coordinator` and `seriatim standalone`
    runner              the process that runs a cluster for `seriatim cluster up`
    control             the control of a running cluster, over its runner's socket
    cluster             `LocalCluster`: starts processes, hurts them, heals and ends them
    state               the state file, with which other commands find the cluster
    fault_records       faults with their times
    death_certificates  certificates of processes that the runner has reaped
    tls                 certificates for connections; each start makes a new CA
    json_lines          requests and answers as JSON lines on a stream

Rooms:

    links      what is between processes: the proxy, its cuts and delays
    brokers    what a cluster asks its brokers
    layout     which processes there are, their names, ports and programs
    processes  child processes of this machine
    embedded   the coordinator to use without etcd
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seriatim_local.cluster import BrokerStatus, ClusterStatus, LocalCluster
    from seriatim_local.fault_records import FaultKind, FaultRecord
    from seriatim_local.layout.plan import BrokerPlan, ClusterPlan
    from seriatim_local.layout.programs import Programs, SeriatimPrograms
    from seriatim_local.links.delays import LinkDelay

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
    "BrokerPlan": "layout.plan",
    "BrokerStatus": "cluster",
    "ClusterPlan": "layout.plan",
    "ClusterStatus": "cluster",
    "FaultKind": "fault_records",
    "FaultRecord": "fault_records",
    "Hosts": "layout.plan",
    "LinkDelay": "links.delays",
    "LocalCluster": "cluster",
    "Network": "links.network",
    "Programs": "layout.programs",
    "SeriatimPrograms": "layout.programs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
