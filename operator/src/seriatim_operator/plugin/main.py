"""The command `kubectl-seriatim`, which kubectl runs as `kubectl seriatim`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click
from rich.console import Console
from seriatim_api.errors import SeriatimError

from ..cluster.brokers import Brokers
from ..cluster.connection import Connection, ConnectionFailedError, connect
from ..cluster.kinds import BROKER_CLUSTER
from ..cluster.kube import Kube, KubeError
from ..spec.errors import SpecError
from ..spec.group import BrokerGroup
from .chains import draw_topic, draw_topic_status, find_topic
from .doctor import Level, draw_findings, examine
from .draining import Progress, check_drain, count, find_group, read_progress, set_state, watch_drain
from .errors import PluginError
from .health import draw_troubles, examine_pages
from .live import reach_brokers
from .look import explain, find_cluster, look_at
from .pictures import draw_plan, draw_status

FIELD_MANAGER = "kubectl-seriatim"
ANNOTATION_APPROVE = "seriatim.dev/approve"
WIDTH_PIPED = 160
UNWELL, REFUSED = 1, 2
"""Exit statuses: what was looked at is not well; the command could not do what it was asked."""


@dataclass(frozen=True)
class Way:
    """How the cluster is reached: the flags that all commands share."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    console: Console = field(default_factory=lambda: _console(None))

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Connection, Kube, str]]:
        """The connection, the API, and the namespace."""
        connection = connect(self.kubeconfig, self.context)
        kube = Kube(configuration=connection.configuration, field_manager=FIELD_MANAGER)
        try:
            yield connection, kube, self.namespace or connection.namespace
        finally:
            kube.close()


def _console(width: int | None) -> Console:
    """As wide as the terminal; what goes into a file or a pipe is not broken at a terminal's usual width."""
    piped = None if sys.stdout.isatty() else WIDTH_PIPED
    return Console(width=width or piped, highlight=False)


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that kubectl's own commands have, before the command's name and behind it."""
    for names, told in (
        (("-n", "--namespace"), "As kubectl's."),
        (("--context",), "As kubectl's."),
        (("--kubeconfig",), "As kubectl's."),
    ):
        command = click.option(*names, help=told, expose_value=False, callback=_take)(command)
    return command


def _take(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    if ctx.obj is None:
        ctx.obj = Way()
    if value is not None and option.name is not None:
        ctx.obj = replace(ctx.obj, **{option.name: value})


@click.group()
@click.option("--width", type=int, help="Columns to draw in, if not the terminal's.")
@_shared
@click.pass_context
def main(ctx: click.Context, width: int | None) -> None:
    """Seriatim, where a picture says more than `kubectl get`."""
    if width is not None:
        ctx.obj = replace(ctx.obj, console=_console(width))


def _command(work: Callable[..., Coroutine[Any, Any, int]]) -> Callable[..., None]:
    """Run it, and end with its exit status; an expected failure ends with its sentence."""

    @wraps(work)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            status = asyncio.run(work(*args, **kwargs))
        except (PluginError, ConnectionFailedError, SpecError, SeriatimError) as exc:
            click.echo(f"error: {exc}", err=True)
            status = REFUSED
        except KubeError as exc:
            click.echo(f"error: {explain(exc)}", err=True)
            status = REFUSED
        except KeyboardInterrupt:
            status = 130
        sys.exit(status)

    return run


@main.command()
@click.argument("cluster", required=False)
@click.option("--offline", is_flag=True, help="Only what Kubernetes tells; asks no broker.")
@_shared
@click.pass_obj
@_command
async def status(way: Way, cluster: str | None, offline: bool) -> int:
    """How a cluster is, what it does, where everything stands, and what brokers say that a person has to do."""
    async with way.open() as (connection, kube, namespace):
        look = await look_at(kube, await find_cluster(kube, namespace, cluster))
        findings = [] if offline else await examine_pages(connection, kube, look)
    way.console.print(draw_status(look))
    for line in draw_troubles(findings):
        way.console.print(line, soft_wrap=True)
    if any(finding.level is Level.BAD for finding in findings):
        return UNWELL
    return 0 if look.cluster.status.is_true("Ready") else UNWELL


@main.command()
@click.argument("topic")
@click.option("--cluster", help="The cluster, if the namespace has several.")
@click.option("--offline", is_flag=True, help="Only what the Topic object tells; asks no broker.")
@_shared
@click.pass_obj
@_command
async def chains(way: Way, topic: str, cluster: str | None, offline: bool) -> int:
    """The chains of a topic: its segments, where they are, and whether they have their copies."""
    async with way.open() as (connection, kube, namespace):
        found = await find_cluster(kube, namespace, cluster)
        known = find_topic(await look_at(kube, found), topic)
        if offline:
            if known is None:
                raise PluginError(f"there is no Topic {topic} of {found.name} in namespace {namespace}")
            way.console.print(draw_topic_status(known))
            return 0
        async with reach_brokers(connection, kube, found) as brokers:
            described = await brokers.describe_topic(known.topic_name if known is not None else topic)
    way.console.print(draw_topic(described))
    return 0


@main.command()
@click.argument("cluster", required=False)
@click.option("--approve", metavar="HASH", help="Let the plan of that hash happen (changeApproval: Manual).")
@_shared
@click.pass_obj
@_command
async def plan(way: Way, cluster: str | None, approve: str | None) -> int:
    """What the operator is about to do, and what it waits for."""
    async with way.open() as (_, kube, namespace):
        found = await find_cluster(kube, namespace, cluster)
        if approve is not None:
            hashes = {change.hash for change in found.status.planned_changes}
            if approve not in hashes:
                raise PluginError(
                    f"the plan is another one by now: {', '.join(sorted(hashes)) or 'nothing is planned'}"
                )
            patch = {"metadata": {"annotations": {ANNOTATION_APPROVE: approve}}}
            await kube.merge(BROKER_CLUSTER, namespace, found.name, patch)
            way.console.print(f"approved {approve}")
            return 0
    way.console.print(draw_plan(found, datetime.now(UTC)))
    return 0


@main.command()
@click.argument("group")
@click.option("--cluster", help="The cluster, if the namespace has several.")
@click.option("--cordon", "wish", flag_value="Cordoned", help="Only take heads away; what lies on it stays.")
@click.option("--undo", "wish", flag_value="Active", help="Let it take its share again.")
@click.option("--wait", "wait_s", type=float, default=600.0, show_default=True, help="Seconds to watch; 0 for none.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_shared
@click.pass_obj
@_command
async def drain(way: Way, group: str, cluster: str | None, wish: str | None, wait_s: float, yes: bool) -> int:
    """Move everything off a broker group: heads first, then copies of what is closed, never below two."""
    async with way.open() as (connection, kube, namespace):
        look = await look_at(kube, await find_cluster(kube, namespace, cluster))
        found = find_group(look, group)
        name = found.spec.group
        if wish == "Active":
            await set_state(kube, found, "Active")
            way.console.print(f"{name} takes its share again")
            return 0
        check_drain(look, found)
        if wish == "Cordoned":
            await set_state(kube, found, "Cordoned")
            way.console.print(f"heads leave {name}; what lies on it stays")
            return 0
        async with reach_brokers(connection, kube, look.cluster) as brokers:
            return await _drain(way, kube, brokers, found, wait_s, is_sure=yes)


async def _drain(way: Way, kube: Kube, brokers: Brokers, group: BrokerGroup, wait_s: float, *, is_sure: bool) -> int:
    name = group.spec.group
    way.console.print(f"{name} is to be drained: {_left(await count(brokers, name))} will move to other groups")
    if not is_sure and not await asyncio.to_thread(click.confirm, "go on?"):
        return REFUSED
    await set_state(kube, group, "Draining")
    with way.console.status(f"draining {name}") as line:
        at = await watch_drain(
            lambda: read_progress(kube, brokers, group),
            wait_s,
            lambda at: line.update(f"draining {name}: {_left(at)} left{_because(at)}"),
        )
    if at.is_drained:
        way.console.print(
            f"{name} is drained: nothing lies on it. `kubectl seriatim drain {name} --undo` brings it back"
        )
        return 0
    way.console.print(
        f"{name} is still being drained, {_left(at)} are left{_because(at)}; this command again shows how far it is"
    )
    return UNWELL


@main.command()
@click.argument("cluster", required=False)
@click.option("--offline", is_flag=True, help="Only what Kubernetes tells; asks no broker.")
@click.option("-v", "--verbose", is_flag=True, help="Name what is well, too.")
@_shared
@click.pass_obj
@_command
async def doctor(way: Way, cluster: str | None, offline: bool, verbose: bool) -> int:
    """Examine a cluster, and say for everything that is wrong what can be done."""
    async with way.open() as (connection, kube, namespace):
        look = await look_at(kube, await find_cluster(kube, namespace, cluster))
        findings = await examine(connection, kube, look, with_brokers=not offline)
    way.console.print(draw_findings(findings, verbose=verbose), soft_wrap=True)
    return UNWELL if any(finding.level is Level.BAD for finding in findings) else 0


def _left(at: Progress) -> str:
    return f"{at.heads:,} heads and {at.segments:,} segments"


def _because(at: Progress) -> str:
    return f" ({at.waits_for})" if at.waits_for else ""
