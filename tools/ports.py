"""Ports for the servers that a test starts, which nothing else takes before the server binds them.

A port that the kernel picked (a socket bound to port 0, then closed) can be given to any outgoing connection a moment
later. These ports lie below the kernel's range for that, and a process reserves a whole range before it uses one of
it, as local clusters do: test processes that run beside each other have different ports.
"""

from __future__ import annotations

from collections import deque

from seriatim_local.plan import PORT_COUNT, Address
from seriatim_local.ports import PortRange, first_taken

_reserved: list[PortRange] = []
_ports: deque[int] = deque()
"""Ports of the reserved ranges; the one that was handed out longest ago comes first."""


def free_port() -> int:
    """Return a port that nothing listens on; it is handed out again only after all others of its range.

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
    """Return `count` ports in a row, as `free_port` does: some servers count their ports from the first one."""
    assert count <= PORT_COUNT, f"a range has {PORT_COUNT} ports"
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        if found and port != found[-1] + 1:
            found.clear()
        found.append(port)
    return found
