"""A network for a local cluster that does not run on loopback addresses behind the proxy.

The fault suite makes one of kernel namespaces. The code that makes such a network also removes it, after the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from seriatim_local.layout.names import Path
from seriatim_local.layout.plan import Hosts
from seriatim_local.links.proxy import CutMode


class Network(Protocol):
    """Machines with addresses, and links between them that can be cut."""

    @property
    def hosts(self) -> Hosts:
        """The address of each process. This process must reach all of them."""
        ...

    def command(self, process: str, argv: Sequence[str]) -> Sequence[str]:
        """The argument vector that runs `argv` on the machine of this broker or of the coordinator.

        The started process must become that program, and not only start it. So signals reach the program, and the
        runner sees its end.
        """
        ...

    async def cut(self, paths: Iterable[Path], mode: CutMode) -> None:
        """Let nothing through in these directions. With mode `reset`, break their connections too."""
        ...

    async def heal(self, paths: Iterable[Path]) -> None:
        """Let everything through again in these directions."""
        ...
