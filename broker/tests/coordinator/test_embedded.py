"""The embedded coordinator's own promises: nothing reported before it is durable, bounded history, refused
directories."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import pytest
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict, WriteBatch
from seriatim_api.errors import (
    CoordinatorRefusedError,
    CorruptionError,
    ForeignDiskError,
    NewerFormatError,
    PreconditionError,
)
from seriatim_broker.adapters.etcd import EtcdConfig, EtcdCoordinator
from seriatim_broker.interfaces.coordinator import CompactedError, CoordinatorUnavailableError, Delete, Put
from seriatim_local.embedded import requests, serve
from seriatim_local.embedded.disk import Batch, Disk
from seriatim_local.embedded.lease import Leases
from seriatim_local.embedded.mvcc import FROM_KEY, Change, Mvcc
from seriatim_local.embedded.refusal import Refusal

from tools.ports import free_port

from .harness import ETCDCTL_BINARY, start_child, until


@asynccontextmanager
async def running(directory: Path, **arguments: object) -> AsyncIterator[EtcdCoordinator]:
    """A server and a client of it."""
    server = await serve(directory, "127.0.0.1:0", **arguments)  # type: ignore[arg-type]
    client = EtcdCoordinator(EtcdConfig((server.address,)))
    try:
        yield client
    finally:
        await client.close()
        await server.stop()


class HeldDisk:
    """Holds every commit back until it is let go, in the thread that commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.commit_count = 0
        self.fails = False
        commit = Disk.commit

        def held(disk: Disk, batch: Batch) -> None:
            self.commit_count += 1
            assert self.is_open.wait(20)
            if self.fails:
                raise OSError("no such disk")
            commit(disk, batch)

        monkeypatch.setattr(Disk, "commit", held)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No commit ends inside the block."""
        self.is_open.clear()
        try:
            yield
        finally:
            self.is_open.set()

    async def holds_one(self, count: int) -> None:
        """Wait until `count` commits were begun."""

        async def begun() -> bool:
            return self.commit_count >= count

        await until(begun, 10)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    return HeldDisk(monkeypatch)


# -- durability ----------------------------------------------------------------------------------------------


async def test_nothing_is_told_before_it_is_durable(tmp_path: Path, disk: HeldDisk) -> None:
    async with running(tmp_path / "c") as client:
        start = (await client.txn((), [Put("a", b"old")])).revision + 1
        live, late = client.watch("a", start_revision=start), client.watch("a", start_revision=start - 1)
        async with aclosing(live), aclosing(late):
            with disk.held():
                put = asyncio.ensure_future(client.txn((), [Put("a", b"new")]))
                watched = asyncio.ensure_future(anext(live))
                await disk.holds_one(2)
                got = asyncio.ensure_future(client.get("a"))
                listed = asyncio.ensure_future(client.list(""))
                assert [event.item.value for event in (await anext(late)).events] == [b"old"]
                # Other calls are answered meanwhile, so what is silent is so because of what it has seen.
                async with grpc.aio.insecure_channel(client._config.endpoints[0]) as channel:
                    maintenance = rpc_pb2_grpc.MaintenanceStub(channel)
                    for _ in range(5):
                        status = await maintenance.Status(rpc_pb2.StatusRequest(), timeout=5)
                        assert status.header.revision == start - 1
                assert not any(one.done() for one in (put, watched, got, listed))
            async with asyncio.timeout(10):
                assert (await put).revision == start
                assert (await watched).revision == start
                assert (await listed).revision == start
                found = await got
        assert found is not None
        assert found.mod_revision == start


async def test_many_writes_share_a_flush(tmp_path: Path, disk: HeldDisk) -> None:
    async with (
        running(tmp_path / "c") as client,
        grpc.aio.insecure_channel(client._config.endpoints[0]) as channel,
    ):
        maintenance = rpc_pb2_grpc.MaintenanceStub(channel)

        async def size_bytes() -> int:
            return int((await maintenance.Status(rpc_pb2.StatusRequest(), timeout=5)).dbSize)

        with disk.held():
            empty = await size_bytes()
            first = asyncio.ensure_future(client.txn((), [Put("first", b"")]))
            await disk.holds_one(1)
            overhead = await size_bytes() - empty - len("first")
            keys = [f"{one}" for one in range(64)]
            others = [asyncio.ensure_future(client.txn((), [Put(key, bytes(1000))])) for key in keys]
            wanted = empty + len("first") + overhead + sum(len(key) + 1000 + overhead for key in keys)

            async def all_have_arrived() -> bool:
                return await size_bytes() >= wanted

            await until(all_have_arrived, 10)
        await asyncio.gather(first, *others)
        assert disk.commit_count == 2


async def test_failed_disk_ends_everything(tmp_path: Path, disk: HeldDisk) -> None:
    failures: list[BaseException] = []
    server = await serve(tmp_path / "c", "127.0.0.1:0", on_fatal=failures.append)
    client = EtcdCoordinator(EtcdConfig((server.address,), deadline_s=1.0))
    await client.txn((), [Put("a", b"durable")])
    disk.fails = True
    with pytest.raises(CoordinatorUnavailableError):
        await client.txn((), [Put("a", b"never")])
    assert [str(one) for one in failures] == ["no such disk"]
    with pytest.raises(CoordinatorUnavailableError):
        await client.get("a")
    await client.close()
    await server.stop()
    disk.fails = False
    async with running(tmp_path / "c") as again:
        found = await again.get("a")
        assert found is not None
        assert found.value == b"durable"


async def test_failed_assertion_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    server = await serve(tmp_path / "c", "127.0.0.1:0", on_fatal=failures.append)
    client = EtcdCoordinator(EtcdConfig((server.address,), deadline_s=1.0))

    def half_way(mvcc: Mvcc, kv: object, sub: int) -> None:
        raise AssertionError("half-way")

    monkeypatch.setattr(Mvcc, "_insert", half_way)
    with pytest.raises(CoordinatorUnavailableError):
        await client.txn((), [Put("a", b"")])
    monkeypatch.undo()
    with pytest.raises(CoordinatorUnavailableError):
        await client.txn((), [Put("b", b"")])
    assert [str(one) for one in failures] == ["half-way"]
    await client.close()
    await server.stop()


# -- history -------------------------------------------------------------------------------------------------


async def test_history_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path / "c", history_revision_count=20) as client:
        for number in range(100):
            await client.txn((), [Put("a", b"%d" % number), Put(f"k{number % 3}", b"")])
        last = (await client.txn((), [Delete("k0")])).revision
        async with aclosing(client.watch("a", start_revision=2)) as batches:
            with pytest.raises(CompactedError) as caught:
                await anext(batches)
        assert last - 40 <= caught.value.compact_revision <= last - 20
        async with aclosing(client.watch("a", start_revision=last - 20)) as batches:
            assert (await anext(batches)).events[0].item.mod_revision == last - 20
    records = Disk(tmp_path / "c")
    count = sum(1 for _ in records._scan(b"r"))
    records.close()
    assert count < 2 * 40 + 5
    async with running(tmp_path / "c") as client:
        listing = await client.list("")
        assert [(item.key, item.value) for item in listing.items] == [("a", b"99"), ("k1", b""), ("k2", b"")]
        assert listing.items[0].version == 100
        assert listing.revision == last


Operations = st.lists(
    st.one_of(
        st.lists(
            st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.one_of(st.none(), st.binary(max_size=2))),
            min_size=1,
            max_size=3,
            unique_by=lambda one: one[0],
        ),
        st.floats(0, 1),
    ),
    max_size=30,
)


@given(Operations)
def test_what_is_loaded_is_what_was(operations: list[list[tuple[bytes, bytes | None]] | float]) -> None:
    """Random revisions and compactions: memory, a plain model and what a disk would give back agree."""
    mvcc, model, stored = Mvcc(), {1: dict[bytes, bytes]()}, dict[tuple[int, int], Change]()
    for operation in operations:
        if isinstance(operation, float):
            revision = round(mvcc.compact_revision + operation * (mvcc.revision - mvcc.compact_revision))
            if revision > mvcc.compact_revision:
                mvcc.compact(revision)
        else:
            state = dict(model[mvcc.revision])
            for key, value in operation:
                if value is None:
                    mvcc.delete(key)
                    state.pop(key, None)
                else:
                    mvcc.put(key, value, 0)
                    state[key] = value
            model[mvcc.commit()] = state
        for change in mvcc.take_changes():
            if change.event is None:
                del stored[change.revision, change.sub]
            else:
                stored[change.revision, change.sub] = change
    loaded = Mvcc.load(mvcc.revision, mvcc.compact_revision, iter(stored[at] for at in sorted(stored)))
    for one in (mvcc, loaded):
        for revision in range(one.compact_revision, one.revision + 1):
            found = {kv.key: kv.value for kv in one.read(FROM_KEY, FROM_KEY, revision)}
            assert found == model[revision]
            assert one.events_of(revision) == mvcc.events_of(revision)
        assert one.size_bytes == mvcc.size_bytes
        assert [kv.key for kv in one.read(FROM_KEY, FROM_KEY)] == sorted(model[one.revision])


def test_lease_knows_its_keys() -> None:
    leases = Leases()
    first, second = leases.add(1, 10, 0.0), leases.add(2, 5, 0.0)
    leases.attach(b"a", 1)
    leases.attach(b"b", 1)
    leases.attach(b"a", 2)
    leases.detach(b"b")
    assert (list(first.keys), list(second.keys)) == ([], [b"a"])
    assert leases.next_deadline_s() == 5.0
    assert leases.due(4.9) == []
    assert leases.due(5.0) == [2]
    assert leases.find(2, 5.0) is None, "a lease whose time is up can be neither used nor renewed"
    assert leases.remove(2) == (b"a",)
    leases.attach(b"a", 0)
    assert leases.ids() == [1]


# -- bad input -----------------------------------------------------------------------------------------------


async def test_full_store_refuses_puts_and_takes_deletions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "c") as client:
        await client.txn((), [Put("a", b"x" * 1000)])
        monkeypatch.setattr(requests, "STORE_SIZE_BYTES_MAX", 2000)
        with pytest.raises(CoordinatorRefusedError, match="space exceeded"):
            await client.txn((), [Put("b", b"x" * 1000)])
        await client.txn((), [Delete("a")])
        assert await client.get("a") is None


async def test_what_is_not_served_is_said_so(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as client, grpc.aio.insecure_channel(client._config.endpoints[0]) as channel:
        nested = rpc_pb2.TxnRequest(success=[rpc_pb2.RequestOp(request_txn=rpc_pb2.TxnRequest())])
        for call, request, code in [
            ("Txn", nested, grpc.StatusCode.UNIMPLEMENTED),
            ("Put", rpc_pb2.PutRequest(key=b"a", ignore_value=True), grpc.StatusCode.UNIMPLEMENTED),
            ("Put", rpc_pb2.PutRequest(value=b"a"), grpc.StatusCode.INVALID_ARGUMENT),
            ("Range", rpc_pb2.RangeRequest(), grpc.StatusCode.INVALID_ARGUMENT),
            ("Range", rpc_pb2.RangeRequest(key=b"a", revision=9), grpc.StatusCode.OUT_OF_RANGE),
            ("Compact", rpc_pb2.CompactionRequest(revision=9), grpc.StatusCode.OUT_OF_RANGE),
            ("Compact", rpc_pb2.CompactionRequest(revision=1), grpc.StatusCode.OUT_OF_RANGE),
        ]:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await getattr(rpc_pb2_grpc.KVStub(channel), call)(request, timeout=5)
            assert caught.value.code() is code, call
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc_pb2_grpc.LeaseStub(channel).LeaseGrant(rpc_pb2.LeaseGrantRequest(TTL=10**12), timeout=5)
        assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
        assert (await client.list("")).revision == 1


_Key = st.sampled_from([b"a", b"b", b"\0", b"\xff", b""])
_Number = st.sampled_from([0, 1, 2, 3, -1, 7])
_Choice = st.sampled_from([0, 1, 2, 3, 4, -1, 5])
_Range = st.builds(
    rpc_pb2.RangeRequest,
    key=_Key,
    range_end=st.one_of(st.just(b""), _Key),
    limit=_Number,
    revision=_Number,
    sort_order=_Choice,
    sort_target=_Choice,
    keys_only=st.booleans(),
    count_only=st.booleans(),
    min_mod_revision=_Number,
    max_create_revision=_Number,
)
_Put = st.builds(rpc_pb2.PutRequest, key=_Key, value=_Key, lease=st.sampled_from([0, 1, 9, -1]), prev_kv=st.booleans())
_Delete = st.builds(rpc_pb2.DeleteRangeRequest, key=_Key, range_end=_Key, prev_kv=st.booleans())
_Compare = st.builds(
    rpc_pb2.Compare, result=_Choice, target=_Choice, key=_Key, range_end=_Key, version=_Number, lease=_Number
)
_Operation = st.one_of(
    st.builds(rpc_pb2.RequestOp, request_range=_Range),
    st.builds(rpc_pb2.RequestOp, request_put=_Put),
    st.builds(rpc_pb2.RequestOp, request_delete_range=_Delete),
    st.just(rpc_pb2.RequestOp()),
)
_Txn = st.builds(
    rpc_pb2.TxnRequest,
    compare=st.lists(_Compare, max_size=2),
    success=st.lists(_Operation, max_size=4),
    failure=st.lists(_Operation, max_size=4),
)


@given(st.lists(st.one_of(_Range, _Txn), max_size=12), st.integers(1, 6))
def test_any_request_is_carried_out_or_refused(messages: list[object], compact_at: int) -> None:
    """No request of a peer reaches an assertion, and a refused one leaves nothing behind."""
    mvcc, leases = Mvcc(), Leases()
    leases.add(1, 60, 0.0)
    served = requests.Requests(mvcc, leases)
    for message in messages:
        before = mvcc.revision
        try:
            if isinstance(message, rpc_pb2.TxnRequest):
                served.txn(message, 1.0)
            else:
                served.range(message)
        except Refusal:
            assert mvcc.revision == before
            assert mvcc.take_changes() == []
        assert before <= mvcc.revision <= before + 1
        mvcc.take_changes()
        if mvcc.compact_revision < compact_at <= mvcc.revision:
            mvcc.compact(compact_at)


def _raw(directory: Path, writes: dict[bytes, bytes]) -> None:
    """Write into a database without the coordinator's knowledge."""
    database = Rdict(str(directory), Options(raw_mode=True))
    batch = WriteBatch(raw_mode=True)
    for key, value in writes.items():
        batch.put(key, value)
    database.write(batch)
    database.close()


async def _refused(directory: Path, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        await serve(directory, "127.0.0.1:0")


async def test_directories_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "letter.txt").write_text("dear")
    await _refused(tmp_path / "others", ForeignDiskError, "name another")
    assert [one.name for one in (tmp_path / "others").iterdir()] == ["letter.txt"]

    _raw(tmp_path / "database", {b"x": b"y"})
    await _refused(tmp_path / "database", ForeignDiskError, "not a coordinator's")

    (tmp_path / "file").write_text("")
    await _refused(tmp_path / "file", PreconditionError, "cannot be opened")

    async with running(tmp_path / "c") as client:
        await client.txn((), [Put("a", b"1")])
        await _refused(tmp_path / "c", PreconditionError, "in use")
    _raw(tmp_path / "c", {b"m/format": (2).to_bytes(8, "big")})
    await _refused(tmp_path / "c", NewerFormatError, "newer version")
    _raw(tmp_path / "c", {b"m/format": (1).to_bytes(8, "big"), b"r" + bytes(12): b"\xff\xff"})
    await _refused(tmp_path / "c", CorruptionError, "cannot be read")


@pytest.mark.parametrize("pattern", ["*.sst", "*.log"])
async def test_damaged_file_is_refused(tmp_path: Path, pattern: str) -> None:
    """Of a table, as an orderly stop leaves it, and of the write-ahead log that a kill leaves."""
    if pattern == "*.sst":
        async with running(tmp_path / "c") as client:
            await _write_much(client)
    else:
        child = start_child(tmp_path / "c", address := f"127.0.0.1:{free_port()}")
        client = EtcdCoordinator(EtcdConfig((address,), deadline_s=20))
        await _write_much(client)
        await client.close()
        child.kill()
        await asyncio.to_thread(child.wait)
    file = max((tmp_path / "c").glob(pattern), key=lambda one: one.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    await _refused(tmp_path / "c", CorruptionError, "damaged|cannot be read")


async def _write_much(client: EtcdCoordinator) -> None:
    for number in range(20):
        await client.txn((), [Put(f"{number}", os.urandom(5000))])


async def test_address_that_is_taken(tmp_path: Path) -> None:
    server = await serve(tmp_path / "a", "127.0.0.1:0")
    with pytest.raises(PreconditionError, match="another process uses this port"):
        await serve(tmp_path / "b", server.address)
    await server.stop()
    again = await serve(tmp_path / "b", server.address)  # the directory was given back, too
    assert again.address == server.address
    await again.stop()
    await again.stop()


# -- what etcd's own client sees -----------------------------------------------------------------------------


@pytest.mark.etcd
@pytest.mark.usefixtures("etcd_process")
async def test_etcdctl_reads_it(tmp_path: Path) -> None:
    async with running(tmp_path / "c") as client:

        async def ctl(*arguments: str) -> str:
            command = [str(ETCDCTL_BINARY), "--endpoints", client._config.endpoints[0], *arguments]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=20, check=False
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        await client.txn((), [Put("/a", b"1"), Put("/b", b"2")])
        assert await ctl("get", "--prefix", "/") == "/a\n1\n/b\n2\n"
        assert await ctl("put", "/c", "3") == "OK\n"
        found = await client.get("/c")
        assert found is not None
        assert found.value == b"3"
        assert await ctl("get", "--from-key", "/b", "--keys-only", "--order=DESCEND") == "/c\n\n/b\n\n"
        assert await ctl("del", "--prev-kv", "/b") == "1\n/b\n2\n"
        granted = await ctl("lease", "grant", "60")
        assert "granted with TTL(60s)" in granted
        lease = granted.split()[1]
        assert await ctl("put", "/c", "3", f"--lease={lease}") == "OK\n"
        assert "attached keys([/c])" in await ctl("lease", "timetolive", lease, "--keys")
        assert lease in await ctl("lease", "list")
        assert "keepalived with TTL(60)" in await ctl("lease", "keep-alive", "--once", lease)
        assert "is healthy" in await ctl("endpoint", "health")
        watch = ["timeout", "-s", "INT", "1", str(ETCDCTL_BINARY), "--endpoints", client._config.endpoints[0]]
        watching = await asyncio.to_thread(
            subprocess.run, [*watch, "watch", "--prefix", "--prev-kv", "/", "--rev=2"], capture_output=True
        )
        assert (
            watching.stdout.decode() == "PUT\n/a\n1\nPUT\n/b\n2\nPUT\n/c\n3\nDELETE\n/b\n2\n/b\n\nPUT\n/c\n3\n/c\n3\n"
        )
