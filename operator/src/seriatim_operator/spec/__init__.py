"""The typed models of what users and the operator write into Kubernetes. The CRDs are made from them alone."""

from __future__ import annotations

from typing import Final

from .base import Resource
from .broker import Broker
from .cluster import BrokerCluster
from .consumer_group import ConsumerGroup
from .group import BrokerGroup
from .topic import Topic

KINDS: Final[tuple[type[Resource], ...]] = (BrokerCluster, BrokerGroup, Broker, Topic, ConsumerGroup)
"""All kinds, in the order in which the documentation lists them."""

__all__ = ["KINDS", "Broker", "BrokerCluster", "BrokerGroup", "ConsumerGroup", "Resource", "Topic"]
