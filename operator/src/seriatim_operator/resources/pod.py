"""Builds a broker's pod: one container, restricted as far as Kubernetes can restrict it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ..spec.broker import BrokerSpec
from ..spec.cluster import BrokerCluster, PodTemplate
from ..spec.settings import STOP_DEADLINE_DEFAULT_S, parse_settings
from .config import placement_hash, template_hash
from .names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    ANNOTATION_EXTERNAL_ADDRESS,
    ANNOTATION_PLACEMENT_HASH,
    ANNOTATION_TEMPLATE_HASH,
    BROKER_PORT,
    BROKER_PORT_NAME,
    CONFIG_FILE,
    CONFIG_PATH,
    CONTAINER,
    ETCD_TLS_DIRECTORY,
    EXTERNAL_ADDRESS_FILE,
    EXTERNAL_PORT,
    EXTERNAL_PORT_NAME,
    FORMER,
    LINK_PORT,
    LINK_PORT_NAME,
    STATUS_FILE,
    STREAM_PORT,
    STREAM_PORT_NAME,
    TLS_DIRECTORY,
    USER_ID,
    VOLUME_PATH,
    Manifest,
    broker_address,
    broker_group_selector_labels,
    broker_labels,
    broker_name,
    broker_object_name,
    brokers_name,
    child,
    config_name,
    selector_labels,
    service_account_name,
    tls_secret_name,
)

HOSTNAME_KEY: Final = "kubernetes.io/hostname"

GRACE_MARGIN_S: Final = 27
"""Seconds of grace after the broker's own deadline to hand over (3 s), so 30 s in all. They are for closing the
database on a slow machine."""

REQUESTS_DEFAULT: Final = {"cpu": "100m", "memory": "512Mi"}
"""The CPU share keeps heartbeats on time beside pods that ask for more. The memory is for a broker's buffers (64 MiB
head cache, 64 MiB in flight, 96 MiB memtables) and the process itself. These are requests and not limits."""

STARTUP_S_MAX: Final = 3600
"""Seconds that a broker may take to start. If it were killed while it replays a long log, it would begin again."""

_LIVENESS_FAILURES_MAX: Final = 6
"""Failed probes, one every 20 s, until the broker is killed: an event loop that did not run for 2 minutes will not run
again. If a broker were killed because its machine is busy, the others would be busier. Safety needs no probe, because
members are fenced."""


def pod(
    cluster: BrokerCluster, broker: BrokerSpec, default_image: str, external_address: str = "", former_image: str = ""
) -> Manifest:
    """The pod of one incarnation.

    Args:
        cluster: The cluster that the broker belongs to.
        broker: The member and its disk.
        default_image: The image if the cluster names none.
        external_address: Where clients outside reach the broker. It is an annotation, and the broker reads it from a
            file, so that a later change needs no restart.
        former_image: The image with which the broker is made instead, until it is known that the wanted template works.

    Raises:
        SettingsError: `spec.settings` cannot be given to a broker.
    """
    template, hash_ = cluster.spec.pod_template, template_hash(cluster, default_image)
    if former_image:
        cluster = cluster.model_copy(update={"spec": cluster.spec.model_copy(update={"image": former_image})})
        hash_ = f"{FORMER}{template_hash(cluster, default_image)}"
    annotations = {
        **template.annotations,
        ANNOTATION_TEMPLATE_HASH: hash_,
        ANNOTATION_PLACEMENT_HASH: placement_hash(cluster),
    }
    if cluster.spec.external is not None and external_address:
        annotations[ANNOTATION_EXTERNAL_ADDRESS] = external_address
    manifest = child(
        cluster,
        "v1",
        "Pod",
        broker_object_name(broker),
        labels={**template.labels, **broker_labels(broker)},
        annotations=annotations,
    )
    spec: Manifest = {
        "hostname": broker_name(broker.group, broker.slot),
        "subdomain": brokers_name(cluster.name),
        "serviceAccountName": service_account_name(cluster.name),
        "automountServiceAccountToken": False,
        # Kubernetes makes variables from the Services of a namespace. They could look like our settings (SERIATIM_...).
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": _grace_s(cluster),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": _affinity(broker, template),
        "topologySpreadConstraints": _spread(broker, template),
        "tolerations": _tolerations(template),
        "containers": [_container(cluster, broker, default_image)],
        "volumes": _volumes(cluster, broker),
    }
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector)
    if template.priority_class_name is not None:
        spec["priorityClassName"] = template.priority_class_name
    if template.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in template.image_pull_secrets]
    return {**manifest, "spec": spec}


def pod_in_place(existing: Mapping[str, Any], wanted: Manifest) -> Manifest:
    """The manifest to apply to an existing pod. Only labels and annotations change, because the rest of a pod cannot.

    The hashes stay as they were when the pod was made, because they say what the pod has. The spec is repeated as it
    is, because server-side apply removes fields that a manager does not name any more.
    """
    before, metadata = existing["metadata"].get("annotations") or {}, wanted["metadata"]
    born_with = {name: before.get(name, "") for name in (ANNOTATION_TEMPLATE_HASH, ANNOTATION_PLACEMENT_HASH)}
    annotations = {**metadata.get("annotations", {}), **born_with}
    return {**wanted, "metadata": {**metadata, "annotations": annotations}, "spec": existing["spec"]}


def _grace_s(cluster: BrokerCluster) -> int:
    stop_deadline = parse_settings(cluster.spec.settings).get("stop_deadline_s", STOP_DEADLINE_DEFAULT_S)
    return math.ceil(float(stop_deadline)) + GRACE_MARGIN_S


def _container(cluster: BrokerCluster, broker: BrokerSpec, default_image: str) -> Manifest:
    template = cluster.spec.pod_template
    scheme = "HTTPS" if cluster.spec.tls.enabled else "HTTP"
    container: Manifest = {
        "name": CONTAINER,
        "image": cluster.spec.image or default_image,
        "imagePullPolicy": template.image_pull_policy,
        # Arguments only: the image's entry point is an init that runs `seriatim`.
        "args": ["broker", "--config", f"{CONFIG_PATH}/{CONFIG_FILE}"],
        "env": _environment(cluster, broker),
        "ports": [
            {"name": BROKER_PORT_NAME, "containerPort": BROKER_PORT, "protocol": "TCP"},
            {"name": ADMIN_PORT_NAME, "containerPort": ADMIN_PORT, "protocol": "TCP"},
            {"name": LINK_PORT_NAME, "containerPort": LINK_PORT, "protocol": "TCP"},
            {"name": STREAM_PORT_NAME, "containerPort": STREAM_PORT, "protocol": "TCP"},
        ],
        "startupProbe": _probe("/healthz", scheme, period_s=1, failures=STARTUP_S_MAX),
        "readinessProbe": _probe("/readyz", scheme, period_s=2, failures=2),
        "livenessProbe": _probe("/healthz", scheme, period_s=20, failures=_LIVENESS_FAILURES_MAX, timeout_s=15),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # The broker writes its member run into this file. It is the evidence for the death certificate.
        "terminationMessagePath": STATUS_FILE,
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {"name": "data", "mountPath": VOLUME_PATH},
            {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod's own
        ],
    }
    if cluster.spec.external is not None:
        container["ports"].append({"name": EXTERNAL_PORT_NAME, "containerPort": EXTERNAL_PORT, "protocol": "TCP"})
    container["resources"] = _resources(template)
    return container


def _resources(template: PodTemplate) -> Manifest:
    """The user's requests and limits. Requests that the user leaves out get a default.

    Without it a broker would be the first to get no CPU or to be killed.
    """
    limits = dict(template.resources.limits)
    requests = {name: amount for name, amount in REQUESTS_DEFAULT.items() if name not in limits}
    return {"requests": {**requests, **template.resources.requests}, **({"limits": limits} if limits else {})}


def _environment(cluster: BrokerCluster, broker: BrokerSpec) -> list[Manifest]:
    variables = {
        "SERIATIM_GROUP": broker.group,
        "SERIATIM_SLOT": str(broker.slot),
        "SERIATIM_ADVERTISE": broker_address(cluster, broker.group, broker.slot),
        "SERIATIM_STATUS_FILE": STATUS_FILE,
        # Not in the settings file, which brokers of another image read too while the change rolls through the cluster.
        "SERIATIM_LINK_LISTEN": f"0.0.0.0:{LINK_PORT}",
        "SERIATIM_STREAM_LISTEN": f"0.0.0.0:{STREAM_PORT}",
    }
    if cluster.spec.external is not None:
        variables["SERIATIM_EXTERNAL_LISTEN"] = f"0.0.0.0:{EXTERNAL_PORT}"
        variables["SERIATIM_EXTERNAL_ADVERTISE_FILE"] = f"{CONFIG_PATH}/{EXTERNAL_ADDRESS_FILE}"
    if broker.replaces is not None:
        variables["SERIATIM_REPLACE_DISK_OF"] = broker.replaces
    users = {variable.name: variable.value for variable in cluster.spec.pod_template.env}
    return [{"name": name, "value": value} for name, value in {**users, **variables}.items()]


def _probe(path: str, scheme: str, period_s: int, failures: int, timeout_s: int = 5) -> Manifest:
    return {
        "httpGet": {"path": path, "port": ADMIN_PORT_NAME, "scheme": scheme},
        "periodSeconds": period_s,
        # A busy machine answers late, and a probe that times out too early causes a needless failover.
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _volumes(cluster: BrokerCluster, broker: BrokerSpec) -> list[Manifest]:
    """The disk, a temporary directory, and one volume for all files, so that they change together."""
    sources: list[Manifest] = [
        {"configMap": {"name": config_name(cluster.name), "items": [{"key": CONFIG_FILE, "path": CONFIG_FILE}]}}
    ]
    if cluster.spec.tls.enabled:
        sources.append(_secret_files(tls_secret_name(cluster.name, "broker"), TLS_DIRECTORY))
    if cluster.spec.external is not None:
        field = {"fieldPath": f"metadata.annotations['{ANNOTATION_EXTERNAL_ADDRESS}']"}
        sources.append({"downwardAPI": {"items": [{"path": EXTERNAL_ADDRESS_FILE, "fieldRef": field}]}})
    if cluster.spec.etcd.tls_secret is not None:
        sources.append(_secret_files(cluster.spec.etcd.tls_secret, ETCD_TLS_DIRECTORY))
    return [
        {"name": "data", "persistentVolumeClaim": {"claimName": broker_object_name(broker)}},
        {"name": "config", "projected": {"defaultMode": 0o440, "sources": sources}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
    ]


def _secret_files(secret: str, directory: str) -> Manifest:
    files = ("ca.crt", "tls.crt", "tls.key")
    return {"secret": {"name": secret, "items": [{"key": file, "path": f"{directory}/{file}"} for file in files]}}


def _affinity(broker: BrokerSpec, template: PodTemplate) -> Manifest:
    """The user's affinity, and the rule that no two members of a broker group run on one machine.

    They hold the same messages.
    """
    made = template.affinity.to_manifest() if template.affinity is not None else {}
    selector = {"matchLabels": broker_group_selector_labels(broker.cluster, broker.group)}
    term = {"labelSelector": selector, "topologyKey": HOSTNAME_KEY}
    apart = made.get("podAntiAffinity", {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {**made, "podAntiAffinity": {**apart, required: [*apart.get(required, ()), term]}}


def _spread(broker: BrokerSpec, template: PodTemplate) -> list[Manifest]:
    """The user's constraints, and those that spread the members of a broker group over zones, and all brokers over
    machines, if possible. Kubernetes takes one constraint for each key and strictness, so the user's comes first.
    """

    def over(key: str, labels: dict[str, str]) -> Manifest:
        return {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }

    all_brokers = {"labelSelector": {"matchLabels": selector_labels(broker.cluster)}}
    users = [{**all_brokers, **constraint.to_manifest()} for constraint in template.topology_spread_constraints]
    group = broker_group_selector_labels(broker.cluster, broker.group)
    ours = [over(template.zone_key, group), over(HOSTNAME_KEY, selector_labels(broker.cluster))]
    taken = {(constraint["topologyKey"], constraint["whenUnsatisfiable"]) for constraint in users}
    return [*users, *(one for one in ours if (one["topologyKey"], one["whenUnsatisfiable"]) not in taken)]


def _tolerations(template: PodTemplate) -> list[Manifest]:
    """The user's tolerations, and those for nodes that are silent.

    Without them Kubernetes deletes a pod on a silent node after 5 minutes. But the pod's disk is only on that node, so
    this would only end a broker that returns with its node. The operator itself proves whether a node is gone for good.
    An administrator who knows that it is sets the out-of-service taint, which the pod does not tolerate, or deletes the
    Node.
    """
    silent = [
        {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute"}
        for state in ("not-ready", "unreachable")
    ]
    return [*(toleration.to_manifest() for toleration in template.tolerations), *silent]
