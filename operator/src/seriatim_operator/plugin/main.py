"""The command `kubectl-seriatim`, which kubectl runs as `kubectl seriatim`.

Nearly all processor time of a command goes to imports. So what asks brokers (gRPC, aiohttp) or reads certificates is
imported by the commands that do so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from seriatim_api.errors import SeriatimError
from seriatim_api.terminal.consoles import SafeConsole
from seriatim_api.terminal.questions import NoTerminalError, ask
from seriatim_api.terminal.safe_text import echo

from ..cluster.connection import Connection, ConnectionFailedError, connect
from ..cluster.kinds import BROKER_CLUSTER
from ..cluster.kube import Kube, KubeError
from ..spec.errors import SpecError
from ..spec.group import BrokerGroup
from .chains import draw_topic, draw_topic_status, find_topic
from .errors import PluginError
from .findings import Level, draw_findings
from .look import explain, find_cluster, find_clusters, look_at
from .pictures import draw_plan, draw_status

if TYPE_CHECKING:
    from ..cluster.brokers import Brokers
    from .draining import Progress

FIELD_MANAGER = "kubectl-seriatim"
ANNOTATION_APPROVE = "seriatim.dev/approve"
WIDTH_PIPED = 160
UNWELL, REFUSED = 1, 2
"""Exit statuses: 1 if the command looked and found something wrong, 2 if it could not do its work."""


@dataclass(frozen=True)
class Way:
    """How the command reaches the cluster: the flags that all commands share."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    console: Console = field(default_factory=lambda: _console(None))

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Connection, Kube, str]]:
        """The connection, the client of the API, and the namespace. The client is closed at the end of the block."""
        connection = connect(self.kubeconfig, self.context)
        kube = Kube(configuration=connection.configuration, field_manager=FIELD_MANAGER)
        try:
            yield connection, kube, self.namespace or connection.namespace
        finally:
            kube.close()


def _console(width: int | None) -> Console:
    """A console as wide as the terminal, or 160 columns wide if the output goes into a file or a pipe."""
    if width is None and not sys.stdout.isatty():
        width = WIDTH_PIPED
    return SafeConsole(width=width, highlight=False)


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that kubectl's own commands have. They are accepted before and after the command's name."""
    for names, told in (
        (("-n", "--namespace"), "Namespace of the cluster, as for kubectl (default: the context's)."),
        (("--context",), "Context of the kubeconfig, as for kubectl (default: the current one)."),
        (("--kubeconfig",), "Path of the kubeconfig, as for kubectl."),
    ):
        command = click.option(*names, help=told, expose_value=False, callback=_take)(command)
    return command


def _take(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    if ctx.obj is None:
        ctx.obj = Way()
    if value is not None and option.name is not None:
        ctx.obj = replace(ctx.obj, **{option.name: value})


@click.group()
@click.option(
    "--width", type=int, help="Width of the output in columns (default: the terminal's, or 160 into a file or a pipe)."
)
@_shared
@click.pass_context
def main(ctx: click.Context, width: int | None) -> None:
    """Show and examine Seriatim clusters, approve plans, and drain broker groups."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our own errors say what failed
    if width is not None:
        ctx.obj = replace(ctx.obj, console=_console(width))


def _command(work: Callable[..., Coroutine[Any, Any, int]]) -> Callable[..., None]:
    """Make a command of `work`: run it and end with its exit status. An expected error ends it with one sentence."""

    @wraps(work)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            status = asyncio.run(work(*args, **kwargs))
        except (PluginError, ConnectionFailedError, SpecError, SeriatimError) as exc:
            echo(f"error: {exc}", err=True)
            status = REFUSED
        except KubeError as exc:
            echo(f"error: {explain(exc)}", err=True)
            status = REFUSED
        except KeyboardInterrupt:
            status = 130
        sys.exit(status)

    return run


@main.command()
@click.argument("cluster", required=False)
@click.option("--offline", is_flag=True, help="Read only the Kubernetes API; ask no broker.")
@_shared
@click.pass_obj
@_command
async def status(way: Way, cluster: str | None, offline: bool) -> int:
    """Show a cluster on one screen, with what brokers say that an administrator has to do."""
    async with way.open() as (connection, kube, namespace):
        look = await look_at(kube, await find_cluster(kube, namespace, cluster))
        is_ready = look.cluster.status.is_true("Ready")
        if offline:
            way.console.print(draw_status(look))
            return 0 if is_ready else UNWELL
        from .health import draw_troubles, examine_pages
        from .without_objects import tell_without_objects

        findings = await examine_pages(connection, kube, look)
        others = await tell_without_objects(connection, kube, look)
    way.console.print(draw_status(look))
    if others:
        way.console.print(others, style="dim", soft_wrap=True)
    for line in draw_troubles(findings):
        way.console.print(line, soft_wrap=True)
    if any(finding.level is Level.BAD for finding in findings):
        return UNWELL
    return 0 if is_ready else UNWELL


@main.command()
@click.argument("topic")
@click.option("--cluster", help="The cluster, if the namespace has several.")
@click.option("--offline", is_flag=True, help="Read only the Topic object; ask no broker.")
@_shared
@click.pass_obj
@_command
async def chains(way: Way, topic: str, cluster: str | None, offline: bool) -> int:
    """Show the chains of a topic: its segments, their broker groups, and whether they have all their copies."""
    async with way.open() as (connection, kube, namespace):
        found = await find_cluster(kube, namespace, cluster)
        known = find_topic(await look_at(kube, found), topic)
        if offline:
            if known is None:
                raise PluginError(
                    f"there is no Topic {topic} of {found.name} in namespace {namespace}. Remedy: leave out --offline "
                    "to ask the brokers"
                )
            way.console.print(draw_topic_status(known))
            return 0
        from .live import reach_brokers

        async with reach_brokers(connection, kube, found) as brokers:
            described = await brokers.describe_topic(known.topic_name if known is not None else topic)
    way.console.print(draw_topic(described))
    return 0


@main.command()
@click.argument("cluster", required=False)
@click.option("--approve", metavar="HASH", help="Approve the plan with this hash (changeApproval: Manual).")
@_shared
@click.pass_obj
@_command
async def plan(way: Way, cluster: str | None, approve: str | None) -> int:
    """Show what the operator is about to do and what it waits for."""
    async with way.open() as (_, kube, namespace):
        found = await find_cluster(kube, namespace, cluster)
        if approve is not None:
            hashes = {change.hash for change in found.status.planned_changes}
            if approve not in hashes:
                raise PluginError(
                    f"not approved, the plan has changed: it is {', '.join(sorted(hashes)) or 'empty now'}"
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
@click.option("--cordon", "wish", flag_value="Cordoned", help="Move only the open segments; the copies stay.")
@click.option(
    "--undo", "wish", flag_value="Active", help="End the cordon or drain: the broker group takes its share again."
)
@click.option(
    "--wait",
    "wait_s",
    type=float,
    default=600.0,
    show_default=True,
    help="Seconds to watch the drain; 0: do not watch.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before the drain begins.")
@_shared
@click.pass_obj
@_command
async def drain(way: Way, group: str, cluster: str | None, wish: str | None, wait_s: float, yes: bool) -> int:
    """Move all segments off a broker group: first the open ones, then copies of sealed ones. Two copies always stay."""
    from .draining import check_drain, find_broker_group, set_state
    from .live import reach_brokers

    async with way.open() as (connection, kube, namespace):
        look = await look_at(kube, await find_cluster(kube, namespace, cluster))
        found = find_broker_group(look, group)
        name = found.spec.group
        if wish == "Active":
            await set_state(kube, found, "Active")
            way.console.print(f"{name} takes its share again")
            return 0
        check_drain(look, found)
        if wish == "Cordoned":
            await set_state(kube, found, "Cordoned")
            way.console.print(f"open segments leave {name}; its copies of sealed segments stay")
            return 0
        async with reach_brokers(connection, kube, look.cluster) as brokers:
            return await _drain(way, kube, brokers, found, wait_s, is_sure=yes)


async def _drain(way: Way, kube: Kube, brokers: Brokers, group: BrokerGroup, wait_s: float, *, is_sure: bool) -> int:
    from .draining import count, read_progress, set_state, watch_drain

    name = group.spec.group
    way.console.print(f"{name} is to be drained: {_left(await count(brokers, name))} will move to other broker groups")
    if not is_sure and not await is_told_to_drain(name):
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
            f"{name} is drained: it holds no segment. `kubectl seriatim drain {name} --undo` brings it back"
        )
        return 0
    way.console.print(
        f"{name} is still being drained, {_left(at)} are left{_because(at)}. It continues: run this command again "
        "to see how far it is"
    )
    return UNWELL


async def is_told_to_drain(name: str) -> bool:
    """Ask an administrator. If the answer is no, say what is not done.

    Raises:
        PluginError: stdin is no terminal.
    """
    try:
        is_sure = await ask(f"Drain {name}?")
    except NoTerminalError:
        text = f"{name} is not drained: stdin is no terminal to ask you on. Remedy: add --yes"
        raise PluginError(text) from None
    if not is_sure:
        echo(f"{name} is not drained: the answer was no", err=True)
    return is_sure


@main.command()
@click.argument("cluster", required=False)
@click.option("--offline", is_flag=True, help="Read only the Kubernetes API; ask no broker.")
@click.option("-v", "--verbose", is_flag=True, help="Also name what is well.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Examine the clusters of all namespaces.")
@_shared
@click.pass_obj
@_command
async def doctor(way: Way, cluster: str | None, offline: bool, verbose: bool, everywhere: bool) -> int:
    """Examine a cluster, and say what is wrong and what to do about it. Without a name: all clusters of the namespace.

    Exit status 1: something does not work in one of the clusters. 2: one of them could not be examined.
    """
    from .doctor import examine

    if cluster is not None and everywhere:
        raise PluginError("a cluster's name and --all-namespaces together mean nothing: leave one of them out")
    status = 0
    async with way.open() as (connection, kube, namespace):
        if cluster is not None:
            clusters = [await find_cluster(kube, namespace, cluster)]
        else:
            clusters = await find_clusters(kube, None if everywhere else namespace)
        for each in clusters:
            if len(clusters) > 1 or everywhere:
                way.console.print(f"{each.name} in {each.namespace}", style="bold")
            try:
                findings = await examine(connection, kube, await look_at(kube, each), with_brokers=not offline)
            except (PluginError, SpecError, KubeError) as exc:
                if len(clusters) == 1:
                    raise
                echo(f"error: {exc}", err=True)  # the others are examined all the same
                status = REFUSED
                continue
            way.console.print(draw_findings(findings, verbose=verbose), soft_wrap=True)
            is_bad = any(finding.level is Level.BAD for finding in findings)
            status = max(status, UNWELL if is_bad else 0)
    return status


def _left(at: Progress) -> str:
    return f"{at.open_segments:,} heads and {at.segments:,} segments"


def _because(at: Progress) -> str:
    return f" ({at.waits_for})" if at.waits_for else ""
