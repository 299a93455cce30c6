"""What the root command's options mean to every sub-command: where the brokers are, and how to print.

The default address is the local cluster's that runs under the current directory, found by its state file: the file
and its lock are the whole of what this package knows of the one that runs clusters.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

BOOTSTRAP_DEFAULT: Final = ("127.0.0.1:7400",)
"""Where `seriatim standalone` listens unless told otherwise."""
CLUSTER_DIRECTORY_DEFAULT: Final = ".local/cluster"
_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The options about TLS.

    Attributes:
        ca: File of the CA's certificates; plain text without it.
        cert: File of the client's certificate, or none.
        key: File of its private key, or none.
        server_name: The name to look for in the brokers' certificates, or the one that is dialed.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The root command's options.

    Attributes:
        bootstrap: Where to begin, `host:port`; any one that answers is enough.
        as_json: Print JSON for programs, not text for people.
        tls: How brokers are spoken to with TLS; None for plain text.
    """

    bootstrap: tuple[str, ...]
    as_json: bool
    tls: TlsOptions | None = None

    @property
    def console(self) -> Console:
        """For what people look at; without colour where there is no terminal, or NO_COLOR is set."""
        from rich.console import Console  # takes longer to load than most commands to run

        return Console(highlight=False)

    @property
    def notes(self) -> Console:
        """For progress and notes, on stderr."""
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    def emit(self, value: object) -> None:
        """Print a JSON value on a line of its own."""
        click.echo(json.dumps(value, ensure_ascii=False))


def resolve(given: str | None, tls: TlsOptions) -> tuple[tuple[str, ...], TlsOptions | None]:
    """Where to begin, and how to speak TLS there: as the options say, else as the local cluster that runs here does.

    Raises:
        click.UsageError: Not a list of `host:port`; an option about TLS without those that belong to it.
    """
    asked = _checked(tls)
    if given is not None:
        return _addresses(given), asked
    directory = Path(os.environ.get("SERIATIM_CLUSTER_DIR", CLUSTER_DIRECTORY_DEFAULT))
    bootstrap, found = local_cluster(directory)
    return bootstrap or BOOTSTRAP_DEFAULT, asked or found


def _checked(tls: TlsOptions) -> TlsOptions | None:
    if tls.ca is None:
        if tls.cert or tls.key or tls.server_name:
            raise click.UsageError("TLS begins with --tls-ca: the file with the certificates of the brokers' CA")
        return None
    if (tls.cert is None) != (tls.key is None):
        raise click.UsageError("--tls-cert and --tls-key come together")
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
    """Where the clients of the cluster that runs in `directory` begin, and its TLS; nothing if none runs."""
    try:
        with (directory / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # its runner lives
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
