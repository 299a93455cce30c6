"""`seriatim cluster ...`: a cluster of real processes on this machine, to try Seriatim and to break it. `seriatim
standalone`: a whole cluster in one process.

The commands of `cluster` translate and print. The runner carries them out (`runner`, `control`). The root command
prints errors.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from seriatim_api.errors import PreconditionError
from seriatim_api.terminal.safe_text import echo
from seriatim_broker.process.start import prepare_process

from seriatim_local.links.delays import parse_delay
from seriatim_local.state import DIRECTORY_DEFAULT, end_leftovers, find_directory, is_running, read_state, write_state

if TYPE_CHECKING:
    from rich.console import Group

    from seriatim_local.brokers.other_clusters import OtherCluster

CALL_DEADLINE_S: Final = 30.0
DOWN_DEADLINE_S: Final = 60.0
GROUP_COUNT: Final = 3
PIPE_WIDTH: Final = 1_000_000
"""Columns of the output if it goes into a file or a pipe, so that no line is wrapped or cut."""
MEMBER_COUNT: Final = 2
MEMBERS_MAX: Final = 5
_STATE_STYLES: Final = {"running": "green", "frozen": "cyan", "dead": "red"}

_HELP_DIRECTORY: Final = "The cluster's directory, with its data, logs and state file."
_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=find_directory,
    envvar="SERIATIM_CLUSTER_DIR",
    show_default=f"{DIRECTORY_DEFAULT}, here or below a directory above",
    help=_HELP_DIRECTORY,
)
_new_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY_DEFAULT,
    envvar="SERIATIM_CLUSTER_DIR",
    show_default=True,
    help=_HELP_DIRECTORY,
)
_victims = click.argument("victims", nargs=-1, required=True, metavar="VICTIM...")
_hit = click.argument("victims", nargs=-1, metavar="[VICTIM]...")
_masters_of = click.option(
    "--master-of",
    "masters_of",
    multiple=True,
    metavar="TOPIC/PARTITION",
    help="Also the broker that is now the master of this partition's open segment, for example orders/0.",
)
_groups_of = click.option(
    "--group-of",
    "groups_of",
    multiple=True,
    metavar="TOPIC/PARTITION",
    help="Also all brokers of the broker group that now has this partition's open segment, for example orders/0.",
)
_wait = click.option(
    "--wait", "wait_s", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds to wait until ready."
)


@click.group()
def cluster() -> None:
    """A cluster of real broker processes on this machine.

    Each broker has its own loopback address (127.0.0.2, 127.0.0.3, ...). You can kill it, freeze it and cut it off. A
    VICTIM is a broker (g0-1), a broker group (g0) or the coordinator. An END of a cut or of a lag is one of these, or
    clients, brokers or all.
    """


@cluster.command()
@_new_directory
@click.option(
    "--groups",
    type=click.IntRange(1),
    show_default="as many as the directory has; 3 in a new one",
    help="Broker groups.",
)
@click.option(
    "--members",
    type=click.IntRange(2, MEMBERS_MAX),
    show_default="as many as the directory has; 2 in a new one",
    help="Members of each broker group.",
)
@click.option(
    "--coordinator",
    type=click.Choice(["embedded", "etcd"]),
    default="embedded",
    show_default=True,
    help="The embedded coordinator, or the etcd of .tools/bin or of the path.",
)
@click.option(
    "--proxy/--no-proxy",
    default=True,
    show_default=True,
    help="Run all links through a proxy, which can cut and delay them. Without it links are faster.",
)
@click.option("--name", default="local", show_default=True, help="The cluster's name.")
@click.option(
    "--base-port",
    type=click.IntRange(1024, 65435),
    help="First port (default: the one that the directory had, or a free one).",
)
@click.option("--tls", is_flag=True, help="Use TLS everywhere, with new certificates in the directory.")
@click.option(
    "--detach/--foreground",
    default=True,
    show_default=True,
    help="Leave the cluster running in the background, or run it here until Ctrl-C.",
)
@click.option(
    "--broker-option",
    "broker_options",
    multiple=True,
    metavar="WORD",
    help="One more word for each broker's command line. May be given several times.",
)
def up(
    directory: Path,
    groups: int | None,
    members: int | None,
    coordinator: Any,
    proxy: bool,
    name: str,
    base_port: int | None,
    tls: bool,
    detach: bool,
    broker_options: tuple[str, ...],
) -> None:
    """Start a cluster. If the directory has the data of an earlier one, it continues with them."""
    import asyncio

    from seriatim_local import runner  # imports gRPC

    earlier = read_state(directory)  # broker groups that were added have copies, which readers need
    if groups is None:
        groups = GROUP_COUNT if earlier is None else earlier.group_count
    if members is None:
        members = MEMBER_COUNT if earlier is None else earlier.member_count
    config = runner.RunnerConfig(
        directory=str(directory.resolve()),
        groups=groups,
        members=members,
        proxy=proxy,
        coordinator=coordinator,
        name=name,
        base_port=base_port,
        broker_options=broker_options,
        tls=tls,
    )
    count = config.groups * config.members
    logs = f"{directory}/logs"
    if not _wants_json() and not is_running(directory):  # else the runner refuses, and nothing is started
        plural = "s" * (count != 1)
        echo(f"starting {count} broker{plural} and the coordinator; their logs are in {logs}", err=True)
    if detach:
        _print_up(directory, config, runner.detach(config))
        return
    asyncio.run(runner.run(config, report=lambda answer: _print_up(directory, config, answer["bootstrap"])))


def _print_up(directory: Path, config: Any, bootstrap: Any) -> None:
    if _wants_json():
        echo(json.dumps({"directory": str(directory), "bootstrap": bootstrap}))
        return
    echo(f"{config.groups} groups of {config.members} run in {directory}, coordinator: {config.coordinator}")
    echo(f"bootstrap: {','.join(bootstrap)}")
    echo("next: seriatim topic create NAME --partitions 4; seriatim cluster status; seriatim cluster down")


@cluster.command()
@_directory
def status(directory: Path) -> None:
    """Show each process: pid, member run and state, whether it is ready, its cuts and lags, and its troubles.

    Each trouble has its remedy beside it.

    If no cluster runs in the directory, show which one answers at the addresses that other commands would use: that of
    `seriatim standalone`, for instance.
    """
    try:
        found = _ask(directory, "status")
    except PreconditionError:
        if is_running(directory) or not _show_elsewhere(directory):
            raise
        return
    if _wants_json():
        echo(json.dumps(found))
        return
    from seriatim_api.terminal.consoles import SafeConsole

    SafeConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(render_status(found))


def _show_elsewhere(directory: Path) -> bool:
    """Show the cluster that answers at the root command's addresses. Returns whether there is one."""
    addresses = getattr(click.get_current_context().find_root().obj, "bootstrap", ())
    if not addresses:
        return False
    from seriatim_local.brokers import other_clusters  # imports gRPC

    found = other_clusters.find(addresses)
    if found is None:
        return False
    if _wants_json():
        echo(json.dumps({"standalone": found.is_standalone, **asdict(found)}))
        return True
    from seriatim_api.terminal.consoles import SafeConsole

    SafeConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(render_elsewhere(found, directory))
    return True


def render_elsewhere(found: OtherCluster, directory: Path) -> Group:
    """The status of a cluster that these commands did not start."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = "seriatim standalone" if found.is_standalone else f"cluster {found.cluster}"
    others = (
        "It is one process: `seriatim cluster` cannot kill, cut or stop it."
        if found.is_standalone
        else "If `seriatim cluster up` started it in another directory, name that one with --dir. Otherwise `seriatim "
        "cluster` cannot kill, cut or stop it."
    )
    table = Table(box=None, pad_edge=False)
    for column in ("broker", "run", "live", "address"):
        table.add_column(column, justify="right" if column == "run" else "left", no_wrap=True)
    for broker in found.brokers:
        live = Text("yes", style="green") if broker.live else Text("no", style="red")
        table.add_row(broker.name, str(broker.run), live, broker.address)
    return Group(
        Text(f"{title} answers at {found.address}", style="bold"),
        table,
        Text(f"No cluster runs in {directory}. {others}"),
    )


@cluster.command()
@_directory
def bootstrap(directory: Path) -> None:
    """Print the addresses for clients to connect to, with commas between them and nothing else. For programs."""
    from seriatim_local.control import find_running

    found = find_running(directory.resolve()).bootstrap
    echo(json.dumps(list(found)) if _wants_json() else ",".join(found))


def render_status(found: dict[str, Any]) -> Group:
    """The status as a table. It can be read without colours too."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from seriatim_local.brokers.unserved import Unserved  # imports asyncio

    table = Table(box=None, pad_edge=False)
    for column in ("broker", "pid", "run", "state", "ready", "address", "admin"):
        table.add_column(column, justify="right" if column in ("pid", "run") else "left", no_wrap=True)
    table.add_column("cut off from", overflow="fold")
    for broker in found["brokers"]:
        table.add_row(
            broker["name"],
            str(broker["pid"] or "-"),
            str(broker["run"] or "-"),
            Text(broker["state"], style=_STATE_STYLES[broker["state"]]),
            Text("yes", style="green") if broker["ready"] else Text("no", style="red"),
            broker["address"],
            f":{broker['admin'].rpartition(':')[2]}",
            ", ".join(broker["cuts"]) or "-",
        )
    lags = [f"{broker['name']}: {', '.join(broker['delays'])}" for broker in found["brokers"] if broker["delays"]]
    unserved = Unserved(**(found.get("unserved") or {})).line
    state, pending = found["coordinator_state"], found["certificates_pending"]
    more = f"; {pending} death certificates wait for it" if pending else ""
    return Group(
        Text(f"cluster {found['cluster']} in {found['directory']}", style="bold"),
        table,
        Text(f"coordinator {found['coordinator']} ({found['coordinator_kind']}): {state}{more}"),
        *(Text(f"lag of {line}", style="yellow") for line in lags),
        *([Text(unserved, style="yellow")] if unserved else []),
        *(Text(f"{broker['name']}: {line}", style="red") for broker in found["brokers"] for line in broker["troubles"]),
    )


@cluster.command()
@_directory
@_hit
@_masters_of
@_groups_of
@click.option("--signal", "number", default="KILL", show_default=True, help="The signal to send, by name.")
def kill(directory: Path, number: str, **hit: tuple[str, ...]) -> None:
    """Kill processes, all at the same moment."""
    _strike(directory, "kill", hit, signal=number.upper())


@cluster.command()
@_directory
@_hit
@_masters_of
@_groups_of
def stop(directory: Path, **hit: tuple[str, ...]) -> None:
    """Ask processes to end. A broker first hands over its open segments."""
    _strike(directory, "stop", hit)


@cluster.command()
@_directory
@_hit
@_masters_of
@_groups_of
def freeze(directory: Path, **hit: tuple[str, ...]) -> None:
    """Freeze processes where they are (SIGSTOP)."""
    _strike(directory, "freeze", hit)


@cluster.command()
@_directory
@_victims
def thaw(directory: Path, victims: tuple[str, ...]) -> None:
    """Let frozen processes continue (SIGCONT)."""
    _print_faults(_ask(directory, "thaw", victims=victims))


@cluster.command()
@_directory
@_victims
@_wait
def start(directory: Path, victims: tuple[str, ...], wait_s: float) -> None:
    """Start processes that do not run, with the data that they had."""
    _print_faults(_ask(directory, "start", deadline_s=CALL_DEADLINE_S + wait_s, victims=victims, wait_s=wait_s))


@cluster.command()
@_directory
@_victims
@_wait
def restart(directory: Path, victims: tuple[str, ...], wait_s: float) -> None:
    """Kill processes if they run, and start them again."""
    _print_faults(_ask(directory, "restart", deadline_s=CALL_DEADLINE_S + wait_s, victims=victims, wait_s=wait_s))


@cluster.command("add-group")
@_directory
@_wait
def add_group(directory: Path, wait_s: float) -> None:
    """Start one more broker group. Partitions begin to use it at their next switches, or by `seriatim balance`."""
    group = _ask(directory, "add-group", deadline_s=CALL_DEADLINE_S + wait_s, wait_s=wait_s)
    echo(json.dumps({"added": group}) if _wants_json() else f"{group} is added")


@cluster.command("drain-group")
@_directory
@click.argument("group")
@click.option("--wait", "wait_s", type=float, default=60.0, show_default=True, help="Seconds to wait at most.")
def drain_group(directory: Path, group: str, wait_s: float) -> None:
    """Move all open segments and copies off broker group GROUP, and wait until it has none."""
    _ask(directory, "drain-group", deadline_s=CALL_DEADLINE_S + wait_s, group=group, wait_s=wait_s)
    echo(json.dumps({"drained": group}) if _wants_json() else f"{group} is drained: nothing lies on it")


@cluster.command("remove-group")
@_directory
@click.argument("group")
def remove_group(directory: Path, group: str) -> None:
    """Stop the brokers of the drained broker group GROUP, remove it from the cluster, and delete its data."""
    _print_faults(_ask(directory, "remove-group", group=group))


@cluster.command()
@_directory
@click.argument("source", metavar="END")
@click.argument("destination", metavar="END")
@click.option("--one-way", is_flag=True, help="Cut only the direction from the first end to the second.")
@click.option("--reset", is_flag=True, help="Break connections. Without it they stay open and carry nothing.")
def cut(directory: Path, source: str, destination: str, one_way: bool, reset: bool) -> None:
    """Cut the network between two ends, as if a cable were pulled.

    For example `cut g0-0 g0-1`, `cut g1 all`, `cut g0-0 clients`, `cut g0-0 coordinator`.
    """
    _print_faults(_ask(directory, "cut", source=source, destination=destination, one_way=one_way, reset=reset))


if TYPE_CHECKING:
    _ParamType = click.ParamType[float]
else:
    _ParamType = click.ParamType  # in click 8.1 it takes no argument


class _DelayType(_ParamType):
    """The type of a delay or a jitter, in seconds."""

    name = "DELAY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else parse_delay(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@cluster.command()
@_directory
@click.argument("ends", nargs=-1, required=True, metavar="END [END]")
@click.argument("delay_s", type=_DelayType(), metavar="DELAY")
@click.option(
    "--jitter",
    "jitter_s",
    type=_DelayType(),
    default="0ms",
    show_default=True,
    help="5 % of the chunks arrive up to so much later still. Those after them wait.",
)
@click.option("--one-way", is_flag=True, help="Delay only the direction from the first end to the second.")
def lag(directory: Path, ends: tuple[str, ...], delay_s: float, jitter_s: float, one_way: bool) -> None:
    """Delay all bytes between two ends, or on all links of one end, by DELAY each way, as a distance does.

    DELAY is a number and ms or s, at most 10s. It replaces an earlier one; `0ms` ends it, and so does `heal`. For
    example `lag all 25ms`, `lag g0 clients 25ms --jitter 100ms`.
    """
    if len(ends) > 2:
        raise click.UsageError(f"a lag has one END or two, and not {len(ends)}")
    source, destination = ends if len(ends) == 2 else (ends[0], "all")
    asked: dict[str, Any] = {"source": source, "destination": destination, "one_way": one_way}
    _print_faults(_ask(directory, "lag", **asked, delay_s=delay_s, jitter_s=jitter_s))


@cluster.command()
@_directory
@click.argument("source", metavar="[END]", required=False)
@click.argument("destination", metavar="[END]", required=False)
def heal(directory: Path, source: str | None, destination: str | None) -> None:
    """Heal the cuts and the lags between two ends, or all of one end, or all."""
    found = _ask(directory, "heal", source=source, destination=destination)
    _print_faults(found, nothing="nothing was cut or delayed there")


@cluster.command()
@_directory
def faults(directory: Path) -> None:
    """List the faults of the cluster since its start."""
    _print_faults(_ask(directory, "faults"), nothing="nothing yet")


@cluster.command()
@_directory
def down(directory: Path) -> None:
    """End the cluster. The brokers hand over, flush and end, then the coordinator, then the runner. The data stays."""
    from seriatim_local.control import find_running

    try:
        find_running(directory)
    except PreconditionError:
        state = read_state(directory)
        killed = () if state is None else end_leftovers(state)
        if state is None or not killed:
            raise
        write_state(directory, state)
        echo(f"the runner had died; killed what it left behind: {', '.join(entry.name for entry in killed)}")
        return
    _ask(directory, "down", deadline_s=DOWN_DEADLINE_S)
    echo(json.dumps({"down": str(directory)}) if _wants_json() else f"the cluster in {directory} is down")


def _ask(directory: Path, command: str, *, deadline_s: float = CALL_DEADLINE_S, **arguments: Any) -> Any:
    from seriatim_local.control import find_running, request

    return request(find_running(directory.resolve()), command, arguments, deadline_s=deadline_s)


def _strike(directory: Path, command: str, hit: dict[str, tuple[str, ...]], **arguments: Any) -> None:
    """Run a command on the named victims, and on those that now have a partition's open segment."""
    if not any(hit.values()):
        raise click.UsageError("name a VICTIM, or use --master-of or --group-of")
    asked: dict[str, Any] = {**hit, **arguments}
    _print_faults(_ask(directory, command, **asked))


def _print_faults(records: Iterable[dict[str, Any]], *, nothing: str = "nothing to do: it is so already") -> None:
    found = list(records)
    if _wants_json():
        echo(json.dumps(found))
        return
    if not found:
        echo(nothing)
    for record in found:
        done = _VERBS[record["kind"], record["phase"]]
        details = f" ({record['details']})" if record["details"] else ""
        echo(f"{clock_time(record['at'])} {done} {record['victim']}{details}")


def clock_time(at: float) -> str:
    """The local time of a moment, for humans. Records and JSON have seconds of the monotonic clock, as histories do."""
    moment = datetime.now().astimezone() - timedelta(seconds=time.monotonic() - at)
    return moment.strftime("%H:%M:%S.%f")[:-3]


_VERBS: Final = {
    ("kill", "inject"): "killed",
    ("kill", "heal"): "started",
    ("stop", "inject"): "stopped",
    ("stop", "heal"): "started",
    ("freeze", "inject"): "froze",
    ("freeze", "heal"): "thawed",
    ("cut", "inject"): "cut",
    ("cut", "heal"): "healed",
    ("lag", "inject"): "delayed",
    ("lag", "heal"): "no longer delayed:",
    ("end", "inject"): "ended by itself:",
}


def _wants_json() -> bool:
    """The root command's --output, wherever this group is mounted."""
    root = click.get_current_context().find_root()
    return root.params.get("output") == "json"


@click.command()
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), required=True, help="Data directory.")
@click.option(
    "--listen",
    default="127.0.0.1:7400",
    show_default=True,
    help="host:port of the first broker. The next two ports are for the second broker and the coordinator. The system "
    "chooses those for links and for streams of clients. With port 0, the command chooses free ports and prints them.",
)
@click.option("--admin-listen", default="", help="host:port of metrics and health (default: not opened).")
@click.option("--log-level", default="info", help="debug, info, warning or error (default info).")
def standalone(data: Path, listen: str, admin_listen: str, log_level: str) -> None:
    """Run a whole cluster in one process: a coordinator, and one broker group of two members."""
    prepare_process()
    from seriatim_local.serving import run_standalone

    run_standalone(data, listen, admin_listen, log_level)
