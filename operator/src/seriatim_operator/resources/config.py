"""Builds the brokers' settings file, and the hash that shows whether a running broker has the desired template."""

from __future__ import annotations

import hashlib
import json
import tomllib
from typing import Any

import tomli_w

from ..spec.cluster import BrokerCluster
from ..spec.settings import SettingsError, is_good, parse_settings
from ..spec.values import parse_quantity
from .names import (
    ADMIN_PORT,
    BROKER_PORT,
    CONFIG_FILE,
    CONFIG_PATH,
    DATA_PATH,
    ETCD_TLS_DIRECTORY,
    TLS_DIRECTORY,
    Manifest,
    child,
    config_name,
    protocol_cluster_name,
)

HASH_LENGTH = 16

ANNOTATION_RESTART = "seriatim.dev/restart"
"""On a BrokerCluster: an administrator gives it a new value, such as the time, to have all brokers restarted one at a
time."""

JOIN_DEADLINE_S = 86_400.0
"""Seconds for which a broker waits for etcd at its start before it ends. Meanwhile `/readyz` says that it waits."""


def broker_toml(cluster: BrokerCluster) -> str:
    """The settings that all brokers of a cluster share, as TOML. Settings that differ are in their environment.

    Raises:
        SettingsError: `spec.settings` cannot be given to a broker.
    """
    spec = cluster.spec
    table: dict[str, Any] = {
        "cluster": protocol_cluster_name(cluster),
        "data": DATA_PATH,
        "listen": f"0.0.0.0:{BROKER_PORT}",
        "admin_listen": f"0.0.0.0:{ADMIN_PORT}",
        "coordinator": list(spec.etcd.endpoints),
        "join_deadline_s": JOIN_DEADLINE_S,
        **parse_settings(spec.settings),
    }
    if spec.tls.enabled:
        table |= _tls_paths("tls", TLS_DIRECTORY)
    if spec.etcd.tls_secret is not None:
        table |= _tls_paths("coordinator_tls", ETCD_TLS_DIRECTORY)
    return tomli_w.dumps(dict(sorted(table.items())))


def config_map(cluster: BrokerCluster) -> Manifest:
    """The ConfigMap with the settings file.

    Raises:
        SettingsError: `spec.settings` cannot be given to a broker.
    """
    manifest = child(cluster, "v1", "ConfigMap", config_name(cluster.name))
    return {**manifest, "data": {CONFIG_FILE: broker_toml(cluster)}}


def settings_in(text: str) -> dict[str, str]:
    """The users' settings in a settings file that `broker_toml` made.

    A setting that this version would refuse is left out. If the rest contradict each other, none are left.

    Args:
        text: The settings file. If an administrator has spoilt it, there are no settings in it.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}
    if table.get("join_deadline_s") == JOIN_DEADLINE_S:
        del table["join_deadline_s"]  # the operator's default, or a user's with the same effect
    found = {name: str(value) for name, value in table.items() if is_good(name, str(value))}
    try:
        parse_settings(found)
    except SettingsError:
        return {}
    return found


def template_hash(cluster: BrokerCluster, default_image: str) -> str:
    """The hash of everything that needs a restart of the brokers when it changes, and of nothing else.

    It is made from the user's wishes, not from the pod that a builder makes of them. So a newer operator that builds
    pods differently restarts no broker because of that. Labels, annotations and certificates change in place. Fields
    that decide on which node a pod may run are not in the hash: they count when a pod is placed, and a broker with a
    local disk cannot move anyway.

    Raises:
        SettingsError: `spec.settings` cannot be given to a broker.
    """
    spec, template = cluster.spec, cluster.spec.pod_template
    inputs = {
        "image": spec.image or default_image,
        "settings": parse_settings(spec.settings),
        "etcd": [list(spec.etcd.endpoints), spec.etcd.tls_secret],
        "tls": spec.tls.enabled,
        "env": [[variable.name, variable.value] for variable in template.env],
        "resources": {
            kind: {name: str(parse_quantity(amount).normalize()) for name, amount in amounts.items()}
            for kind, amounts in (("requests", template.resources.requests), ("limits", template.resources.limits))
        },
    }
    restart = cluster.metadata.annotations.get(ANNOTATION_RESTART)
    if restart is not None:
        inputs["restart"] = restart  # not None, so that clusters without the annotation keep the hash they have
    if spec.external is not None:  # only then, so that a newer operator restarts no broker without it
        inputs["external"] = True
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def placement_hash(cluster: BrokerCluster) -> str:
    """The hash of the fields that count only until a pod has a node and its image. `template_hash` has none of them."""
    template = cluster.spec.pod_template.to_manifest()
    text = json.dumps({name: template.get(name) for name in _PLACEMENT}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


_PLACEMENT = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "imagePullPolicy",
    "imagePullSecrets",
    "zoneKey",
)


def _tls_paths(prefix: str, directory: str) -> dict[str, str]:
    return {
        f"{prefix}_{what}": f"{CONFIG_PATH}/{directory}/{file}"
        for what, file in (("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key"))
    }
