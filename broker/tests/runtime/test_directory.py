"""How a broker is reached: over TCP, or over gRPC if it has no port for links or an address set by hand says so."""

from __future__ import annotations

from collections.abc import Mapping

from seriatim_api.v1 import common_pb2, records_pb2
from seriatim_broker.runtime.directory import Directory
from seriatim_broker.runtime.keys import Keys

GRPC, TCP = "host-1:7100", "host-1:7103"


def directory(
    *,
    has_port: bool = True,
    peers: Mapping[str, str] | None = None,
    link_peers: Mapping[str, str] | None = None,
    theirs: Mapping[str, str] | None = None,
) -> Directory:
    """What g0-0 knows when g0-1 is registered in run 3."""
    found = Directory("g0-0", Keys("c"), peers or {}, lambda _event: None, link_peers)
    found.members["g0-1"] = records_pb2.MemberRecord(
        member=common_pb2.Member(broker="g0-1", incarnation="disk"),
        run=3,
        address=GRPC,
        link_address=TCP if has_port else "",
        peer_addresses=theirs,
    )
    return found


def test_a_link_goes_over_tcp_if_the_broker_takes_it() -> None:
    found = directory()
    assert found.link_address("g0-1") == f"tcp://{TCP}"
    assert found.peer_address("g0-1") == GRPC, "calls go over gRPC"
    assert found.link_address("g9-9") is None


def test_a_broker_without_a_port_for_links_is_linked_over_grpc() -> None:
    assert directory(has_port=False).link_address("g0-1") == GRPC


def test_addresses_set_by_hand_lead_the_link_where_they_say() -> None:
    by_hand = {"g0-1": "proxy:1"}
    assert directory(link_peers={"g0-1": "proxy:2"}, peers=by_hand).link_address("g0-1") == "tcp://proxy:2"
    assert directory(link_peers={"g0-1": "proxy:2"}).link_address("g0-1") == "tcp://proxy:2"
    assert directory(peers=by_hand).link_address("g0-1") == "proxy:1", "nothing is known of another way"
    assert directory(theirs={"g0-0": "other:3"}).link_address("g0-1") == "other:3"
    assert directory(theirs={"g1-0": "other:3"}).link_address("g0-1") == f"tcp://{TCP}", "meant for another broker"
    assert directory(has_port=False, link_peers={"g0-1": "proxy:2"}).link_address("g0-1") == GRPC


def test_a_port_of_streams_is_told_if_there_is_one() -> None:
    found = directory()
    assert (found.stream_port("g0-1"), found.stream_port("g9-9")) == (0, 0)
    found.members["g0-1"].stream_port = 7104
    assert found.stream_port("g0-1") == 7104
