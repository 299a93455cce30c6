"""The commands of servers: `seriatim broker`, and `seriatim coordinator` with `rebuild` below it.

Each server runs until SIGTERM or SIGINT, then stops cleanly and exits with 0. If it cannot start, it prints why and
what to do, and exits with 2.

This module has only the options, because `seriatim --help` loads it. The code that runs a server (`serving`) takes a
second to import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from .process.start import prepare_process

_FILE: Final = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--cluster", help="Name of the cluster.")
@click.option("--group", help="Name of the broker group.")
@click.option("--slot", type=int, help="Number of this member in its broker group, from 0 to 15.")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory.")
@click.option("--listen", help="host:port for clients and other brokers.")
@click.option("--advertise", help="host:port at which clients reach this broker (default: --listen).")
@click.option("--coordinator", help="host:port[,host:port...] of etcd or the embedded coordinator.")
@click.option(
    "--peers",
    help="name=host:port[,...]: addresses of other brokers, in place of those that they registered (default: none).",
)
@click.option("--admin-listen", help="host:port of metrics and health (default: not opened).")
@click.option(
    "--replace-disk",
    is_flag=True,
    default=None,
    help="Take the slot of a disk that is lost for good. Only if the old process has ended, and with an empty --data.",
)
@click.option("--log-level", help="debug, info, warning or error (default info).")
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file with settings.")
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any other setting. May be given several times."
)
def broker(config: Path | None, assignments: tuple[str, ...], **flags: Any) -> None:
    """Run one broker."""
    prepare_process()
    from .serving import run_broker

    run_broker(config, assignments, flags)


@click.group(invoke_without_command=True)
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Data directory.")
@click.option("--listen", help="host:port of the etcd API.")
@click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error.")
@click.option("--tls-cert", type=_FILE, help="The coordinator's certificate (PEM). Default: plain text, without TLS.")
@click.option("--tls-key", type=_FILE, help="The private key of --tls-cert (PEM).")
@click.option("--tls-ca", type=_FILE, help="The CA whose certificates brokers must show (PEM).")
@click.pass_context
def coordinator(
    ctx: click.Context,
    data: Path | None,
    listen: str | None,
    log_level: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
) -> None:
    """Run the embedded coordinator: the part of etcd that Seriatim uses, for one machine.

    It needs --data and --listen. The command `rebuild` below repairs a coordinator, embedded or etcd, that lost data.
    """
    files = {"--data": data, "--listen": listen, "--tls-cert": tls_cert, "--tls-key": tls_key, "--tls-ca": tls_ca}
    if ctx.invoked_subcommand is not None:
        given = [name for name, value in files.items() if value is not None]
        if given:
            raise click.UsageError(
                f"{given[0]} must come after {ctx.invoked_subcommand}; leave it out if that command does not have it"
            )
        return
    for name in ("--data", "--listen"):
        if files[name] is None:
            raise click.UsageError(f"Missing option '{name}'.")
    _check_come_together(tls_cert, tls_key, tls_ca)
    assert data is not None
    assert listen is not None
    prepare_process()
    from seriatim_api.network.tls import TlsFiles

    run_coordinator = _embedded_coordinator()
    run_coordinator(data, listen, log_level, TlsFiles(tls_ca, tls_cert, tls_key) if tls_ca is not None else None)


def _embedded_coordinator() -> Any:
    """What runs the embedded coordinator. The package seriatim-local has it, and a production broker is without it."""
    from importlib.metadata import entry_points

    for found in entry_points(group="seriatim.coordinators", name="embedded"):
        return found.load()
    raise click.UsageError(
        "the embedded coordinator belongs to the package seriatim-local, which is not installed here. "
        "Install it (in a clone: pip install ./api ./broker ./local), or run etcd."
    )


def _check_come_together(tls_cert: Path | None, tls_key: Path | None, tls_ca: Path | None) -> None:
    if len({file is None for file in (tls_cert, tls_key, tls_ca)}) > 1:
        raise click.UsageError("--tls-cert, --tls-key and --tls-ca come together: give all three, or none")


@coordinator.command()
@click.option("--cluster", required=True, help="Name of the cluster.")
@click.option("--coordinator", required=True, help="host:port[,host:port...] of the coordinator that lost decisions.")
@click.option(
    "--brokers",
    required=True,
    help="name=host:port[,...]: all brokers of the cluster. The command asks each of them what it knows.",
)
@click.option("--tls-ca", type=_FILE, help="The CA of the brokers (PEM). Default: plain text.")
@click.option("--tls-cert", type=_FILE, help="The certificate that this command shows to the brokers (PEM).")
@click.option("--tls-key", type=_FILE, help="The private key of --tls-cert (PEM).")
@click.option("--coordinator-tls-ca", type=_FILE, help="The CA of the coordinator (PEM). Default: plain text.")
@click.option(
    "--coordinator-tls-cert", type=_FILE, help="The certificate that this command shows to the coordinator (PEM)."
)
@click.option("--coordinator-tls-key", type=_FILE, help="The private key of --coordinator-tls-cert (PEM).")
@click.option(
    "--without-group",
    "without_groups",
    multiple=True,
    metavar="GROUP",
    help="Write although no member of this broker group answered. Messages in segments that only its members know are "
    "lost. May be given several times. Default: refuse to write.",
)
@click.option("--yes", is_flag=True, help="Write. Default: only print what the command would write.")
def rebuild(
    cluster: str,
    coordinator: str,
    brokers: str,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    coordinator_tls_ca: Path | None,
    coordinator_tls_cert: Path | None,
    coordinator_tls_key: Path | None,
    without_groups: tuple[str, ...],
    yes: bool,
) -> None:
    """Write the records that a restored or emptied coordinator has lost, from what the brokers know.

    Exits with 0 if nothing is left to do, with 1 if something is left to do, and with 2 if the command failed.
    """
    _check_come_together(tls_cert, tls_key, tls_ca)
    if (coordinator_tls_cert is None) != (coordinator_tls_key is None):
        raise click.UsageError("--coordinator-tls-cert and --coordinator-tls-key come together: give both, or none")
    if coordinator_tls_cert is not None and coordinator_tls_ca is None:
        raise click.UsageError("--coordinator-tls-ca is missing: the CA of the coordinator's certificate")
    pairs = [pair.partition("=") for pair in brokers.split(",")]
    if not all(name and address for name, _, address in pairs):
        raise click.UsageError("--brokers takes name=host:port[,name=host:port...]")
    prepare_process()
    from seriatim_api.network.tls import TlsFiles

    from .process.rebuild_command import Request, run

    request = Request(
        cluster,
        tuple(coordinator.split(",")),
        {name: address for name, _, address in pairs},
        TlsFiles(tls_ca, tls_cert, tls_key) if tls_ca is not None else None,
        TlsFiles(coordinator_tls_ca, coordinator_tls_cert, coordinator_tls_key) if coordinator_tls_ca else None,
        frozenset(without_groups),
        yes,
    )
    raise SystemExit(run(request))


@coordinator.command()
@click.option("--file", "file", required=True, type=_FILE, help="The snapshot, as `etcdctl snapshot save` wrote it.")
@click.option(
    "--to",
    required=True,
    help="Where snapshots are kept: a directory, or s3://BUCKET/PREFIX (with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
    "AWS_REGION and AWS_ENDPOINT_URL in the environment).",
)
@click.option(
    "--keep", default=14, show_default=True, type=click.IntRange(1, 10_000), help="How many of the newest stay there."
)
def keep_snapshot(file: Path, to: str, keep: int) -> None:
    """Store a snapshot of etcd under its time, and remove the oldest ones."""
    from datetime import UTC, datetime

    from .process.snapshot_command import keep as keep_it
    from .process.snapshot_command import store_of

    try:
        name, removed = keep_it(file, store_of(to), keep, datetime.now(UTC))
    except OSError as exc:
        raise click.ClickException(f"the snapshot is not stored: {exc}") from exc
    click.echo(f"stored {name} in {to}" + (f", removed {', '.join(removed)}" if removed else ""))


@coordinator.command()
@click.option("--from", "source", required=True, help="Where snapshots are kept, as in `keep-snapshot --to`.")
@click.option("--name", default="", help="The name of the snapshot. Default: the newest.")
@click.option("--file", "file", required=True, type=_FILE, help="Where to write it.")
@click.option(
    "--set-aside",
    type=click.Path(path_type=Path, file_okay=False),
    help="A data directory of etcd, in whose place it is to be restored: it gets another name.",
)
def get_snapshot(source: str, name: str, file: Path, set_aside: Path | None) -> None:
    """Get a snapshot of etcd that `keep-snapshot` stored, for `etcdutl snapshot restore`."""
    from datetime import UTC, datetime

    from .process.snapshot_command import get, store_of

    try:
        found, aside = get(store_of(source), name, file, set_aside, datetime.now(UTC))
    except OSError as exc:
        raise click.ClickException(f"no snapshot was got from {source}: {exc}") from exc
    click.echo(f"got {found}" + (f"; what was in {set_aside} is in {aside}" if aside is not None else ""))
