"""At which addresses other brokers are reached."""

from __future__ import annotations

from collections.abc import Mapping

from seriatim_api.v1 import common_pb2, records_pb2
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.membership.directory import Directory

CALLS, LINKS = "host-1:7100", "host-1:7103"


def directory(peers: Mapping[str, str] | None = None, link_peers: Mapping[str, str] | None = None) -> Directory:
    """What g0-0 knows when g0-1 is registered in run 3."""
    found = Directory("g0-0", Keys("c"), peers or {}, lambda _event: None, link_peers)
    member = common_pb2.Member(broker="g0-1", incarnation="disk")
    found.members["g0-1"] = records_pb2.MemberRecord(member=member, run=3, address=CALLS, link_address=LINKS)
    return found


def test_a_broker_is_called_and_linked_where_it_registered() -> None:
    found = directory()
    assert (found.peer_address("g0-1"), found.link_address("g0-1")) == (CALLS, LINKS)
    assert (found.peer_address("g9-9"), found.link_address("g9-9")) == (None, None)


def test_addresses_set_by_hand_come_first() -> None:
    found = directory({"g0-1": "proxy:1", "g9-9": "proxy:3"}, {"g0-1": "proxy:2", "g9-9": "proxy:4"})
    assert (found.peer_address("g0-1"), found.link_address("g0-1")) == ("proxy:1", "proxy:2")
    assert (found.peer_address("g9-9"), found.link_address("g9-9")) == ("proxy:3", "proxy:4")
    assert found.client_address("g0-1") == CALLS, "clients are not led there"


def test_a_port_of_streams_is_told_if_there_is_one() -> None:
    found = directory()
    assert (found.stream_port("g0-1"), found.stream_port("g9-9")) == (0, 0)
    found.members["g0-1"].stream_port = 7104
    assert found.stream_port("g0-1") == 7104
