"""How a broker is reached: over TCP, or over gRPC if it is of a version before or an address set by hand says so."""

from __future__ import annotations

from collections.abc import Mapping

from seriatim_api.v1 import common_pb2, records_pb2
from seriatim_broker.runtime.directory import Directory
from seriatim_broker.runtime.keys import Keys

GRPC, TCP = "host-1:7100", "host-1:7103"


def directory(
    *,
    link_run: int = 3,
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
        link_address=TCP if link_run else "",
        link_run=link_run,
        peer_addresses=theirs,
    )
    return found


def test_a_link_goes_over_tcp_if_the_present_run_takes_it() -> None:
    found = directory()
    assert found.link_address("g0-1") == f"tcp://{TCP}"
    assert found.peer_address("g0-1") == GRPC, "calls go over gRPC"
    assert found.link_address("g9-9") is None


def test_a_broker_of_a_version_before_is_linked_over_grpc_also_when_it_came_back_after_a_newer_one() -> None:
    assert directory(link_run=0).link_address("g0-1") == GRPC
    assert directory(link_run=2).link_address("g0-1") == GRPC, "the newer version left the address, in run 2"


def test_addresses_set_by_hand_lead_the_link_where_they_say() -> None:
    by_hand = {"g0-1": "proxy:1"}
    assert directory(link_peers={"g0-1": "proxy:2"}, peers=by_hand).link_address("g0-1") == "tcp://proxy:2"
    assert directory(link_peers={"g0-1": "proxy:2"}).link_address("g0-1") == "tcp://proxy:2"
    assert directory(peers=by_hand).link_address("g0-1") == "proxy:1", "nothing is known of another way"
    assert directory(theirs={"g0-0": "other:3"}).link_address("g0-1") == "other:3"
    assert directory(theirs={"g1-0": "other:3"}).link_address("g0-1") == f"tcp://{TCP}", "meant for another broker"
    assert directory(link_run=0, link_peers={"g0-1": "proxy:2"}).link_address("g0-1") == GRPC


def test_a_port_of_streams_counts_for_the_run_that_said_it() -> None:
    found = directory()
    assert (found.stream_port("g0-1"), found.stream_port("g9-9")) == (0, 0)
    found.members["g0-1"].stream_port, found.members["g0-1"].stream_run = 7104, 2
    assert found.stream_port("g0-1") == 0, "the newer version left the port, in run 2"
    found.members["g0-1"].stream_run = 3
    assert found.stream_port("g0-1") == 7104
