"""`seriatim operator before-uninstall`, which the chart runs before it takes the operator away."""

from __future__ import annotations

import asyncio

import click

from .cluster.kube import Kube
from .reconcile.uninstall import refusal, release, survey
from .settings import OperatorSettings


def before_uninstall(*, force: bool, takes_etcd: bool) -> str:
    """Say why the operator may not go, or empty and take its finalizers off; told where to look by the settings."""
    return asyncio.run(_before_uninstall(OperatorSettings().watch_namespaces, force, takes_etcd))


async def _before_uninstall(namespaces: tuple[str, ...], force: bool, takes_etcd: bool) -> str:
    api = Kube()
    try:
        found = await survey(api, namespaces)
        why_not = refusal(found, takes_etcd=takes_etcd)
        if why_not and not force:
            return why_not
        for cluster in found.clusters:
            click.echo(f"left without an operator: {cluster}")
        click.echo(f"finalizers taken off: {await release(api, found)}")
        return ""
    finally:
        api.close()
