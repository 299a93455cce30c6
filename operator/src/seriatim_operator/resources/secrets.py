"""Converts certificate files to manifests of Secrets, and back.

The Secrets have the layout that cert-manager writes, so cert-manager may keep them in place of the operator. The
operator does not write a Secret that has cert-manager's annotation or lacks the operator's labels.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..spec.cluster import BrokerCluster
from .names import ANNOTATION_CHANGED_AT, Manifest, child
from .ownership import is_labelled

CERT_MANAGER_MARKS = ("cert-manager.io/certificate-name", "cert-manager.io/issuer-name")
"""Annotations that cert-manager sets on each Secret that it fills."""


def tls_secret(
    cluster: BrokerCluster, name: str, files: Mapping[str, bytes], changed_at: datetime | None = None
) -> Manifest:
    """A Secret with a certificate and its key.

    Args:
        cluster: The cluster that the Secret belongs to.
        name: The name of the Secret.
        files: Its files: `tls.crt`, `tls.key`, and mostly `ca.crt`.
        changed_at: The time to note on it; see the function `changed_at`.
    """
    noted = {ANNOTATION_CHANGED_AT: changed_at.astimezone(UTC).isoformat(timespec="seconds")} if changed_at else None
    manifest = child(cluster, "v1", "Secret", name, annotations=noted)
    data = {file: base64.b64encode(content).decode() for file, content in sorted(files.items())}
    return {**manifest, "type": "kubernetes.io/tls", "data": data}


def is_of_cert_manager(manifest: Mapping[str, Any]) -> bool:
    """Whether cert-manager keeps this Secret."""
    return any(mark in (manifest["metadata"].get("annotations") or {}) for mark in CERT_MANAGER_MARKS)


def is_ours(manifest: Mapping[str, Any], cluster: BrokerCluster) -> bool:
    """Whether the operator keeps this Secret for the cluster. If the user or cert-manager does, it only reads it."""
    return not is_of_cert_manager(manifest) and is_labelled(manifest, cluster)


def is_certificate(manifest: Mapping[str, Any]) -> bool:
    """Whether the Secret has the files of a certificate, so that its owner may have made it for a cluster."""
    return {"tls.crt", "tls.key"} <= (manifest.get("data") or {}).keys()


def secret_files(manifest: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a Secret. A file that is not base64 counts as empty, which the reader of the file reports."""
    files: dict[str, bytes] = {}
    for file, content in (manifest.get("data") or {}).items():
        try:
            files[file] = base64.b64decode(content, validate=True)
        except (binascii.Error, TypeError, ValueError):
            files[file] = b""
    return files


def changed_at(manifest: Mapping[str, Any]) -> datetime | None:
    """When the operator last wrote something into the Secret that brokers must read; None if no time is noted."""
    text = (manifest["metadata"].get("annotations") or {}).get(ANNOTATION_CHANGED_AT, "")
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
