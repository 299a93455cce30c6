"""What the adapter does beyond the contract: endpoints, certificates, versions, and the meaning of failures."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc
from seriatim_api.errors import (
    BadRequestError,
    CompactedError,
    CoordinatorRefusedError,
    LeaseNotFoundError,
    MessageTooLargeError,
    PreconditionError,
    SeriatimError,
)
from seriatim_api.network.tls import TlsFiles
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator, EtcdTls, is_supported_version
from seriatim_broker.adapters.etcd_channel import EndpointPool
from seriatim_broker.adapters.etcd_codec import decode_key, encode_key, make_error, prefix_range
from seriatim_broker.adapters.etcd_renewal import PATIENCE_S
from seriatim_broker.adapters.etcd_watch import ResumedWatch
from seriatim_broker.interfaces.coordinator import CoordinatorUnavailableError, Get, GetPrefix, Put
from seriatim_local.embedded import serve, service, watch
from structlog.testing import capture_logs

from tools.ports import free_port

from .harness import ETCD_BINARY, EtcdProcess, freeze, start_child, until

# -- no coordinator is there ---------------------------------------------------------------------------------


async def test_nobody_listens() -> None:
    client = EtcdCoordinator(EtcdConfig((f"127.0.0.1:{free_port()}",), deadline_s=0.3))
    begun_s = asyncio.get_running_loop().time()
    with pytest.raises(CoordinatorUnavailableError, match="no connection"):
        await client.txn((), [Put("a", b"")])
    assert asyncio.get_running_loop().time() - begun_s < 4.0, "before the usual deadline of 5 s"
    await client.close()
    await client.close()


async def test_somebody_listens_and_says_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        client = EtcdCoordinator(EtcdConfig((f"127.0.0.1:{silent.getsockname()[1]}",), deadline_s=0.3))
        with pytest.raises(CoordinatorUnavailableError):
            await client.get("a")
        await client.close()


async def test_reconnects_quickly(tmp_path: Path) -> None:
    """gRPC's own back-off would take a second and more to find a coordinator that is back."""
    address = f"127.0.0.1:{free_port()}"
    client = EtcdCoordinator(EtcdConfig((address,), deadline_s=20))
    waiting = asyncio.ensure_future(client.get("a"))
    with pytest.raises(CoordinatorUnavailableError):
        await client.get("a", deadline_s=1.0)  # the back-off has grown meanwhile
    loop = asyncio.get_running_loop()
    server = await serve(tmp_path / "c", address)
    begun_s = loop.time()
    assert await waiting is None
    assert loop.time() - begun_s < 0.6
    await client.close()
    await server.stop()


async def test_cancelled_call_is_cancelled(tmp_path: Path) -> None:
    client = EtcdCoordinator(EtcdConfig((f"127.0.0.1:{free_port()}",)))
    call = asyncio.ensure_future(client.get("a"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await client.close()


class Failing:
    """Takes every call, counts it, and fails as a member does that has lost its leader."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    async def fail(self, request: object, context: grpc.aio.ServicerContext[object, object]) -> None:
        self.counts[type(request).__name__] += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")

    Range = Put = DeleteRange = Txn = Compact = fail
    LeaseGrant = LeaseRevoke = LeaseKeepAlive = LeaseTimeToLive = LeaseLeases = fail


async def test_only_what_may_happen_twice_is_sent_twice() -> None:
    failing, server = Failing(), grpc.aio.server()
    rpc_pb2_grpc.add_KVServicer_to_server(failing, server)
    rpc_pb2_grpc.add_LeaseServicer_to_server(failing, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = EtcdCoordinator(EtcdConfig((f"127.0.0.1:{port}",), deadline_s=0.3))
    for call in (
        lambda: client.txn((), [Put("a", b"")]),
        lambda: client.grant(5),
        lambda: client.get("a"),
        lambda: client.revoke(5),
    ):
        with pytest.raises(CoordinatorUnavailableError, match="no leader"):
            await call()
    assert failing.counts["TxnRequest"] == failing.counts["LeaseGrantRequest"] == 1
    with pytest.raises(CoordinatorUnavailableError, match="no leader"):
        await client.txn((), [Get("a"), GetPrefix("b")])
    assert failing.counts["TxnRequest"] > 2
    assert failing.counts["RangeRequest"] > 1
    assert failing.counts["LeaseRevokeRequest"] > 1
    await client.close()
    await server.stop(None)


class Renewing(Failing):
    """Renews leases. Some of its streams, by number, end after one answer, or say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = 0
        self.has_begun = asyncio.Event()
        self.ending: set[int] = set()
        self.silent: set[int] = set()

    async def renew(self, requests: AsyncIterator[Any], _context: object) -> AsyncIterator[Any]:
        self.streams += 1
        self.has_begun.set()
        stream = self.streams
        async for request in requests:
            if stream in self.silent:
                continue
            yield rpc_pb2.LeaseKeepAliveResponse(ID=request.ID, TTL=request.ID % 10)
            if stream in self.ending:
                return

    LeaseKeepAlive = renew  # type: ignore[assignment]


@pytest_asyncio.fixture
async def renewing() -> AsyncIterator[tuple[Renewing, EtcdCoordinator]]:
    """It serves, and a client of it is connected."""
    made, server = Renewing(), grpc.aio.server()
    rpc_pb2_grpc.add_LeaseServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = EtcdCoordinator(EtcdConfig((f"127.0.0.1:{port}",), deadline_s=5.0))
    await client._pool.ready(asyncio.get_running_loop().time() + 5.0)  # the first stream is not given up
    yield made, client
    await client.close()
    await server.stop(None)


async def test_renewals_share_a_stream(renewing: tuple[Renewing, EtcdCoordinator]) -> None:
    server, client = renewing
    assert [await client.keep_alive(lease) for lease in (13, 13, 14, 20)] == [3, 3, 4, 0]
    assert server.streams == 1


async def test_a_renewal_whose_stream_is_used_asks_without_it(renewing: tuple[Renewing, EtcdCoordinator]) -> None:
    """Otherwise one of them would take the other's answer."""
    server, client = renewing
    assert await asyncio.gather(*(client.keep_alive(lease) for lease in (13, 14, 15))) == [3, 4, 5]
    assert await client.keep_alive(16) == 6
    assert server.streams == 3


async def test_a_stream_that_ended_is_made_anew(renewing: tuple[Renewing, EtcdCoordinator]) -> None:
    server, client = renewing
    server.ending = {1, 2, 3, 4}
    for _ in range(3):
        assert await client.keep_alive(13) == 3


async def test_a_stream_that_says_nothing_costs_its_patience_only(
    renewing: tuple[Renewing, EtcdCoordinator],
) -> None:
    server, client = renewing
    server.silent = {1}
    begun_s = asyncio.get_running_loop().time()
    assert await client.keep_alive(13) == 3
    assert asyncio.get_running_loop().time() - begun_s >= PATIENCE_S
    assert await client.keep_alive(13) == 3
    assert await client.keep_alive(13) == 3
    assert server.streams == 3  # the silent one, the one for this call only, and the one that stays


async def test_a_cancelled_renewal_leaves_no_answer_for_the_next_one(
    renewing: tuple[Renewing, EtcdCoordinator],
) -> None:
    server, client = renewing
    server.silent = {1}
    renewal = asyncio.ensure_future(client.keep_alive(13))
    await server.has_begun.wait()
    renewal.cancel()
    with pytest.raises(asyncio.CancelledError):
        await renewal
    assert await client.keep_alive(14) == 4


# -- several endpoints ---------------------------------------------------------------------------------------


async def test_dead_endpoint_is_passed_over(tmp_path: Path) -> None:
    server = await serve(tmp_path / "c", "127.0.0.1:0")
    client = EtcdCoordinator(EtcdConfig((f"127.0.0.1:{free_port()}", server.address)))
    assert (await client.txn((), [Put("a", b"1")])).succeeded
    await client.close()
    await server.stop()


async def test_read_and_watch_leave_an_endpoint_that_fails(tmp_path: Path) -> None:
    """Two coordinators that know nothing of each other play two members with the same data."""
    first, second = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    frozen = start_child(tmp_path / "first", first)
    server = await serve(tmp_path / "second", second)
    for address in (first, second):
        single = EtcdCoordinator(EtcdConfig((address,), deadline_s=20))
        await single.txn((), [Put("where", address.encode())])
        await single.close()
    client = EtcdCoordinator(EtcdConfig((first, second), deadline_s=60))

    loop = asyncio.get_running_loop()

    async def first_answers() -> bool:
        found = await client.get("where")
        if found is not None and found.value == first.encode():
            return True
        client._pool.avoid(await client._pool.ready(loop.time() + 5))
        return False

    try:
        await until(first_answers, 10)  # whichever was connected first has answered until now
        await freeze(frozen)
        async with asyncio.timeout(10):  # long before the first one's time is over
            found = await client.get("where")
            assert found is not None
            assert found.value == second.encode()
            assert (await client.txn((), [Put("b", b"")])).succeeded
    finally:
        frozen.kill()
        await asyncio.to_thread(frozen.wait)
        await client.close()
        await server.stop()


# -- watches -------------------------------------------------------------------------------------------------


async def test_quiet_watch_is_not_left_behind_by_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PROGRESS_INTERVAL_S", 0.05)
    server = await serve(tmp_path / "c", "127.0.0.1:0", history_revision_count=5)
    pool = EndpointPool((server.address,), None)
    writer = EtcdCoordinator(EtcdConfig((server.address,)))
    watched = ResumedWatch(pool, "quiet", start_revision=2, prefix=False)
    async with aclosing(watched.batches()) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        for _ in range(4):
            last = (await writer.txn((), [Put("busy", b"")])).revision

        async def has_moved() -> bool:
            return watched._next_revision > last

        await until(has_moved, 10)
        await server.stop()
        server = await serve(tmp_path / "c", server.address, history_revision_count=5)
        for _ in range(3):
            await writer.txn((), [Put("busy", b"")])
        await writer.txn((), [Put("quiet", b"at last")])
        async with asyncio.timeout(10):
            batch = await waiting
    assert [event.item.value for event in batch.events] == [b"at last"]
    await writer.close()
    await pool.close()
    await server.stop()


# -- certificates --------------------------------------------------------------------------------------------


def make_certificates(directory: Path) -> None:
    """A CA with a certificate that is good for both ends of a connection to 127.0.0.1."""
    directory.mkdir()
    common = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1"]
    signed += ["-addext", "basicConstraints=CA:FALSE"]
    for command in (
        ["-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN={directory.name}"],
        ["-keyout", "end.key", "-out", "end.pem", "-subj", "/CN=coordinator", *signed],
    ):
        subprocess.run(["openssl", "req", "-x509", *common, *command], cwd=directory, check=True, capture_output=True)


def server_credentials(directory: Path) -> grpc.ServerCredentials:
    pair = ((directory / "end.key").read_bytes(), (directory / "end.pem").read_bytes())
    return grpc.ssl_server_credentials([pair], (directory / "ca.pem").read_bytes(), require_client_auth=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
async def test_certificates_are_read_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim_api.network.tls.CHECK_INTERVAL_S", 0.0)
    for name in ("old", "new"):
        make_certificates(tmp_path / name)
    used = tmp_path / "used"
    shutil.copytree(tmp_path / "old", used)
    tls = EtcdTls(TlsFiles(used / "ca.pem", used / "end.pem", used / "end.key"))
    server = await serve(tmp_path / "c", "127.0.0.1:0", credentials=server_credentials(tmp_path / "old"))
    client = EtcdCoordinator(EtcdConfig((server.address,), tls, deadline_s=10))
    stranger = EtcdCoordinator(EtcdConfig((server.address,), EtcdTls(TlsFiles(used / "ca.pem")), deadline_s=0.5))
    assert (await client.txn((), [Put("a", b"1")])).succeeded
    with pytest.raises(CoordinatorUnavailableError):
        await stranger.get("a")
    await server.stop()
    server = await serve(tmp_path / "c", server.address, credentials=server_credentials(tmp_path / "new"))
    with pytest.raises(CoordinatorUnavailableError):
        await client.get("a", deadline_s=0.5)
    shutil.copytree(tmp_path / "new", used, dirs_exist_ok=True)
    found = await client.get("a")
    assert found is not None
    assert found.value == b"1"
    shutil.copy(tmp_path / "old" / "end.key", used / "end.key")  # half of a change: what there is continues
    assert await client.get("a") is not None
    shutil.copy(tmp_path / "new" / "end.key", used / "end.key")
    (used / "ca.pem").unlink()  # in the middle of being replaced: what there is continues
    assert await client.get("a") is not None
    missing = EtcdCoordinator(EtcdConfig((server.address,), tls))
    with pytest.raises(PreconditionError, match="cannot be read"):
        await missing.get("a")
    for one in (client, stranger, missing):
        await one.close()
    await server.stop()


# -- versions and failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "is_supported"),
    [
        ("3.5.22", False), ("3.5.23", True), ("3.6.4", False), ("3.6.5", True), ("3.6.16", True),
        ("3.4.99", False), ("3.7.0", True), ("4.0.0", True), ("3.6.5-embedded", True), ("", False), ("x", False),
    ],
)  # fmt: skip
def test_supported_versions(version: str, is_supported: bool) -> None:
    assert is_supported_version(version) is is_supported


async def test_old_version_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "VERSION", "3.5.21")
    server = await serve(tmp_path / "c", "127.0.0.1:0")
    client = EtcdCoordinator(EtcdConfig((server.address,)))
    with capture_logs() as logs:

        async def is_warned() -> bool:
            await client.get("a")
            return any(entry["event"] == "etcd_version_not_supported" for entry in logs)

        await until(is_warned, 10)
        await client.get("a")
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry["version"] for entry in warnings] == ["3.5.21"]
    await client.close()
    await server.stop()


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", CoordinatorUnavailableError),
        ("UNAVAILABLE", "etcdserver: request timed out", CoordinatorUnavailableError),
        ("DEADLINE_EXCEEDED", "", CoordinatorUnavailableError),
        ("UNKNOWN", "", CoordinatorUnavailableError),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", CoordinatorUnavailableError),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", CoordinatorRefusedError),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (1 vs. 2)", MessageTooLargeError),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", MessageTooLargeError),
        ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", BadRequestError),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", CompactedError),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", BadRequestError),
        ("NOT_FOUND", "etcdserver: requested lease not found", LeaseNotFoundError),
        ("PERMISSION_DENIED", "etcdserver: permission denied", CoordinatorRefusedError),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", CoordinatorRefusedError),
    ],
)
def test_meaning_of_failures(code: str, details: str, kind: type[SeriatimError]) -> None:
    metadata = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode[code], metadata, metadata, details)
    assert type(make_error(error, "test")) is kind


@pytest.mark.etcd
async def test_etcd_over_its_quota_reads_and_refuses_and_keeps_the_write_that_fills_it(tmp_path: Path) -> None:
    """The last point is why a refused write is not known to be lost: etcd applies it, and then says that it did not."""
    if not ETCD_BINARY.exists():
        pytest.skip("no .tools/bin/etcd: `make tools` builds it (needs Go)")
    etcd = EtcdProcess(tmp_path, "--quota-backend-bytes=2097152")
    etcd.start()
    client = EtcdCoordinator(EtcdConfig((etcd.address,), deadline_s=20))
    try:
        refused: list[str] = []
        for wave in range(100):
            keys = [f"k{wave}-{number}" for number in range(16)]
            puts = [client.txn((), [Put(key, b"x" * 60_000)]) for key in keys]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            refused = [
                key for key, answer in zip(keys, answers, strict=True) if isinstance(answer, CoordinatorRefusedError)
            ]
            if refused:
                break
        kept = [key for key in refused if await client.get(key) is not None]
        assert kept, "of 16 writes at once those that were refused first are there"
        with pytest.raises(CoordinatorRefusedError, match="space exceeded"):
            await client.txn((), [Put("small", b"")])
        with pytest.raises(CoordinatorRefusedError, match="space exceeded"):
            await client.grant(5)
        assert await client.get("small") is None
    finally:
        await client.close()
        etcd.stop(signal.SIGKILL)


def test_ranges_of_prefixes() -> None:
    assert prefix_range("a/") == (b"a/", b"a0")
    assert prefix_range("") == (b"\0", b"\0")
    assert prefix_range("a" + decode_key(b"\xff\xff")) == (b"a\xff\xff", b"b")
    assert prefix_range(decode_key(b"\xff")) == (b"\xff", b"\0")
    assert encode_key(decode_key(b"not \xff utf-8")) == b"not \xff utf-8"
