"""Puts all builders for one cluster into one object, from which plans get children."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..spec.broker import Broker, BrokerSpec
from ..spec.cluster import BrokerCluster
from .children import broker, broker_group, service_account
from .config import config_map, placement_hash, template_hash
from .names import Manifest, broker_name
from .pod import pod
from .policies import disruption_budget, network_policy
from .services import brokers_service, client_service, external_service
from .volume_claim import volume_claim


@dataclass(frozen=True)
class ClusterChildren:
    """Makes the children of one cluster.

    Methods that need the broker settings raise SettingsError if `spec.settings` cannot be given to a broker.

    Attributes:
        cluster: The cluster that the children belong to.
        default_image: The brokers' image if the cluster names none.
        operator_namespace: The namespace of the operator, which may connect to the brokers.
        external_addresses: By name of a broker, the address at which clients outside reach it, as far as it is known.
    """

    cluster: BrokerCluster
    default_image: str
    operator_namespace: str
    external_addresses: Mapping[str, str] = field(default_factory=dict)

    def shared(self) -> list[Manifest]:
        """The children that the cluster has once, except settings and Secrets."""
        made = [
            service_account(self.cluster),
            brokers_service(self.cluster),
            client_service(self.cluster),
        ]
        if self.cluster.spec.network_policy.enabled:
            made.append(network_policy(self.cluster, self.operator_namespace))
        return made

    def config(self) -> Manifest:
        """The ConfigMap with the brokers' settings file."""
        return config_map(self.cluster)

    def group(self, group: str) -> Manifest:
        """A BrokerGroup object, without the fields that users may write."""
        return broker_group(self.cluster, group)

    def broker(self, group: str, slot: int, uid: str, replaces: str | None) -> Manifest:
        """A Broker object."""
        spec = BrokerSpec(cluster=self.cluster.name, group=group, slot=slot, uid=uid, replaces=replaces)
        return broker(self.cluster, spec)

    def claim(self, broker: Broker) -> Manifest:
        """The volume claim of a broker."""
        return volume_claim(self.cluster, broker.spec)

    @property
    def image(self) -> str:
        """The image that all brokers should have."""
        return self.cluster.spec.image or self.default_image

    def pod(self, broker: Broker, former_image: str = "") -> Manifest:
        """The pod of a broker, with another image than the cluster's if one is given.

        Annotations have the hashes of its template and of its placement.
        """
        name = broker_name(broker.spec.group, broker.spec.slot)
        address = self.external_addresses.get(name, "")
        return pod(self.cluster, broker.spec, self.default_image, address, former_image)

    def external_service(self, broker: str = "") -> Manifest:
        """The Service of a broker for clients outside; without a broker, the one to which they connect first."""
        return external_service(self.cluster, broker)

    def budget(self, group: str, disruptions_max: int) -> Manifest:
        """The disruption budget of a broker group; `disruptions_max` is 0 or 1."""
        return disruption_budget(self.cluster, group, disruptions_max)

    def placement_hash(self) -> str:
        """The placement hash that new pods get."""
        return placement_hash(self.cluster)

    def template_hash(self) -> str:
        """The template hash that all pods should have."""
        return template_hash(self.cluster, self.default_image)
