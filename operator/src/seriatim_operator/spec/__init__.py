"""What users and the operator write into Kubernetes: typed models, one source for the CRDs."""

from __future__ import annotations

from typing import Final

from .base import Resource
from .broker import Broker
from .cluster import BrokerCluster
from .consumer_group import ConsumerGroup
from .group import BrokerGroup
from .topic import Topic

KINDS: Final[tuple[type[Resource], ...]] = (BrokerCluster, BrokerGroup, Broker, Topic, ConsumerGroup)
"""All kinds, in the order in which the documentation tells them."""

__all__ = ["KINDS", "Broker", "BrokerCluster", "BrokerGroup", "ConsumerGroup", "Resource", "Topic"]
