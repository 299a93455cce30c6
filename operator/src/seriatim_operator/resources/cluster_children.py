"""All builders of one cluster behind one object: what a plan asks for children."""

from __future__ import annotations

from dataclasses import dataclass

from ..spec.broker import Broker, BrokerSpec
from ..spec.cluster import BrokerCluster
from .children import broker, broker_group, service_account
from .config import config_map, template_hash
from .names import Manifest
from .pod import pod
from .policies import disruption_budget, network_policy
from .services import brokers_service, client_service
from .volume_claim import volume_claim


@dataclass(frozen=True)
class ClusterChildren:
    """Makes the children of one cluster.

    Methods that need the broker settings raise SettingsError if `spec.settings` cannot be given to a broker.

    Attributes:
        cluster: Whose children.
        default_image: The brokers' image if the cluster names none.
        operator_namespace: Where the operator runs; it may reach the brokers.
    """

    cluster: BrokerCluster
    default_image: str
    operator_namespace: str

    def shared(self) -> list[Manifest]:
        """What the cluster has one of, but for its settings; Secrets are made elsewhere."""
        made = [
            service_account(self.cluster),
            brokers_service(self.cluster),
            client_service(self.cluster),
        ]
        if self.cluster.spec.network_policy.enabled:
            made.append(network_policy(self.cluster, self.operator_namespace))
        return made

    def config(self) -> Manifest:
        """The brokers' settings file."""
        return config_map(self.cluster)

    def group(self, group: str) -> Manifest:
        """A BrokerGroup object, without what users may say in it."""
        return broker_group(self.cluster, group)

    def broker(self, group: str, slot: int, uid: str, replaces: str | None) -> Manifest:
        """A Broker object."""
        spec = BrokerSpec(cluster=self.cluster.name, group=group, slot=slot, uid=uid, replaces=replaces)
        return broker(self.cluster, spec)

    def claim(self, broker: Broker) -> Manifest:
        """The volume claim of a broker."""
        return volume_claim(self.cluster, broker.spec)

    def pod(self, broker: Broker) -> Manifest:
        """The pod of a broker, with the hash of its template among the annotations."""
        return pod(self.cluster, broker.spec, self.default_image)

    def budget(self, group: str, disruptions_max: int) -> Manifest:
        """The disruption budget of a group."""
        return disruption_budget(self.cluster, group, disruptions_max)

    def template_hash(self) -> str:
        """What the hash of all pods should be."""
        return template_hash(self.cluster, self.default_image)
