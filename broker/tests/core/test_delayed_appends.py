"""Delayed batches: what a master takes, when they are due, and that readers pass them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from seriatim_api.batch import FLAG_CONTROL, FLAG_DELAYED, FLAG_FIRED, FLAG_PUBLISH, FLAG_STAGED
from seriatim_api.delay_limits import DelayLimits
from seriatim_api.delayed import EARLY_MS_MAX, fire_producer
from seriatim_api.errors import BadRequestError, OverloadedError, ProducerFencedError, SequenceGapError
from seriatim_api.ids import make_offset
from seriatim_api.publications import STAGE_TOPIC
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Opening, Seal, open_over, seal_and_open, settle
from seriatim_broker.core.values.delayed import Amount
from seriatim_broker.core.values.delayed_messages import DelayedPending
from seriatim_broker.core.values.delays import KnownDelayLimits
from seriatim_broker.core.values.log import Batch, PutBatch
from seriatim_broker.core.values.messages import FORM_DELAYED
from seriatim_broker.core.values.positions import Place
from seriatim_broker.runtime.coordinator.records import chain_from_record, chain_to_record

from .keyed_support import KeyedServing
from .support import (
    GROUPS,
    M01,
    M10,
    Bench,
    P,
    Serving,
    attempt,
    batches_of,
    checksum_of,
    first_chain,
    header,
    sealed_chain,
)
from .test_ranges import Reading

LIMITS = KnownDelayLimits(DelayLimits(delay_max_ms=10_000))


class Older(Bench):
    """The other broker does not know delayed messages."""

    forms = 0


def master(topic: str = "t", kind: type[Bench] = Bench) -> Bench:
    """A master of the topic."""
    bench = kind()
    bench.open(replace(first_chain(), topic=topic))
    bench.follow(M01)
    bench.clear()
    return bench


def send(bench: Bench, due_time_ms: int, flags: int = FLAG_DELAYED, number: int = 0, **more: Any) -> Any:
    """A batch of a client, or of a broker (`is_forward`). Returns its error; None if it is stored."""
    is_forward = more.pop("is_forward", False)
    bench.requests += 1
    sequence = more.pop("sequence", 0 if is_forward else number)
    sent = header(sequence, 1, flags=flags, due_time_ms=due_time_ms, **more)
    level = ev.AckLevel.REPLICATED_FLUSHED if is_forward else ev.AckLevel.MASTER_RECEIVED
    event = ev.Append(bench.requests, P, sent, b"body", 1 + number, True, level, is_forward=is_forward, delays=LIMITS)
    bench.do(event)
    return bench.refused().get(bench.requests)


def stored(bench: Bench) -> tuple[int, int, int]:
    """The flags, the append time and the due time of the newest batch. The followers have the same header."""
    (*_, put) = bench.writes(PutBatch)
    made = put.batch.header
    return made.flags, made.append_time_ms, made.due_time_ms


def answered(bench: Bench) -> int | None:
    """When the newest batch is due, as its producer is told."""
    return bench.all(fx.AppendAccepted)[-1].due_time_ms


def test_a_duration_counts_from_the_append_and_a_time_stays() -> None:
    bench = master()
    assert send(bench, -5_000) is None
    flags, appended_ms, due_ms = stored(bench)
    assert (flags, due_ms) == (FLAG_DELAYED, appended_ms + 5_000)
    assert appended_ms == bench.wall_ms
    assert answered(bench) == due_ms
    assert send(bench, bench.wall_ms + 7_000, number=1) is None
    assert stored(bench)[2] == answered(bench) == bench.wall_ms + 7_000


def test_what_is_due_at_its_append_is_an_ordinary_batch() -> None:
    bench = master()
    for number, due_ms in enumerate((1, bench.wall_ms - 1, bench.wall_ms)):
        assert send(bench, due_ms, number=number) is None
        assert stored(bench) == (0, bench.wall_ms, 0)
        assert answered(bench) == 0
    bench.wall_jump_ms -= 1_000
    assert send(bench, bench.wall_ms + 1_000, number=3) is None
    assert stored(bench)[0] == FLAG_DELAYED, "append time stands still, and the clock is what counts"


@pytest.mark.parametrize(
    ("topic", "due_time_ms", "flags", "text"),
    [
        ("t", 1, 0, "not the flag DELAYED"),
        ("t", -1, 0, "not the flag DELAYED"),
        ("t", 0, FLAG_DELAYED, "no due time"),
        ("t", -10_001, FLAG_DELAYED, "10001 ms"),
        ("t", -(1 << 63), FLAG_DELAYED, "delay_max_ms"),
        ("t", (1 << 63) - 1, FLAG_DELAYED, "delay_max_ms"),
        ("t", -1, FLAG_DELAYED | FLAG_FIRED, "FIRED"),
        ("t.g.dead", -1, FLAG_DELAYED, "dead letters"),
        (STAGE_TOPIC, -1, FLAG_DELAYED | FLAG_STAGED, "published together"),
        ("t", -1, FLAG_DELAYED | FLAG_PUBLISH, "published together"),
    ],
)
def test_a_delay_that_cannot_be_is_refused(topic: str, due_time_ms: int, flags: int, text: str) -> None:
    bench = master(topic)
    error = send(bench, due_time_ms, flags)
    assert type(error) is BadRequestError
    assert text in str(error)
    assert "nothing was stored" in str(error)
    assert not bench.writes(PutBatch)


def test_a_delay_is_refused_until_all_brokers_know_delays() -> None:
    bench = master(kind=Older)
    error = send(bench, -1)
    assert isinstance(error, BadRequestError)
    assert "not all take delayed messages" in str(error)
    bench.do(ev.DirectoryChanged(GROUPS, forms=FORM_DELAYED))
    assert send(bench, -1, number=1) is not None, "the link to the other broker says that it is of an older version"


def test_the_repeat_of_a_delayed_batch_is_answered_with_its_origin() -> None:
    bench = master()
    send(bench, -5_000)
    bench.now_us += 1_000_000_000
    bench.do(ev.DirectoryChanged(GROUPS))
    bench.requests += 1
    again = header(0, 1, flags=FLAG_DELAYED, due_time_ms=-5_000)
    bench.do(ev.Append(bench.requests, P, again, b"body", 2, True, 1, delays=KnownDelayLimits(DelayLimits(0))))
    assert bench.accepted()[bench.requests] == make_offset(1, 0), "whatever the limits are by now"
    assert answered(bench) is None


def test_a_fired_batch_is_refused_before_its_time_unless_it_is_stored_already() -> None:
    bench = master()
    fired = {"is_forward": True, "producer": fire_producer(P, 1), "origin": (P, make_offset(1, 7))}
    due_ms = bench.wall_ms + EARLY_MS_MAX + 500
    error = send(bench, due_ms, FLAG_FIRED, **fired)
    assert isinstance(error, OverloadedError)
    bench.now_us += 500_000
    assert send(bench, due_ms, FLAG_FIRED, number=1, **fired) is None
    flags, _, stored_due_ms = stored(bench)
    assert (flags, stored_due_ms, bench.writes(PutBatch)[-1].batch.header.origin) == (
        FLAG_FIRED,
        due_ms,
        fired["origin"],
    )
    bench.wall_jump_ms -= 3_600_000
    assert send(bench, due_ms, FLAG_FIRED, number=2, **fired) is None, "this number is stored"
    assert len(bench.writes(PutBatch)) == 1
    error = send(bench, due_ms, FLAG_FIRED, number=3, epoch=1, **fired)
    assert isinstance(error, OverloadedError)
    assert error.retry_after_ms == 1_000


def test_volleys_of_an_outdated_server_are_refused() -> None:
    bench = master()
    fired = {"is_forward": True, "producer": fire_producer(P, 1), "origin": (P, make_offset(1, 7))}
    due_ms = bench.wall_ms
    for number, (epoch, sequence) in enumerate(((3, 0), (3, 1), (5, 0), (3, 1), (3, 2), (5, 0), (5, 2), (5, 1))):
        error = send(bench, due_ms, FLAG_FIRED, number=number, epoch=epoch, sequence=sequence, **fired)
        kind = ProducerFencedError if number in (3, 4) else SequenceGapError if number == 6 else type(None)
        assert type(error) is kind, (epoch, sequence)
    assert len(bench.writes(PutBatch)) == 4, "and 5/0 is a repeat"


def test_a_fence_is_stored_only_in_a_new_epoch() -> None:
    bench = master()
    more = {"is_forward": True, "producer": fire_producer(P, 1), "flags": FLAG_CONTROL}
    for number, (epoch, kind) in enumerate(
        ((2, type(None)), (2, ProducerFencedError), (1, ProducerFencedError), (3, type(None)))
    ):
        error = send(bench, 0, number=number, epoch=epoch, **more)
        assert type(error) is kind, epoch
        assert error is None or error.details["epoch"] == "2"


def test_a_moved_batch_stays_delayed_and_keeps_its_due_time() -> None:
    bench = master()
    moved = {"is_forward": True, "producer": fire_producer(P, 1), "origin": (P, make_offset(1, 7))}
    for number, due_ms in enumerate((bench.wall_ms - 1, bench.wall_ms + 100 * 86_400_000)):
        assert send(bench, due_ms, number=number, epoch=number, **moved) is None
        assert stored(bench) == (FLAG_DELAYED, bench.wall_ms, due_ms)


def test_the_record_of_a_sealed_segment_says_until_when_it_is_delayed() -> None:
    bench = master()
    latest_ms = bench.wall_ms + 5_000
    for number, due_ms in enumerate((latest_ms, latest_ms - 4_000)):
        assert send(bench, due_ms, number=number) is None
    bench.link(M10)
    bench.hear(M10, msg.FenceRequest(P, 1, attempt(1), b"s" * 16))
    bench.persist()
    (answer,) = bench.sent(msg.FenceAnswer, M10)
    assert answer.delayed_until_ms == latest_ms
    opening = Opening(attempt(2), "g1", (M10,), 1, incomplete_table=False)
    sealed = Seal(0, 0, M01, (M01,), None, (), 0, answer.delayed_until_ms)
    for made in (
        seal_and_open(first_chain(), sealed, opening, 1),
        settle(open_over(first_chain(), replace(opening, incomplete_table=True), 1), 1, sealed),
    ):
        assert [segment.delayed_until_ms for segment in made.segments] == [latest_ms, 0]
        assert chain_from_record(chain_to_record(made)).segments == made.segments


# ---- readers ----------------------------------------------------------------------------------------------


def test_what_waits_in_the_partition_has_a_limit() -> None:
    bench = master()
    waits = LIMITS.limits.delayed_pending_max
    assert send(bench, -5_000) is None
    bench.do(DelayedPending(P, 1, Amount(waits - 1, 5)))
    assert send(bench, -5_000, number=1) is None
    bench.do(DelayedPending(P, 1, Amount(waits, 5)))
    error = send(bench, -5_000, number=2)
    assert isinstance(error, OverloadedError)
    assert "10,000,000 delayed messages wait in the partition" in error.message
    assert send(bench, -5_000, number=3, sequence=1) is None, "it is stored"
    assert send(bench, 1, number=4, sequence=2) is None, "it is due"
    bench.do(DelayedPending(P, 1, Amount(5, 5)))
    assert send(bench, -5_000, number=5, sequence=3) is None


def _marked(batch: Batch, flag: int) -> Batch:
    return batch._replace(header=batch.header._replace(flags=flag, due_time_ms=1))


def _with_a_delayed_one(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """The second one is delayed, the third one fired."""
    return batches[0], _marked(batches[1], FLAG_DELAYED), _marked(batches[2], FLAG_FIRED), *batches[3:]


def test_a_consumer_of_all_is_given_a_skip_in_place_of_a_delayed_batch() -> None:
    bench = Serving()
    bench.batches = _with_a_delayed_one(bench.batches)
    bench.serve()
    assert bench.indexes() == [0, 2, 3, 4]
    assert bench.delivered(fx.Skip) == [fx.Skip(1, 1, 2)]


def test_consumers_by_key_are_not_given_a_delayed_batch() -> None:
    bench = KeyedServing("aaaaa")
    bench.batches = _with_a_delayed_one(bench.batches)
    bench.serve()
    assert [index for run in bench.granted() for index in run] == [0, 2, 3, 4]


def test_a_range_skips_a_delayed_batch_unless_it_is_read_raw() -> None:
    batches = batches_of(1, (1, 1, 1))
    bench = Reading((1, _with_a_delayed_one(batches)))
    bench.read_chain(sealed_chain(first_chain(), 3, checksum_of(batches)))
    for raw, expected in ((False, [0, 2]), (True, [0, 1, 2])):
        answer = bench.step(Place(1, 0), Place(2, 0), raw=raw)
        assert answer is not None
        found = [
            batch.header.base_index
            for event in answer.events
            if isinstance(event, fx.RangeBatches)
            for batch in event.batches
        ]
        assert found == expected
