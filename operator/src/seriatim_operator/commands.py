"""The subcommands that the operator adds to `seriatim`."""

from __future__ import annotations

import click


@click.group()
def operator() -> None:
    """The Kubernetes operator and what belongs to it."""
