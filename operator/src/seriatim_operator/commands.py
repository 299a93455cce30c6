"""The subcommands that the operator adds to `seriatim`."""

from __future__ import annotations

from pathlib import Path

import click
from seriatim_api.imports import left_out

from .spec.crd.files import definitions, stale_definitions, write_definitions


@click.group()
def operator() -> None:
    """The Kubernetes operator and what belongs to it."""


@operator.command()
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Write one file a kind there.")
@click.option("--check", is_flag=True, help="Write nothing; exit status 1 if a file in --output is not current.")
def crds(output: Path | None, check: bool) -> None:
    """The definitions of our kinds (CustomResourceDefinitions), for `kubectl apply -f -`."""
    if output is None:
        click.echo("---\n".join(definitions().values()), nl=False)
    elif check:
        stale = stale_definitions(output)
        if stale:
            raise click.ClickException(f"not current in {output}: {', '.join(stale)}; `make crds` writes them anew")
    else:
        for path in write_definitions(output):
            click.echo(path)


@operator.command()
def run() -> None:
    """Reconcile until stopped; told by SERIATIM_OPERATOR_* variables."""
    with left_out("rich"):  # structlog would draw tracebacks with it: 4 MB
        from .running import run_operator  # it imports every library, and help should not

    run_operator()


@operator.command()
@click.option("--force", is_flag=True, help="Let it go although clusters are there.")
@click.option("--takes-etcd", is_flag=True, help="The release that goes has the clusters' etcd in it.")
@click.option("--release", default="RELEASE", help="Its name, for the advice.")
@click.option("--revision", default="REVISION", help="Of the release, likewise.")
def before_uninstall(force: bool, takes_etcd: bool, release: str, revision: str) -> None:
    """Whether the operator may be taken away; the chart's hook asks. Exit status 1 while clusters need it."""
    from .uninstalling import before_uninstall  # as above

    why_not = before_uninstall(force=force, takes_etcd=takes_etcd, release=release, revision=revision)
    if why_not:
        raise click.ClickException(why_not)


@operator.command()
@click.option("--name", required=True, help="Of the member: its pod's.")
@click.option("--namespace", required=True, help="Of the pod.")
@click.option("--register", required=True, help="The ConfigMap in which members that have begun are written down.")
@click.option("--settings", required=True, type=click.Path(path_type=Path, dir_okay=False), help="etcd's, as YAML.")
@click.option("--volume", required=True, type=click.Path(path_type=Path, file_okay=False), help="The member's disk.")
@click.option("--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="What it starts with.")
@click.option("--tls", type=click.Path(path_type=Path, file_okay=False), help="Certificate to ask the others with.")
def etcd_member(
    name: str, namespace: str, register: str, settings: Path, volume: Path, output: Path, tls: Path | None
) -> None:
    """Before a member of the chart's etcd starts: on its log, anew, or in the place of one whose disk is lost."""
    from .etcd.starting import Place, prepare_member  # as above

    prepare_member(Place(name, settings, volume, output, tls), namespace, register)


@operator.command()
@click.option("--file", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), help="YAML.")
def apply(path: Path) -> None:
    """Apply manifests on the server's side; the chart's hook does so with its BrokerCluster."""
    from .applying import apply_file  # as above
    from .cluster.kube import KubeError

    try:
        apply_file(path)
    except KubeError as exc:
        raise click.ClickException(str(exc)) from exc
