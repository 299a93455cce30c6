"""The subcommands that the operator adds to `seriatim`."""

from __future__ import annotations

import os
from pathlib import Path

import click
from seriatim_api.imports import left_out


@click.group()
def operator() -> None:
    """Run the Kubernetes operator, write its definitions, and do what the chart's hooks need."""


@operator.command()
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Directory to write to, one file for each kind."
)
@click.option("--check", is_flag=True, help="Write nothing. Exit status 1 if a file in --output is not current.")
def crds(output: Path | None, check: bool) -> None:
    """Print the definitions of our kinds (CustomResourceDefinitions), for `kubectl apply -f -`."""
    # imported here, because it imports pydantic, and `seriatim --help` imports this module for its one line
    from .spec.crd.files import definitions, stale_definitions, write_definitions

    if output is None:
        click.echo("---\n".join(definitions().values()), nl=False)
    elif check:
        stale = stale_definitions(output)
        if stale:
            raise click.ClickException(f"not current in {output}: {', '.join(stale)}; `make crds` rewrites them")
    else:
        for path in write_definitions(output):
            click.echo(path)


@operator.command()
def run() -> None:
    """Run the operator until SIGTERM or SIGINT. Its settings are SERIATIM_OPERATOR_* variables."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # a line of gRPC for each failed call would stand between ours
    with left_out("rich"):  # structlog would import it for tracebacks, and it needs 4 MB
        from .running import run_operator  # imported here, because it imports every library and `--help` needs none

    run_operator()


@operator.command()
@click.option("--force", is_flag=True, help="Allow the uninstall although clusters are there.")
@click.option("--takes-etcd", is_flag=True, help="The release contains the clusters' etcd.")
@click.option("--release", default="RELEASE", help="Name of the release, for the advice.")
@click.option("--revision", default="REVISION", help="Revision of the release, if Helm's records do not report it.")
@click.option("--namespace", default="", help="Namespace of the release, with Helm's records of it.")
def before_uninstall(force: bool, takes_etcd: bool, release: str, revision: str, namespace: str) -> None:
    """Check whether the operator may be uninstalled, for the chart's hook. Exit status 1 while clusters need it."""
    from .uninstalling import before_uninstall  # as above

    why_not = before_uninstall(
        force=force, takes_etcd=takes_etcd, release=release, revision=revision, namespace=namespace
    )
    if why_not:
        raise click.ClickException(why_not)


@operator.command()
@click.option("--name", required=True, help="Name of the member, which is its pod's name.")
@click.option("--namespace", required=True, help="Namespace of the pod.")
@click.option("--register", required=True, help="Name of the ConfigMap that notes which members have begun.")
@click.option(
    "--settings",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with etcd's settings, as YAML.",
)
@click.option(
    "--volume", required=True, type=click.Path(path_type=Path, file_okay=False), help="Directory of the member's disk."
)
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write the settings to with which the member starts.",
)
@click.option(
    "--tls",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory with the certificate for calls to the other members.",
)
def etcd_member(
    name: str, namespace: str, register: str, settings: Path, volume: Path, output: Path, tls: Path | None
) -> None:
    """Prepare the start of a member of the chart's etcd: on its log, as a new member, or in place of a lost disk."""
    from .etcd.starting import Place, SettingsRefusedError, prepare_member  # as above

    try:
        prepare_member(Place(name, settings, volume, output, tls), namespace, register)
    except SettingsRefusedError as exc:
        raise click.ClickException(str(exc)) from exc


@operator.command()
@click.option("--name", required=True, help="Name of etcd's StatefulSet.")
@click.option("--namespace", required=True, help="Namespace of the release.")
@click.option("--members", required=True, type=int, help="How many members it has.")
def remove_stranded_etcd(name: str, namespace: str, members: int) -> None:
    """Remove an etcd of the chart that never got a volume, before an upgrade recreates it in another class."""
    from .etcd.removing import remove_stranded_etcd  # as above

    remove_stranded_etcd(namespace, name, members)


@operator.command()
@click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with manifests, as YAML.",
)
@click.option("--groups-if-new", type=int, default=3, help="Broker groups of a new BrokerCluster that names no number.")
@click.option("--remove-no-groups", is_flag=True, help="Leave a BrokerCluster at least the broker groups that it has.")
def apply(path: Path, groups_if_new: int, remove_no_groups: bool) -> None:
    """Apply manifests with server-side apply; the chart's hook does so with its BrokerCluster."""
    from .applying import apply_file  # as above
    from .cluster.kube import KubeError

    try:
        apply_file(path, groups_if_new=groups_if_new, remove_no_groups=remove_no_groups)
    except KubeError as exc:
        raise click.ClickException(str(exc)) from exc
