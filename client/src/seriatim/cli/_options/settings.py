"""The root command's options, which every sub-command uses: the brokers' addresses, TLS, and the form of the output.

By default, the addresses are those of the local cluster that runs under the current directory, or under one above it.
The command finds it by its state file and its lock. This package knows nothing else about the package that runs
clusters.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from seriatim_api.terminal.safe_text import echo, safe_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH: Final = 1_000_000
"""Columns of the output if it goes into a file or a pipe: more than any line has, so no line is wrapped or cut."""
BOOTSTRAP_DEFAULT: Final = ("127.0.0.1:7400",)
"""The default address of `seriatim standalone`."""
CLUSTER_DIRECTORY_DEFAULT: Final = ".local/cluster"
_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The options about TLS.

    Attributes:
        ca: The file with the CA's certificates; None: plain text.
        cert: The file with the client's certificate; None: none.
        key: The file with its private key; None: none.
        server_name: The name to look for in the brokers' certificates; None: the name that is dialed.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The root command's options.

    Attributes:
        bootstrap: Addresses of brokers, `host:port`. It is enough if one of them answers.
        as_json: Whether to print JSON for programs instead of human-readable text.
        tls: The files for TLS; None: plain text.
        origin: If no option named the addresses and no local cluster was found: where the command looked, for humans.
    """

    bootstrap: tuple[str, ...]
    as_json: bool
    tls: TlsOptions | None = None
    origin: str = ""

    @property
    def console(self) -> Console:
        """The console for output to users. It has no colours if stdout is not a terminal, or if NO_COLOR is
        set."""
        from seriatim_api.terminal.consoles import (
            SafeConsole,
        )  # imported here because that takes longer than most commands

        return SafeConsole(highlight=False)

    @property
    def notes(self) -> Console:
        """The console for progress and notes, on stderr."""
        from seriatim_api.terminal.consoles import SafeConsole

        return SafeConsole(stderr=True, highlight=False)

    def show(self, table: RenderableType) -> None:
        """Print a table. In a file or a pipe its lines are neither wrapped nor cut, and do not end with blanks."""
        console = self.console
        if console.is_terminal:
            console.print(table)
            return
        console.width = PIPE_WIDTH
        with console.capture() as captured:
            console.print(table)
        for line in captured.get().splitlines():
            click.echo(line.rstrip())  # made safe by the console

    def say(self, text: str) -> None:
        """Print a line for humans, as it is."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def emit(self, value: object) -> None:
        """Print a JSON value on one line."""
        echo(safe_json(value))

    def tell(self, fields: object, text: str) -> None:
        """Print what was done: a JSON value, or a line for humans."""
        if self.as_json:
            self.emit(fields)
        else:
            echo(text)


def resolve(given: str | None, tls: TlsOptions) -> tuple[tuple[str, ...], TlsOptions | None, str]:
    """The addresses and TLS files from the options. Without `--bootstrap`, those of the local cluster that runs here.

    The last value is `Settings.origin`.

    Raises:
        click.UsageError: `given` is not a list of `host:port`, or an option about TLS lacks one that belongs to it.
    """
    asked = _checked(tls)
    if given is not None:
        return _addresses(given), asked, ""
    named = os.environ.get("SERIATIM_CLUSTER_DIR")
    for directory in [Path(named)] if named else cluster_directories(Path.cwd()):
        bootstrap, found = local_cluster(directory)
        if bootstrap:
            return bootstrap, asked or found, ""
    where = f"in {named}" if named else f"in {Path.cwd() / CLUSTER_DIRECTORY_DEFAULT}, or below a directory above it"
    origin = (
        f"no local cluster runs {where}, so {BOOTSTRAP_DEFAULT[0]} was asked. Start one with `seriatim cluster up`, go "
        "to its directory, or name the brokers with --bootstrap"
    )
    return BOOTSTRAP_DEFAULT, asked, origin


def cluster_directories(here: Path) -> list[Path]:
    """Where a local cluster may be: below `here`, or below a directory above it that belongs to the same user."""
    above = itertools.takewhile(lambda directory: directory.stat().st_uid == os.geteuid(), here.parents)
    return [directory / CLUSTER_DIRECTORY_DEFAULT for directory in (here, *above)]


def _checked(tls: TlsOptions) -> TlsOptions | None:
    if tls.ca is None:
        if tls.cert or tls.key or tls.server_name:
            raise click.UsageError("TLS needs --tls-ca: the file with the certificates of the brokers' CA")
        return None
    if (tls.cert is None) != (tls.key is None):
        raise click.UsageError("give both of --tls-cert and --tls-key, or none of them")
    return tls


def _addresses(given: str) -> tuple[str, ...]:
    addresses = tuple(word.strip() for word in given.split(",") if word.strip())
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
            raise click.UsageError(f"--bootstrap is a list of HOST:PORT, and {address!r} is not one")
    if not addresses:
        raise click.UsageError("--bootstrap is empty")
    return addresses


def local_cluster(directory: Path) -> tuple[tuple[str, ...], TlsOptions | None]:
    """The addresses and the TLS files of the cluster that runs in `directory`; empty and None if none runs."""
    try:
        with (directory / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # another process holds the lock, so the cluster's runner lives
        try:
            state = json.loads((directory / "cluster.json").read_text())
            return tuple(str(address) for address in state["bootstrap"]), _tls_of(state)
        except (OSError, ValueError, KeyError, TypeError):
            return (), None
    except OSError:
        return (), None
    return (), None


def _tls_of(state: dict[str, str]) -> TlsOptions | None:
    directory = state.get("tls_directory", "")
    return (
        TlsOptions(*(f"{directory}/{name}" for name in ("ca.crt", "client.crt", "client.key"))) if directory else None
    )
