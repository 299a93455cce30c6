"""The settings of the operator's process: environment variables `SERIATIM_OPERATOR_*`, as the chart sets them."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from .cluster.pki import DEFAULT_DOMAIN, SETTLE_TIME
from .plan.observed import SPREAD_QUIET_S

_DOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
"""Lower-case labels with dots between them, as Kubernetes requires (RFC 1123). The chart's schema has the same rule."""


class OperatorSettings(BaseSettings):
    """The settings of the operator.

    Attributes:
        namespace: The namespace in which the operator runs and has its Lease.
        watch_namespaces: Namespaces whose objects it reconciles. Empty for all namespaces, which needs a ClusterRole.
        identity: A unique name of this process: the pod's name and UID.
        broker_image: The brokers' image if a cluster names none.
        lease_name: Name of the Lease that makes sure that only one operator acts.
        metrics_listen: `host:port` of metrics and health; empty for none.
        log_level: The least severe level that is logged.
        cluster_domain: The domain of the Kubernetes cluster's DNS, for the names in certificates.
        certificate_settle_s: Seconds that a kubelet may take to bring a changed Secret into a pod, with a margin. This
            long the steps of replacing a certificate authority are apart.
        etcd_name: Name of the StatefulSet of the release's etcd; empty if it has none.
        etcd_members: How many members that etcd has.
        etcd_snapshots: Name of the CronJob that takes its snapshots; empty if there is none.
        spread_quiet_s: Seconds for which nothing else must be wrong with a cluster before its spread is mended, if
            `spec.spreadMending` is `Automatic`.
    """

    model_config = SettingsConfigDict(env_prefix="SERIATIM_OPERATOR_", frozen=True, extra="forbid")

    namespace: str = "default"
    watch_namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    identity: str = ""
    broker_image: str = "seriatim.dev/broker:dev"
    lease_name: str = "seriatim-operator"
    metrics_listen: str = "0.0.0.0:7102"
    log_level: str = "info"
    cluster_domain: Annotated[str, Field(pattern=_DOMAIN, max_length=100)] = DEFAULT_DOMAIN
    certificate_settle_s: Annotated[float, Field(ge=30, le=86_400)] = SETTLE_TIME.total_seconds()
    etcd_name: str = ""
    etcd_members: Annotated[int, Field(ge=1, le=9)] = 3
    etcd_snapshots: str = ""
    spread_quiet_s: Annotated[float, Field(ge=10, le=86_400)] = SPREAD_QUIET_S

    @field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
