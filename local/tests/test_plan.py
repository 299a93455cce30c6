"""Addresses and names: the pure part of the local cluster."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from seriatim_api.errors import BadRequestError, IllegalNameError
from seriatim_local.layout.names import paths, victims
from seriatim_local.layout.plan import PORT_COUNT, Address, ClusterPlan, Hosts, make_plan
from seriatim_local.state import DIRECTORY_DEFAULT, find_directory


def plan(groups: int = 3, members: int = 2, *, proxy: bool = True) -> ClusterPlan:
    return make_plan(name="c", group_count=groups, member_count=members, base_port=7000, proxy=proxy)


def test_a_cluster_is_found_from_a_directory_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "src" / "deep"
    directory = tmp_path / DIRECTORY_DEFAULT
    for made in (below, directory):
        made.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_directory() == DIRECTORY_DEFAULT
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert find_directory() == str(directory)
        monkeypatch.chdir(tmp_path)
        assert find_directory() == DIRECTORY_DEFAULT, "it runs here"


def test_each_directed_pair_has_a_port_of_its_own() -> None:
    found = plan()
    assert len(found.links) == 6 + 6 + 6 + 2 * 6 * 5
    assert len({link.listen for link in found.links}) == len(found.links)
    broker = found.broker("g1-0")
    assert broker.advertised == Address("127.0.0.4", 7000)
    assert dict(broker.peers)["g0-0"] == Address("127.0.0.2", 7012)
    assert broker.coordinator == Address("127.0.0.1", 7012)
    assert dict(broker.link_peers)["g0-0"] == Address("127.0.0.2", 7052)
    [over_tcp] = [link for link in found.links if link.listen == Address("127.0.0.2", 7052)]
    assert (over_tcp.source, over_tcp.target) == ("g1-0", found.broker("g0-0").link_listen)
    assert found.broker("g0-0").listen in {link.target for link in found.links if link.source == "g1-0"}
    to_clients = {link.listen: link.target for link in found.links if link.source == "clients"}
    assert to_clients[broker.advertised] == broker.listen
    assert to_clients[broker.streams] == broker.stream_listen
    assert (broker.advertised.host, broker.streams.port) == (broker.streams.host, 7005)


def test_all_ports_lie_in_the_range_also_of_the_largest_cluster() -> None:
    for largest in (plan(20, 2), plan(40, 2, proxy=False)):
        assert len(set(largest.listen_addresses)) == len(largest.listen_addresses)
        for address in largest.listen_addresses:
            assert 7000 <= address.port < 7000 + PORT_COUNT
    with pytest.raises(BadRequestError, match="1 to 40 brokers"):
        plan(41, 1)
    with pytest.raises(BadRequestError, match="1 to 80 brokers"):
        plan(81, 1, proxy=False)
    with pytest.raises(IllegalNameError):
        make_plan(name="a/b", group_count=1, member_count=1, base_port=7000, proxy=True)


def test_without_the_proxy_everybody_is_reached_directly() -> None:
    found = plan(proxy=False)
    assert found.links == ()
    assert dict(found.broker("g0-0").peers)["g0-1"] == found.broker("g0-1").listen == found.broker("g0-1").advertised
    assert dict(found.broker("g0-0").link_peers)["g0-1"] == found.broker("g0-1").link_listen
    assert found.broker("g0-0").streams == found.broker("g0-0").stream_listen
    assert found.broker("g0-0").coordinator == found.coordinator


def test_hosts_of_another_network_take_the_place_of_the_loopback_addresses() -> None:
    hosts = Hosts("10.0.0.1", tuple(f"10.0.0.{2 + number}" for number in range(4)))
    found = make_plan(name="c", group_count=2, member_count=2, base_port=7000, proxy=False, hosts=hosts)
    assert {address.host for address in found.listen_addresses} == {hosts.coordinator, *hosts.brokers}
    assert found.bootstrap == tuple(f"{host}:7000" for host in hosts.brokers)
    assert found.broker("g0-0").peers[2] == ("g1-1", Address("10.0.0.5", 7000))
    assert found.broker("g1-1").coordinator == Address("10.0.0.1", 7001)


def test_who_talks_to_whom_does_not_depend_on_the_proxy() -> None:
    assert plan(proxy=False).pairs == plan().pairs
    assert set(plan().pairs) == {(link.source, link.destination) for link in plan().links}


def test_victims_are_brokers_groups_or_the_coordinator() -> None:
    assert victims(plan(), ("g1",)) == ("g1-0", "g1-1")
    assert victims(plan(), ("g2-1", "g0-0", "g2")) == ("g0-0", "g2-0", "g2-1")
    assert victims(plan(), ("coordinator",)) == ("coordinator",)
    assert victims(plan(2, 1), ("all",)) == ("g0-0", "g1-0")
    for name in ("clients", "g9", ""):
        with pytest.raises(BadRequestError):
            victims(plan(), (name,))


def test_a_group_is_cut_off_from_all_others_and_not_within() -> None:
    found = set(paths(plan(2, 2), "g0", "all", one_way=False))
    assert ("g0-0", "g0-1") not in found
    others = ("g1-0", "g1-1", "clients", "coordinator")
    assert found == {pair for a in ("g0-0", "g0-1") for b in others for pair in ((a, b), (b, a))}
    assert set(paths(plan(2, 2), "all", "g0", one_way=False)) == found
    assert set(paths(plan(2, 2), "g0", "g0", one_way=False)) == {("g0-0", "g0-1"), ("g0-1", "g0-0")}


def test_one_way_is_from_the_first_to_the_second() -> None:
    assert paths(plan(), "g0-0", "coordinator", one_way=True) == (("g0-0", "coordinator"),)
    assert paths(plan(), "coordinator", "g0-0", one_way=True) == (("coordinator", "g0-0"),)
    assert paths(plan(), "g0-0", "g0", one_way=True) == (("g0-0", "g0-1"),)


def test_what_has_no_link_cannot_be_cut() -> None:
    for a, b in (("clients", "coordinator"), ("g0-0", "g0-0"), ("clients", "clients")):
        with pytest.raises(BadRequestError, match="no link"):
            paths(plan(), a, b, one_way=False)
