"""What a local cluster needs of a network of its own, where it does not run on loopback addresses behind the proxy.

Whoever makes such a network (the fault suite makes one of kernel namespaces) also removes it, after the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from seriatim_broker.local.names import Path
from seriatim_broker.local.plan import Hosts
from seriatim_broker.local.proxy import CutMode


class Network(Protocol):
    """Machines with addresses, and links between them that can be cut."""

    @property
    def hosts(self) -> Hosts:
        """The address of each process; this process reaches all of them."""
        ...

    def command(self, process: str, argv: Sequence[str]) -> Sequence[str]:
        """The argument vector that runs `argv` on the machine of that broker, or of the coordinator. It becomes that
        program, and does not merely start it: signals reach it, and its end is seen."""
        ...

    async def cut(self, paths: Iterable[Path], mode: CutMode) -> None:
        """Let nothing through any more; or (`reset`) break the connections that there are."""
        ...

    async def heal(self, paths: Iterable[Path]) -> None:
        """Let everything through again."""
        ...
