"""Finds the Kubernetes API for an administrator's command: by a kubeconfig, or by the account of the pod it runs in."""

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
    """The address of the API server is not known, or it does not answer. The text says what to do."""


@dataclass(frozen=True)
class Connection:
    """The address and account for the API server, and the namespace to use if the command names none."""

    configuration: client.Configuration
    namespace: str

    def server_version(self) -> str:
        """The version of Kubernetes. Blocks for up to 10 s.

        Raises:
            ConnectionFailedError: The API server does not answer.
        """
        try:
            with client.ApiClient(self.configuration) as api:
                return str(client.VersionApi(api).get_code(_request_timeout=10).git_version)
        except (ApiException, HTTPError, OSError) as exc:
            raise ConnectionFailedError(f"the API server {self.configuration.host} does not answer: {exc}") from exc


def connect(kubeconfig: str | None, context: str | None) -> Connection:
    """The connection that kubectl would use.

    Args:
        kubeconfig: Path of the kubeconfig. None tries $KUBECONFIG, ~/.kube/config, and then the pod's own account.
        context: A context of that file; None for its current one.

    Raises:
        ConnectionFailedError: There is no usable kubeconfig and the process is not in a pod, or the named file or
            context cannot be used.
    """
    configuration = client.Configuration()
    try:
        contexts, active = config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
        if context is not None:
            active = _named(contexts, context)
        config.load_kube_config(kubeconfig, context, configuration)  # type: ignore[no-untyped-call]
        if not configuration.verify_ssl:
            # The kubeconfig says insecure-skip-tls-verify, so a warning at each call would give its owner no news.
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
            "no kubeconfig was found, and this process is not in a pod. Remedy: set KUBECONFIG, or give --kubeconfig"
        ) from exc


def _named(contexts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for each in contexts:
        if each["name"] == name:
            return each
    known = ", ".join(each["name"] for each in contexts)
    raise ConfigException(f"there is no context {name!r}; there are {known}")
