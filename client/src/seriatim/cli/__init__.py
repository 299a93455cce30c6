"""The command `seriatim`: what a person does with a cluster from a terminal.

It uses the client's public names only. Commands that belong to other packages (`broker`, `coordinator`, `standalone`,
`cluster`) are found through the entry-point group `seriatim.commands`; nothing of them is imported here.
"""

from seriatim.cli._root import main

__all__ = ["main"]
