"""A person's way to a Kubernetes: a kubeconfig with its contexts, or the account of the pod one is in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError, InsecureRequestWarning

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ConnectionFailedError(Exception):
    """No way to the API server is known, or it does not answer; the text says what to do."""


@dataclass(frozen=True)
class Connection:
    """Where the API server is, who asks, and in which namespace if none is named."""

    configuration: client.Configuration
    namespace: str

    def server_version(self) -> str:
        """The version of Kubernetes. Blocks.

        Raises:
            ConnectionFailedError: The API server does not answer.
        """
        try:
            with client.ApiClient(self.configuration) as api:
                return str(client.VersionApi(api).get_code(_request_timeout=10).git_version)
        except (ApiException, HTTPError, OSError) as exc:
            raise ConnectionFailedError(f"the API server {self.configuration.host} does not answer: {exc}") from exc


def connect(kubeconfig: str | None, context: str | None) -> Connection:
    """The connection that kubectl would take.

    Args:
        kubeconfig: The file; None for $KUBECONFIG, ~/.kube/config, and then the pod's own account.
        context: A context of that file; None for its current one.

    Raises:
        ConnectionFailedError: There is none.
    """
    configuration = client.Configuration()
    try:
        contexts, active = config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
        if context is not None:
            active = _named(contexts, context)
        config.load_kube_config(kubeconfig, context, configuration)  # type: ignore[no-untyped-call]
        if not configuration.verify_ssl:
            # The kubeconfig says insecure-skip-tls-verify: its owner need not be told at each call.
            urllib3.disable_warnings(InsecureRequestWarning)
        return Connection(configuration, str(active["context"].get("namespace") or "default"))
    except (ConfigException, OSError) as exc:
        if kubeconfig is not None or context is not None:
            raise ConnectionFailedError(f"{exc}. Remedy: give another --kubeconfig or --context") from exc
    try:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return Connection(configuration, _POD_NAMESPACE.read_text().strip())
    except (ConfigException, OSError) as exc:
        raise ConnectionFailedError(
            "no kubeconfig was found, and this is no pod. Remedy: set KUBECONFIG, or give --kubeconfig"
        ) from exc


def _named(contexts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for each in contexts:
        if each["name"] == name:
            return each
    known = ", ".join(each["name"] for each in contexts)
    raise ConfigException(f"there is no context {name!r}; there are {known}")
