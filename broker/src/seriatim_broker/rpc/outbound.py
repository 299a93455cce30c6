"""Calls from one broker to another on behalf of a client: to the controller, to a server, to a master."""

from __future__ import annotations

from typing import Any

import grpc
from seriatim_api.errors import NotServingError, SeriatimError
from seriatim_api.status import from_status
from seriatim_api.v1 import broker_pb2_grpc

from ..runtime.directory import Directory
from .limits import CHANNEL_OPTIONS

FORWARDED_KEY = "seriatim-forwarded"
"""Metadata of a call that another broker passed on: it is answered here, never passed on again."""


class BrokerCalls:
    """Channels to other brokers, made when first needed and kept."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def admin(self, broker: str, method: str, request: Any, deadline_s: float) -> Any:
        """Call a method of `Admin` at another broker, marked as forwarded.

        Raises:
            SeriatimError: What the other broker answered, or that it did not.
        """
        address = self._directory.peer_address(broker)
        if address is None:
            raise NotServingError(f"the address of {broker} is not known", broker=broker)
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        stub = broker_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        call = getattr(stub, method)
        try:
            return await call(request, timeout=deadline_s, metadata=((FORWARDED_KEY, "1"),))
        except grpc.aio.AioRpcError as exc:
            raise _error_of(exc) from exc

    async def close(self) -> None:
        """Give back all channels."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


def _error_of(exc: grpc.aio.AioRpcError) -> SeriatimError:
    metadata = [(key, value) for key, value in exc.trailing_metadata() or ()]
    return from_status(exc.code(), exc.details(), metadata)


def is_forwarded(context: Any) -> bool:
    """Whether another broker passed this call on."""
    return any(key == FORWARDED_KEY for key, _ in context.invocation_metadata() or ())
