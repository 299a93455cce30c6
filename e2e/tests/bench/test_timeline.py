"""The timeline of one message: what it stamps is there, and the hops come out of the stamps in their order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from e2e.bench.timeline import stamps
from e2e.bench.timeline.hops import ASIDE, HOPS, Role, aside, measured, timelines
from e2e.bench.timeline.run import figures_of, measure_timelines
from e2e.bench.timeline.stamps import Place, PlaceGoneError, Times, installed


class Worker:
    """Stands for a class of the product."""

    def work(self, what: object) -> object:
        return what


class Batch:
    pass


HERE = __name__
WORK = Place("work", f"{HERE}:Worker.work")


def test_every_function_that_the_timeline_stamps_is_there() -> None:
    stamps.check()


def test_each_hop_has_a_stamp() -> None:
    kept = {place.stamp for place in (*stamps.BROKER, *stamps.CLIENT)} | {stamps.REPLY_WRITTEN}
    assert {hop.stamp for hop in (*HOPS[:-1], *ASIDE)} == kept


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (replace(WORK, target=f"{HERE}:Worker.rest"), "defines no function rest"),
        (replace(WORK, target=f"{HERE}:Idler.work"), "Idler"),
        (replace(WORK, target="seriatim_broker.gone:Worker.work"), "seriatim_broker.gone"),
        (replace(WORK, parameter="whom", of=f"{HERE}:Batch"), "no parameter 'whom'"),
        (replace(WORK, parameter="what", of=f"{HERE}:Letter"), "Letter"),
        (
            replace(WORK, parameter="what", attribute="text", of=f"{HERE}:Batch", inside=f"{HERE}:Place"),
            "no field 'text'",
        ),
    ],
)
def test_a_function_that_is_gone_is_named_and_nothing_is_changed(place: Place, said: str) -> None:
    before = Worker.__dict__["work"]
    with (
        pytest.raises(PlaceGoneError, match=said) as raised,
        installed([WORK, place]),
    ):
        pytest.fail("a place is gone")
    assert place.target in str(raised.value)
    assert "e2e/bench/timeline/stamps.py" in str(raised.value)
    assert Worker.__dict__["work"] is before


def test_calls_are_stamped_by_their_argument_until_the_block_ends() -> None:
    before = Worker.__dict__["work"]
    begun = replace(WORK, stamp="begun", parameter="what", of=f"{HERE}:Batch")
    ended = replace(begun, stamp="ended", at="return")
    with installed([begun, ended]) as times:
        batch = Batch()
        assert Worker().work(batch) is batch
        Worker().work("no batch")
    Worker().work(batch)
    assert Worker.__dict__["work"] is before
    assert [len(times[name]) for name in ("begun", "ended")] == [1, 1]
    assert times["begun"] <= times["ended"]


STEP_NS = 1000


def made(begin_ns: int, *, without: str = "") -> dict[Role, Times]:
    """Stamps of one message, `STEP_NS` apart. Those of the master's own write lie between two hops of the slave."""
    times: dict[Role, Times] = {"client": {}, "master": {}, "slave": {}}
    for number, hop in enumerate(HOPS[:-1], 1):
        times[hop.role][hop.stamp] = [] if hop.name == without else [begin_ns + number * STEP_NS]
    for number, hop in enumerate(ASIDE):
        times[hop.role][hop.stamp] = [begin_ns + 4 * STEP_NS + number]
    return times


def joined(*several: dict[Role, Times]) -> dict[Role, Times]:
    """The stamps of several messages, in order."""
    return {
        role: {name: [moment for times in several for moment in times[role][name]] for name in several[0][role]}
        for role in several[0]
    }


def test_each_message_has_the_stamps_between_its_begin_and_its_end() -> None:
    end_ns = len(HOPS) * STEP_NS
    messages = [(begin_ns, begin_ns + end_ns) for begin_ns in (0, 100_000, 200_000)]
    times = joined(made(0), made(100_000, without="flush_begins"), made(200_000))
    times["slave"]["submitted"][:0] = [1]  # of something else, before the slave has the message
    found = timelines(messages, times)
    assert [timeline.at_us for timeline in found] == [tuple(float(n) for n in range(1, len(HOPS) + 1))] * 2
    assert {timeline.took_us for timeline in found} == {(1.0,) * len(HOPS)}
    assert aside(found) == list(zip(ASIDE, (4.0, 4.001, 4.002), strict=True))


def test_a_flush_on_the_event_loop_has_the_same_hops() -> None:
    """There the write is submitted and flushed in one call, so its stamps may have the same time."""
    times = made(0)
    for name in ("flush begun", "flush ended"):
        times["slave"][name] = times["slave"]["submitted"]
    (found,) = timelines([(0, len(HOPS) * STEP_NS)], times)
    at = dict(zip((hop.name for hop in HOPS), found.at_us, strict=True))
    assert at["submitted"] == at["flush_begins"] == at["flush_ends"] < at["slave_answers"]


def test_the_slowest_messages_show_which_hop_took_their_time() -> None:
    messages = [(number * 100_000, number * 100_000 + 90_000) for number in range(200)]
    times = joined(*(made(begin_ns) for begin_ns, _ in messages))
    slow = 7
    messages[slow] = (messages[slow][0], messages[slow][0] + 95_000)
    rows = {row.hop.name: row for row in measured(timelines(messages, times))}
    assert rows["program"].took_us == 90 - (len(HOPS) - 1)
    assert rows["program"].slowest_us == pytest.approx(rows["program"].took_us + 2.5)  # one of two
    assert rows["master_has"].slowest_us == 1


def test_messages_that_were_not_seen_whole_are_a_problem() -> None:
    found = timelines([(0, len(HOPS) * STEP_NS)], made(0))
    assert not any(figure.problem for figure in figures_of(found, 1))
    assert "9 of 10 messages" in figures_of(found, 10)[0].problem
    assert all(figure.value is None and figure.problem for figure in figures_of([], 3))


def test_a_stamped_function_may_be_called_with_named_arguments() -> None:
    with installed([WORK, replace(WORK, stamp="worked", at="return")]) as times:
        assert Worker().work(what="ops") == "ops"
    assert [len(stamped) for stamped in times.values()] == [1, 1]


@pytest.mark.faults
def test_real_brokers_give_a_timeline_in_order(tmp_path: Path) -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    found, sent = asyncio.run(measure_timelines(tmp_path, 1, 50, lambda _doing: None))
    structlog.reset_defaults()
    assert len(found) >= 0.9 * sent
    for timeline in found:
        assert all(took >= 0 for took in timeline.took_us)
        assert len(timeline.aside_us) == len(ASIDE)
    assert sum(row.took_us for row in measured(found)) > 100  # µs: no message is faster
