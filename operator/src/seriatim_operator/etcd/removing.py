"""`seriatim operator remove-stranded-etcd`, which the chart runs before an upgrade that gives etcd another class."""

from __future__ import annotations

import asyncio

import click

from ..cluster.kube import Kube, KubeError
from .stranded import HasVolumesError, StillThereError, remove_stranded


def remove_stranded_etcd(namespace: str, name: str, members: int) -> None:
    """Remove the StatefulSet and its claims, if no member has a volume.

    Raises:
        ClickException: A member has a volume, or they could not be removed.
    """
    try:
        asyncio.run(_remove(namespace, name, members))
    except (HasVolumesError, StillThereError, KubeError) as exc:
        raise click.ClickException(str(exc)) from exc
    click.echo(f"removed {name} with its {members} claims, which had no volumes")


async def _remove(namespace: str, name: str, members: int) -> None:
    api = Kube()
    try:
        await remove_stranded(api, namespace, name, members)
    finally:
        api.close()
