"""Renewals of a lease on one stream, which stays open between them.

A stream for each renewal costs the broker and the coordinator a new call every second: some thirty wake-ups of gRPC's
threads.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from aetcd.rpc import rpc_pb2
from seriatim_api.errors import CoordinatorUnavailableError

from seriatim_broker.adapters.etcd_channel import Endpoint, EndpointPool

PATIENCE_S: Final = 0.15
"""After this long without an answer the stream is given up, because a dead member of etcd never answers."""


class RenewalStream:
    """The stream of one broker. One renewal at a time uses it."""

    def __init__(self, pool: EndpointPool) -> None:
        self._pool = pool
        self._endpoint: Endpoint | None = None  # of the stream
        self._call: Any = None
        self._is_used = False

    async def renew(self, lease: int, end_s: float) -> int | None:
        """Renew a lease, and return the seconds that it has left, 0 if it has ended.

        None if the stream has no answer within `PATIENCE_S`: it is given up then, and the caller has to ask without it.
        The lease may have been renewed.

        Args:
            lease: The lease.
            end_s: When to stop waiting, in seconds of the event loop's clock.

        Raises:
            PreconditionError: The certificates cannot be read.
        """
        if self._is_used:
            return None
        self._is_used = True
        answer = None
        try:
            async with asyncio.timeout_at(min(end_s, asyncio.get_running_loop().time() + PATIENCE_S)):
                answer = await self._ask(rpc_pb2.LeaseKeepAliveRequest(ID=lease))
        except (TimeoutError, grpc.aio.AioRpcError, CoordinatorUnavailableError):
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The caller did not cancel: the channel was closed during the call.
        finally:
            self._is_used = False
            if answer is None:
                self._give_up()
        return None if answer is None else max(0, int(answer.TTL))

    def close(self) -> None:
        """End the stream."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _ask(self, request: Any) -> Any:
        if self._call is not None and (self._call.done() or not self._pool.holds(self._endpoint)):
            self._give_up()
        if self._call is None:
            self._endpoint = await self._pool.ready(asyncio.get_running_loop().time() + PATIENCE_S)
            self._call = self._endpoint.lease.LeaseKeepAlive()
        await self._call.write(request)
        response = await self._call.read()
        return None if response is grpc.aio.EOF else response

    def _give_up(self) -> None:
        """End the stream, and have the next call use another endpoint."""
        if self._endpoint is not None:
            self._pool.avoid(self._endpoint)
            self._endpoint = None
        self.close()
