"""What links over gRPC do beside `link_contract`, and most of it over TCP: refusals, garbage, what a dial leaves."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
import pytest
import pytest_asyncio
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import peer_pb2
from seriatim_broker.core.values import messages as m
from seriatim_broker.core.values.producers import (
    KEPT_BATCHES,
    Entry,
    Table,
    pack_table,
    pack_window,
)
from seriatim_broker.interfaces.link import LINK_SCHEME, PeerRefusedError, PeerSilentError
from seriatim_broker.rpc import peer_frames
from seriatim_broker.rpc.link import AnyDialer, LinkDialer
from seriatim_broker.rpc.peer import GrpcDialer

from tools.ports import free_port

from .grpc_peers import GrpcPeers, TcpPeers
from .link_contract import identity


@pytest_asyncio.fixture(loop_scope="session")
async def grpc_peers() -> AsyncIterator[GrpcPeers]:
    """Two addresses at which no broker listens yet."""
    made = GrpcPeers()
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session", params=[TcpPeers, GrpcPeers])
async def peers(request: pytest.FixtureRequest) -> AsyncIterator[GrpcPeers]:
    """The same, over TCP and over gRPC."""
    made: GrpcPeers = request.param()
    yield made
    await made.close()


async def test_a_peer_of_another_cluster_is_refused(peers: GrpcPeers) -> None:
    a, stranger = await peers.start("a", 1), await peers.start("b", 4, cluster="c2")
    with pytest.raises(PeerSilentError, match="another cluster"):
        await a.dialer.dial(peers.address("b"), 2.0)
    assert not stranger.ups()


@pytest.mark.parametrize("scheme", ["", LINK_SCHEME])
async def test_a_name_without_an_address_says_nothing_of_the_process_behind_it(scheme: str) -> None:
    dialer = AnyDialer(LinkDialer(identity("a", 1)), GrpcDialer(identity("a", 1)))
    name = "a" * 64 + ".invalid"  # too long for a label: no name server is asked
    with pytest.raises(PeerSilentError, match=r"\.invalid"):
        await dialer.dial(f"{scheme}{name}:7100", 5.0)


@pytest.fixture
def uncollected() -> Iterator[Callable[[], int]]:
    """How many calls of gRPC there are, while nothing collects garbage."""
    gc.collect()
    gc.disable()
    yield lambda: sum(isinstance(thing, grpc.aio.StreamStreamCall) for thing in gc.get_objects())
    gc.enable()


@pytest.mark.parametrize("how", ["refused", "silent", "cancelled", "used"])
async def test_a_dial_that_is_over_leaves_no_call_behind(
    grpc_peers: GrpcPeers, uncollected: Callable[[], int], how: str
) -> None:
    """What is left goes on connecting: a peer that was away for minutes was dialled hundreds of times a second."""
    dialer = GrpcDialer(identity("a", 1))
    if how == "refused":
        with pytest.raises(PeerRefusedError):
            await dialer.dial(f"127.0.0.1:{free_port()}", 5.0)
    elif how == "used":
        a, b = await grpc_peers.start("a", 1), await grpc_peers.start("b", 4)
        a.links.connect("b")
        await a.until(lambda: a.links.is_up("b"))
        assert uncollected() == 2
        await grpc_peers.stop(b)
        await a.until(lambda: bool(a.downs(refused=True)))
        await grpc_peers.stop(a)
    else:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            dial = asyncio.create_task(dialer.dial(f"127.0.0.1:{deaf.getsockname()[1]}", 0.1))
            if how == "cancelled":
                await asyncio.sleep(0)
                dial.cancel()
            await asyncio.wait([dial])
            assert dial.cancelled() or isinstance(dial.exception(), PeerSilentError)
            del dial
    for _ in range(100):
        if uncollected() == 0:
            break
        await asyncio.sleep(0.01)  # a thread of gRPC's ends what was cancelled
    assert uncollected() == 0


async def test_both_ends_learn_which_forms_the_other_one_reads(peers: GrpcPeers) -> None:
    """Each says it in its hello, no matter which one dialed."""
    new, other = await peers.start("a", 1, forms=6), await peers.start("b", 4, forms=1)
    new.links.connect("b")
    await new.until(lambda: bool(new.ups()))
    await other.until(lambda: bool(other.ups()))
    assert ([up.forms for up in new.ups()], [up.forms for up in other.ups()]) == ([1], [6])


async def test_a_table_of_4_mb_arrives(peers: GrpcPeers) -> None:
    new, other = await peers.start("a", 1), await peers.start("b", 4)
    new.links.connect("b")
    await new.until(lambda: bool(new.ups()))
    await other.until(lambda: bool(other.ups()))
    window = pack_window([Entry(0, 0, 1, 5)], 7)
    answer = m.TableAnswer(PartitionId(7), 1, pack_table({at.to_bytes(16, "big"): window for at in range(80_000)}))
    new.links.send("b", answer)
    await other.until(lambda: bool(other.messages()))
    assert other.messages() == [answer]


def _table_of(size_mb: int) -> Table:
    """Of producers with full windows."""
    window = pack_window([Entry(0, at, 1, at) for at in range(KEPT_BATCHES)], 7)
    return pack_table({at.to_bytes(16, "big"): window for at in range(size_mb * 1_000_000 // (17 + len(window)))})


@pytest.mark.parametrize("kind", ["prepare", "fence", "table", "copy"])
async def test_a_message_that_is_larger_than_a_frame_arrives_and_heartbeats_go_between(
    peers: GrpcPeers, kind: str
) -> None:
    """gRPC refuses what is above 32 MiB, and ends the stream: the link broke, and broke again with each retry."""
    new, other = await peers.start("a", 1), await peers.start("b", 4)
    new.links.connect("b")
    await new.until(lambda: bool(new.ups()))
    await other.until(lambda: bool(other.ups()))
    table, at = _table_of(40), PartitionId(7)
    message = {
        "prepare": m.PrepareRequest(at, 2, b"a" * 16, (), True, False, table, None),
        "fence": m.FenceAnswer(at, 1, b"s" * 16, True, 5, 0, True, 5, 0, table, False, (), size_bytes=9),
        "table": m.TableAnswer(at, 1, table),
        "copy": m.CopyAnswer(at, 1, 0, True, (), table),
    }[kind]
    new.links.send("b", message)
    await asyncio.sleep(0)  # the large one is on its way
    new.links.send("b", m.Heartbeat(3))
    new.links.send("b", m.TableRequest(at, 9))
    await other.until(lambda: len(other.messages()) == 3)
    assert other.messages() == [m.Heartbeat(3), message, m.TableRequest(at, 9)]
    assert not new.downs(refused=False)


def test_parts_that_do_not_follow_one_another_are_refused() -> None:
    answer = m.TableAnswer(PartitionId(7), 1, _table_of(4))
    frames = list(peer_frames.write_control_frames([answer]))
    assert len(frames) == 4
    assert max(map(len, frames)) < peer_frames.PART_SIZE_BYTES + 100
    whole = peer_frames.ControlReader()
    assert [whole.read(frame) for frame in frames] == [[], [], [], [answer]]
    assert [whole.read(frame) for frame in frames] == [[], [], [], [answer]], "and the next one"
    cut = peer_frames.ControlReader()
    cut.read(frames[0])
    with pytest.raises(BadRequestError, match="parts"):
        cut.read(frames[2])
    huge = peer_pb2.PeerFrame(part=b"x", parts_left=256).SerializeToString()
    with pytest.raises(BadRequestError, match="at most"):
        peer_frames.ControlReader().read(huge)


async def test_garbage_breaks_the_link_and_nothing_else(grpc_peers: GrpcPeers) -> None:
    peers = grpc_peers
    a, b = await peers.start("a", 1), await peers.start("b", 4)
    a.links.connect("b")
    await a.until(lambda: bool(a.ups()))
    async with grpc.aio.insecure_channel(peers.address("b")) as channel:
        call = channel.stream_stream("/seriatim.v1.Peer/Control")()
        await call.write(b"\xff\xff not a hello")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    reader, writer = await asyncio.open_connection("127.0.0.1", int(peers.address("b").rpartition(":")[2]))
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    await reader.read()
    writer.close()
    a.links.send("b", m.Heartbeat(9))
    await b.until(lambda: b.messages() == [m.Heartbeat(9)])
    assert not a.downs(refused=False)
