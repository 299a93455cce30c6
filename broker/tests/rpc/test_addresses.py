"""An answer has only addresses of the port over which it was asked for."""

from __future__ import annotations

from seriatim_api.v1 import common_pb2, records_pb2
from seriatim_broker.core.values.effects import RouteInfo
from seriatim_broker.rpc.calls.addresses import Addresses
from seriatim_broker.runtime.coordinator.keys import Keys
from seriatim_broker.runtime.membership.directory import Directory


def record(broker: str, external: str, external_run: int = 3) -> records_pb2.MemberRecord:
    group, _, slot = broker.partition("-")
    return records_pb2.MemberRecord(
        member=records_pb2.MemberRecord().member.__class__(broker=broker, incarnation="d" * 32),
        group=group,
        slot=int(slot),
        run=3,
        address=f"{broker}.inner:7100",
        admitted=True,
        external_address=external,
        external_run=external_run,
    )


def directory() -> Directory:
    """Two brokers with an external address, one without, and one whose run has not said it yet."""
    found = Directory("g0-0", Keys("c"), {}, lambda _event: None)
    records = (
        record("g0-0", "203.0.113.1:31000"),
        record("g0-1", ""),
        record("g1-0", "203.0.113.3:31002"),
        record("g1-1", "203.0.113.4:31003", external_run=2),
    )
    found.members = {each.member.broker: each for each in records}
    return found


def test_inside_every_broker_is_told_by_its_inner_address() -> None:
    known = directory()
    inner = Addresses(known, known.client_address)
    assert [each.address for each in inner.all()] == [f"{name}.inner:7100" for name in ("g0-0", "g0-1", "g1-0", "g1-1")]
    route = inner.route(RouteInfo(1, 1, 1, "g0-1", ("g1",)))
    assert (route.master_address, list(route.next_addresses)) == ("g0-1.inner:7100", ["g1-0.inner:7100"])


def test_ports_for_streams_are_named_inside_only() -> None:
    known = directory()
    for name, member in known.members.items():
        member.stream_port = 7104 * (name != "g1-1")
    inner = Addresses(known, known.client_address, known.stream_port)
    assert [each.stream_port for each in inner.all()] == [7104, 7104, 7104, 0], "the last one has none"
    outer = Addresses(known, known.external_address)
    assert not any(each.stream_port for each in outer.all())


def test_outside_no_inner_address_is_ever_told() -> None:
    known = directory()
    outer = Addresses(known, known.external_address)
    assert [each.address for each in outer.all()] == ["203.0.113.1:31000", "203.0.113.3:31002"]
    assert outer.of("g0-1") == "", "it has no external address yet"
    assert outer.of("g1-1") == "", "its run has not registered one"
    assert outer.known(["g0-1", "g1-0", "g1-1"]) == ["203.0.113.3:31002"]
    route = outer.route(RouteInfo(1, 1, 1, "g0-1", ("g1",)))
    assert (route.master_broker, route.master_address) == ("g0-1", "")
    assert list(route.next_addresses) == ["203.0.113.3:31002"]


def test_a_route_that_another_broker_gave_is_told_in_the_addresses_of_this_port() -> None:
    known = directory()
    given = common_pb2.Route(
        segment=7, master_broker="g1-0", master_address="g1-0.inner:7100", next_addresses=["g0-0.inner:7100"]
    )
    told = Addresses(known, known.external_address).readdressed(given)
    assert (told.segment, told.master_address, list(told.next_addresses)) == (7, "203.0.113.3:31002", [])
