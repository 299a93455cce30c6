"""The typed models of what users and the operator write into Kubernetes. The CRDs are made from them alone.

base            what all kinds share: metadata, conditions, conversion between manifests and models
cluster         BrokerCluster
group           BrokerGroup
broker          Broker
topic           Topic
consumer_group  ConsumerGroup
crd             the definitions, made from these models

fields          types of fields that several kinds use
values          texts with a unit: quantities and durations
rules           what the API server checks beyond types
settings        broker settings that users may write
columns         what `kubectl get` shows
errors          errors of an object that the operator read
"""

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
