"""Start and stop of the embedded coordinator, in a process of its own or in another one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc
import structlog
from seriatim_api.errors import PreconditionError
from seriatim_broker.rpc.calls.broken_assertions import ServedCalls

from seriatim_local.embedded.requests import REQUEST_SIZE_BYTES_MAX
from seriatim_local.embedded.service import add_services
from seriatim_local.embedded.store import HISTORY_REVISION_COUNT, FatalHandler, Store, end_process

CALL_COUNT_MAX: Final = 4_096
"""Limit for calls and streams at the same time. More are refused with RESOURCE_EXHAUSTED."""

STOP_GRACE_S: Final = 1.0
"""How long running calls may take to end at `stop`. A commit takes milliseconds."""

_PING_INTERVAL_MS_MIN: Final = 1_000
"""The connection of a client that pings more often is closed. Our clients ping every few seconds."""

_log = structlog.get_logger(__name__)


class EmbeddedCoordinator:
    """A running coordinator. `serve` makes it."""

    def __init__(self, server: grpc.aio.Server, store: Store, address: str) -> None:
        self._server = server
        self._store = store
        self._is_stopped = False
        self.address = address

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End watches and calls, make all changes durable, and close the directory. Idempotent.

        Args:
            grace_s: Seconds that running calls may take to end. Then they are cancelled.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        self._store.stop_watches()
        await self._server.stop(grace_s)
        await self._store.close()
        _log.info("coordinator_stopped", address=self.address)


async def serve(
    directory: Path,
    address: str,
    *,
    credentials: grpc.ServerCredentials | None = None,
    history_revision_count: int = HISTORY_REVISION_COUNT,
    on_fatal: FatalHandler = end_process,
) -> EmbeddedCoordinator:
    """Serve a part of etcd's v3 API from a directory. After a crash, all acknowledged writes are still there.

    It is one process on one disk, for a laptop, a first try and tests. Use etcd in production.

    Args:
        directory: The directory. It is made if it does not exist. Only one process at a time can use it.
        address: `host:port`. Port 0 takes a free port: see `address` of the result.
        credentials: Certificates for TLS; None: plain text.
        history_revision_count: The number of old revisions that are kept for watches and paging.
        on_fatal: Called when the disk has failed. The default ends the process.

    Raises:
        PreconditionError: The address is in use, or another process has the directory.
        StorageError: The directory cannot be used; the message says why and what to do.
    """
    store = await Store.open(directory, history_revision_count=history_revision_count, on_fatal=on_fatal)
    server = grpc.aio.server(
        interceptors=(ServedCalls(),),
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", 2 * REQUEST_SIZE_BYTES_MAX),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS_MIN),
            ("grpc.http2.bdp_probe", 0),
        ],
        maximum_concurrent_rpcs=CALL_COUNT_MAX,
    )
    add_services(server, store)
    try:
        port = _bind(server, address, credentials)
        await server.start()
    except BaseException:
        await store.close()
        raise
    host = address.rpartition(":")[0]
    running = EmbeddedCoordinator(server, store, f"{host}:{port}")
    _log.info(
        "coordinator_serving",
        address=running.address,
        directory=str(directory),
        revision=store.mvcc.revision,
        note="one process on one disk; use etcd in production",
    )
    return running


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise _cannot_listen(address) from error
    if port == 0:
        raise _cannot_listen(address)
    return int(port)


def _cannot_listen(address: str) -> PreconditionError:
    return PreconditionError(
        f"the coordinator cannot listen on {address}: another process uses this port, or it is not an address of this "
        "machine",
        address=address,
    )
