"""`seriatim operator before-uninstall`, which the chart runs before Helm removes the operator."""

from __future__ import annotations

import asyncio

import click

from .cluster.kube import Kube
from .reconcile.uninstall import refusal, survey, take_finalizers_off, working_revision
from .settings import OperatorSettings


def before_uninstall(*, force: bool, takes_etcd: bool, release: str, revision: str, namespace: str) -> str:
    """Check whether the operator may be removed, and if so remove its finalizers.

    Args:
        force: Allow the removal although clusters are there.
        takes_etcd: The release contains the clusters' etcd.
        release: Name of the release, for the advice.
        revision: Revision for the advice, if Helm's records do not report the right one.
        namespace: Namespace of the release, with Helm's records of it; empty: do not look at them.

    Returns:
        Why the operator must stay and what to do; empty if it may be removed.

    Raises:
        KubeError: The API cannot be asked.
    """
    return asyncio.run(_before_uninstall(force, takes_etcd, release, revision, namespace))


async def _before_uninstall(force: bool, takes_etcd: bool, release: str, revision: str, namespace: str) -> str:
    api = Kube()
    try:
        found = await survey(api, OperatorSettings().watch_namespaces)
        if found.clusters and namespace:
            revision = await working_revision(api, namespace, release) or revision
        why_not = refusal(found, takes_etcd=takes_etcd, release=release, revision=revision, namespace=namespace)
        if why_not and not force:
            return why_not
        for cluster in found.clusters:
            click.echo(f"left without an operator: {cluster}")
        click.echo(f"finalizers taken off: {await take_finalizers_off(api, found)}")
        return ""
    finally:
        api.close()
