"""Links to brokers that are far: how much may be on its way, and from what the distance is taken."""

from __future__ import annotations

from seriatim._core.distance import PARTITION_BYTES_NEAR, distance_of
from seriatim._core.producer import Connected
from seriatim._producing.partition import PartitionSender
from seriatim._transport.append import BATCHES_MAX, CALM_BATCHES, STREAM_BYTES_NEAR, AppendLink, Credits
from seriatim._transport.carriage import Carriage
from seriatim_api.wire.frames import AppendEntry

MIB = 1 << 20


class Unsent:
    """A carriage that sends nothing."""

    round_trip_us = 0

    def wake(self) -> None: ...


async def filled(round_trip_us: int, stream_bytes: int, body: bytes) -> tuple[int, int]:
    """The batches on a link while it is calm, and while it has room."""
    link = AppendLink(None, "a", 1)  # type: ignore[arg-type]  # of the links it uses nothing here
    carriage: Carriage = Unsent()  # type: ignore[assignment]
    link._carriage = carriage
    link.credits = Credits(stream_bytes, 7 * MIB, MIB, 16)
    link.distance = distance_of(round_trip_us)
    calm = count = 0
    while link.has_room:
        calm += link.is_calm
        link.write(AppendEntry(1, 5, False, 1), count, b"p", 0, b"", body)
        count += 1
    return calm, count


async def test_a_near_link_has_the_room_that_it_always_had() -> None:
    assert await filled(2_000, 34 * MIB, b"") == (CALM_BATCHES, BATCHES_MAX)
    assert (await filled(2_000, 34 * MIB, bytes(MIB)))[1] == STREAM_BYTES_NEAR // MIB - 1


async def test_a_far_link_has_room_for_what_is_on_its_way() -> None:
    more = distance_of(50_000)
    assert await filled(50_000, 34 * MIB, b"") == (CALM_BATCHES + more.link_batches, BATCHES_MAX + more.link_batches)
    count = (await filled(50_000, 34 * MIB, bytes(MIB)))[1]
    assert 16 <= count <= (STREAM_BYTES_NEAR + more.link_bytes) // MIB


async def test_a_far_link_stays_within_the_credit_of_the_broker() -> None:
    assert (await filled(200_000, 8 * MIB, bytes(MIB)))[1] == 7


async def windows(round_trip_us: int, partition_bytes: int) -> int:
    """The bytes that a partition may have on its way on such a link."""
    found: list[Connected] = []
    link = AppendLink(None, "a", 1)  # type: ignore[arg-type]  # of the links it uses nothing here
    link.credits, link.distance = Credits(34 * MIB, partition_bytes, MIB, 16), distance_of(round_trip_us)
    sender = PartitionSender.__new__(PartitionSender)
    sender._links = {}
    sender._step = found.append  # type: ignore[assignment,method-assign]
    sender._link_up(link)
    return found[0].window_bytes


async def test_a_far_partition_has_all_of_its_credit_on_its_way() -> None:
    assert await windows(2_000, 17 * MIB) == PARTITION_BYTES_NEAR
    assert await windows(50_000, 17 * MIB) == 17 * MIB
    assert await windows(50_000, 7 * MIB) == 7 * MIB, "a broker of an older version"
