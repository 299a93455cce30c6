"""What links over TCP do beside `link_contract`: refusals, forms, and messages that are larger than a frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import peer_pb2
from seriatim_broker.core.values import messages as m
from seriatim_broker.core.values.producers import WINDOW_BATCHES, Entry, Table, pack_table, pack_window
from seriatim_broker.interfaces.link import PeerSilentError
from seriatim_broker.rpc.links import peer_frames
from seriatim_broker.rpc.links.link import LinkDialer

from .link_contract import identity
from .tcp_peers import TcpPeers


@pytest_asyncio.fixture(loop_scope="session")
async def peers() -> AsyncIterator[TcpPeers]:
    """Two addresses at which no broker listens yet."""
    made = TcpPeers()
    yield made
    await made.close()


async def test_a_peer_of_another_cluster_is_refused(peers: TcpPeers) -> None:
    a, stranger = await peers.start("a", 1), await peers.start("b", 4, cluster="c2")
    with pytest.raises(PeerSilentError, match="another cluster"):
        await a.dialer.dial(peers.address("b"), 2.0)
    assert not stranger.ups()


async def test_a_name_without_an_address_says_nothing_of_the_process_behind_it() -> None:
    name = "a" * 64 + ".invalid"  # too long for a label: no name server is asked
    with pytest.raises(PeerSilentError, match=r"\.invalid"):
        await LinkDialer(identity("a", 1)).dial(f"{name}:7100", 5.0)


async def test_both_ends_learn_which_forms_the_other_one_reads(peers: TcpPeers) -> None:
    """Each says it in its hello, no matter which one dialed."""
    new, other = await peers.start("a", 1, forms=6), await peers.start("b", 4, forms=1)
    new.links.connect("b")
    await new.until(lambda: bool(new.ups()))
    await other.until(lambda: bool(other.ups()))
    assert ([up.forms for up in new.ups()], [up.forms for up in other.ups()]) == ([1], [6])


async def test_a_table_of_4_mb_arrives(peers: TcpPeers) -> None:
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
    window = pack_window([Entry(0, at, 1, at) for at in range(WINDOW_BATCHES)], 7)
    return pack_table({at.to_bytes(16, "big"): window for at in range(size_mb * 1_000_000 // (17 + len(window)))})


@pytest.mark.parametrize("kind", ["prepare", "fence", "table", "copy"])
async def test_a_message_that_is_larger_than_a_frame_arrives_and_heartbeats_go_between(
    peers: TcpPeers, kind: str
) -> None:
    """Above 32 MiB a frame is refused: the link would break, and break again with each retry."""
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
