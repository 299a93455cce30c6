"""The kinds of objects that the operator reads or writes, with their paths in the Kubernetes API."""

from __future__ import annotations

from dataclasses import dataclass

API_VERSION = "seriatim.dev/v1alpha1"
"""The API version of our own kinds."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object: its API version, its name in paths, and whether its objects are in a namespace."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of all objects of the kind, of one object, or of a subresource of one object."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)


BROKER_CLUSTER = Kind(API_VERSION, "BrokerCluster", "brokerclusters")
BROKER_GROUP = Kind(API_VERSION, "BrokerGroup", "brokergroups")
BROKER = Kind(API_VERSION, "Broker", "brokers")
TOPIC = Kind(API_VERSION, "Topic", "topics")
CONSUMER_GROUP = Kind(API_VERSION, "ConsumerGroup", "consumergroups")
POD = Kind("v1", "Pod", "pods")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
VOLUME = Kind("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
NODE = Kind("v1", "Node", "nodes", namespaced=False)
SERVICE = Kind("v1", "Service", "services")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SECRET = Kind("v1", "Secret", "secrets")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
EVENT = Kind("v1", "Event", "events")
STORAGE_CLASS = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
CRON_JOB = Kind("batch/v1", "CronJob", "cronjobs")
BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)

OWN = (BROKER_CLUSTER, BROKER_GROUP, BROKER, TOPIC, CONSUMER_GROUP)

_ALL = (
    *OWN,
    POD,
    CLAIM,
    VOLUME,
    NODE,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    SERVICE_ACCOUNT,
    EVENT,
    STORAGE_CLASS,
    STATEFUL_SET,
    CRON_JOB,
    BUDGET,
    NETWORK_POLICY,
    LEASE,
    CRD,
)
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in _ALL}


def kind_of(manifest: dict[str, object]) -> Kind:
    """The kind that a manifest names.

    Raises:
        KeyError: The operator does not know this kind.
    """
    return _BY_NAME[str(manifest["apiVersion"]), str(manifest["kind"])]
