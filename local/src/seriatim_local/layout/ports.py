"""Finds and reserves a range of ports that no other program on this machine uses.

Brokers must keep their ports over restarts, so the kernel cannot choose them. To reserve a range, a cluster binds a
socket name in the kernel's abstract namespace. The kernel frees the name when the process ends, also after a crash.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from seriatim_api.errors import PreconditionError

from seriatim_local.layout.plan import PORT_COUNT, Address

BASE_PORT_FIRST: Final = 7000
BASE_PORT_LAST: Final = 31900
"""Below the range from which Linux takes the ports of outgoing connections (32768 and up)."""


class PortRange:
    """`PORT_COUNT` (100) ports from `base` on. They are reserved, on all loopback addresses, against other clusters.

    Only programs that use this class respect the reservation.
    """

    def __init__(self, base: int, reservation: socket.socket) -> None:
        self.base = base
        self._reservation = reservation

    @classmethod
    def reserve(cls, base: int | None = None, *, above: int = 0) -> PortRange:
        """Reserve the range that begins at `base`; without `base`, the first free range above `above`.

        Raises:
            PreconditionError: Another cluster has this range, or there is no free one.
        """
        bases = range(BASE_PORT_FIRST, BASE_PORT_LAST + 1, PORT_COUNT) if base is None else (base,)
        for candidate in bases:
            if candidate <= above:
                continue
            reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                reservation.bind(f"\0seriatim-local-cluster-{candidate}")
            except OSError:
                reservation.close()
                continue
            return cls(candidate, reservation)
        raise PreconditionError(
            f"another local cluster runs on the ports from {base} on: stop it, or choose another --base-port"
            if base is not None
            else "there is no range of ports left for a local cluster"
        )

    @classmethod
    def reserve_free(cls, host: str, count: int) -> PortRange:
        """Reserve the first range of which the first `count` ports are free on `host`.

        Raises:
            PreconditionError: There is no such range, or this machine has no such address.
        """
        above = 0
        while True:
            found = cls.reserve(above=above)
            try:
                if first_taken(Address(host, found.base + number) for number in range(count)) is None:
                    return found
            except BaseException:
                found.release()
                raise
            found.release()
            above = found.base

    def release(self) -> None:
        """Give the range back."""
        self._reservation.close()

    def __enter__(self) -> PortRange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def first_taken(addresses: Iterable[Address]) -> Address | None:
    """The first address that cannot be bound now; None if all can.

    Raises:
        PreconditionError: This machine has no such address, or this process may not bind it.
    """
    for address in addresses:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As servers do, so that old connections in TIME_WAIT do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address.host, address.port))
            except OSError as error:
                if isinstance(error, PermissionError) or error.errno == 99:
                    raise PreconditionError(f"this machine cannot bind {address}: {error.strerror}") from error
                return address
    return None
