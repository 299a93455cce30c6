"""Ports for the servers that a test starts. No other program takes such a port before the server binds it.

If a test lets the kernel pick a port (it binds a socket to port 0 and closes it), the kernel may give this port to any
outgoing connection a moment later. The ports of this module are below the range that the kernel uses for that. Each
process first reserves a whole range, as local clusters do. So test processes that run at the same time have different
ports.
"""

from __future__ import annotations

from collections import deque

from seriatim_local.layout.plan import PORT_COUNT, Address
from seriatim_local.layout.ports import PortRange, first_taken

_reserved: list[PortRange] = []
_ports: deque[int] = deque()
"""The ports of the reserved ranges. The port that was handed out longest ago is the first."""


def free_port() -> int:
    """Return a port on which no server listens. It is handed out again only after all other ports of its range.

    Raises:
        PreconditionError: Other processes have reserved every range.
    """
    for _ in range(len(_ports)):
        port = _ports.popleft()
        _ports.append(port)
        if first_taken([Address("127.0.0.1", port)]) is None:
            return port
    above = _reserved[-1].base if _reserved else 0
    _reserved.append(PortRange.reserve(above=above))
    base = _reserved[-1].base
    _ports.extendleft(reversed(range(base, base + PORT_COUNT)))
    return free_port()


def free_ports(count: int) -> list[int]:
    """Return `count` ports in a row, found as in `free_port`, because some servers count their ports from the first
    one.
    """
    assert count <= PORT_COUNT, f"a range has {PORT_COUNT} ports"
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        if found and port != found[-1] + 1:
            found.clear()
        found.append(port)
    return found
