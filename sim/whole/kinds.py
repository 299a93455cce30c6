"""Complete brokers, as the three kinds of clusters that a world may have."""

from __future__ import annotations

from ..faults import draw_for_brokers
from ..scene import ClusterKind
from .cluster import WholeCluster
from .disks import AdapterDisks
from .injector import BrokerGroupsInjector, DisksInjector, RuntimeInjector

BROKERS = ClusterKind(draw_for_brokers, WholeCluster, RuntimeInjector)
"""Complete brokers."""

DISKS = ClusterKind(draw_for_brokers, lambda setting: WholeCluster(setting, AdapterDisks), DisksInjector)
"""Complete brokers whose disks the real storage adapter writes."""

GROUPS = ClusterKind(draw_for_brokers, lambda setting: WholeCluster(setting, has_operator=True), BrokerGroupsInjector)
"""Complete brokers with an operator."""
