"""The command `seriatim`: a person uses a cluster from a terminal.

It uses only the client's public names. It finds commands of other packages (`broker`, `coordinator`, `standalone`,
`cluster`) through the entry-point group `seriatim.commands`, and imports nothing of these packages.
"""

from seriatim.cli._root import main

__all__ = ["main"]
