"""`python -m seriatim_broker`: the server commands without the client's command line."""

from __future__ import annotations

import click

from .commands import broker, coordinator


@click.group()
def main() -> None:
    """Seriatim's servers."""


for _command in (broker, coordinator):
    main.add_command(_command)

if __name__ == "__main__":
    main(prog_name="seriatim")
