"""Bare cores, as a kind of cluster that a world may have."""

from __future__ import annotations

from ..faults import draw
from ..scene import ClusterKind
from .cluster import CoreCluster
from .injector import CoreInjector

CORES = ClusterKind(lambda rng, profile, _batch_count, more: draw(rng, profile, more), CoreCluster, CoreInjector)
"""Bare cores."""
