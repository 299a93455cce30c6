"""From the options of a batch read to its tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from seriatim_api.ids import make_offset
from seriatim_spark.errors import DataLossError, OffsetsError, SourceError, TopicReplacedError, UnsettledError
from seriatim_spark.options import ReadOptions, parse
from seriatim_spark.reading.batch_plan import plan_batch
from seriatim_spark.reading.brokers import At, TopicAt
from seriatim_spark.reading.task_plan import Unit

from .fake_brokers import FakeBrokers, FakeClock, FakePartition, FakeTopic

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def options(**given: str) -> ReadOptions:
    return parse({"bootstrap": "h:1", "topic": "orders"} | given)


def brokers(**partitions: FakePartition) -> FakeBrokers:
    found = partitions or {"p0": FakePartition([100, 50]), "p1": FakePartition([0]), "p2": FakePartition([10])}
    return FakeBrokers(orders=FakeTopic("id-1", dict(enumerate(found.values()))))


def flat(tasks: list[tuple[Unit, ...]]) -> list[tuple[int, int, int, int]]:
    return [(unit.partition, unit.start, unit.end, unit.rows) for task in tasks for unit in task]


def test_everything_that_is_there() -> None:
    tasks = plan_batch(options(), brokers())
    assert flat(tasks) == [
        (0, make_offset(1, 0), make_offset(2, 50), 150),
        (2, make_offset(1, 0), make_offset(1, 10), 10),
    ]
    assert {unit.incarnation for task in tasks for unit in task} == {"id-1"}


def test_between_offsets_of_a_user() -> None:
    start = json.dumps({"orders": {"0": "1:90", "2": "latest"}})
    end = json.dumps({"orders": {"0": make_offset(2, 5)}})
    assert flat(plan_batch(options(startingOffsets=start, endingOffsets=end), brokers())) == [
        (0, make_offset(1, 90), make_offset(2, 5), 15)
    ]


def test_between_times() -> None:
    cluster = brokers()
    cluster.topics["orders"].times[NOON] = {0: 120, 2: 3}
    found = flat(plan_batch(options(startingTimestamp=NOON.isoformat()), cluster))
    assert found == [(0, make_offset(2, 20), make_offset(2, 50), 30), (2, make_offset(1, 3), make_offset(1, 10), 7)]
    found = flat(plan_batch(options(endingTimestamp=NOON.isoformat()), cluster))
    assert [rows for *_, rows in found] == [120, 3]


def test_what_comes_while_the_query_is_planned_is_for_the_next_one() -> None:
    """A time is asked for after the ends; messages that came in between do not belong to the range."""
    cluster = brokers(p0=FakePartition([100]))

    class Growing(FakeBrokers):
        def at(self, at: At, incarnations: Mapping[str, str]) -> dict[str, TopicAt]:
            found = super().at(at, incarnations)
            cluster.topics["orders"].partitions[0].segments[-1] += 7
            return found

    found = flat(plan_batch(options(endingTimestamp=NOON.isoformat()), Growing(**cluster.topics)))
    assert found == [(0, make_offset(1, 0), make_offset(1, 100), 100)]


def test_ranges_are_cut_only_where_order_is_given_up() -> None:
    cluster = brokers(p0=FakePartition([5000, 3000]))
    assert len(plan_batch(options(minPartitions="8"), cluster)) == 1
    tasks = plan_batch(options(ordering="none", minPartitions="4", maxBytesPerPartition="64KiB"), cluster)
    assert len(tasks) >= 4
    found = flat(tasks)
    assert sum(rows for *_, rows in found) == 8000
    assert found == sorted(found)


def test_what_retention_dropped_is_an_error_or_a_gap() -> None:
    cluster = brokers(p0=FakePartition([100, 50], dropped=20))
    start = '{"orders": {"0": "1:5"}}'
    with pytest.raises(DataLossError, match=r"orders/0 from 1:5 to 1:20.*failOnDataLoss=false"):
        plan_batch(options(startingOffsets=start), cluster)
    found = flat(plan_batch(options(startingOffsets=start, failOnDataLoss="false"), cluster))
    assert found == [(0, make_offset(1, 20), make_offset(2, 50), 130)]
    assert flat(plan_batch(options(), cluster)) == found, "from the first message that is kept nothing is missing"


def test_behind_what_was_dropped_to_the_last_message_nothing_is_missing() -> None:
    """1:100 is the end of the first segment, all of which was dropped."""
    cluster = brokers(p0=FakePartition([100, 50], dropped=100))
    found = flat(plan_batch(options(startingOffsets='{"orders": {"0": "1:100"}}'), cluster))
    assert [rows for *_, rows in found] == [50]


@pytest.mark.parametrize(
    ("given", "kind", "told"),
    [
        ({"endingOffsets": '{"orders": {"0": "2:51"}}'}, OffsetsError, "after the end of orders/0, which is 2:50"),
        ({"startingOffsets": '{"orders": {"0": "7:0"}}'}, OffsetsError, "after the end"),
        ({"startingOffsets": '{"orders": {"9": "1:0"}}'}, OffsetsError, "partition 9"),
        (
            {"startingOffsets": '{"orders": {"0": "1:9"}}', "endingOffsets": '{"orders": {"0": "1:3"}}'},
            OffsetsError,
            "lies before",
        ),
        (
            {"startingOffsets": '{"v": 1, "t": {"orders": {"id": "other", "p": {"0": "1:3"}}}}'},
            TopicReplacedError,
            "not the one",
        ),
    ],
)
def test_places_that_are_not_there(given: dict[str, str], kind: type[SourceError], told: str) -> None:
    with pytest.raises(kind, match=told):
        plan_batch(options(**given), brokers())


def test_a_range_of_which_all_is_lost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    cluster = brokers(p0=FakePartition([100, 50, 0], lost=frozenset({2})))
    start = '{"orders": {"0": "2:10"}}'
    with pytest.raises(DataLossError, match="orders/0"):
        plan_batch(options(startingOffsets=start), cluster)
    assert plan_batch(options(startingOffsets=start, failOnDataLoss="false"), cluster) == []
    assert "failOnDataLoss=false" in caplog.text


def test_a_segment_that_is_not_settled_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers show only what is before it, as if there were no more."""
    partition = FakePartition([100, 50], unsettled=2)
    cluster, clock = brokers(p0=partition), FakeClock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    def plan(**given: str) -> list[int]:
        return [rows for *_, rows in flat(plan_batch(options(readTimeout="7s", **given), cluster, clock, sleep))]

    with pytest.raises(UnsettledError, match=r"orders/0 at 2:0.*failOnDataLoss=false"):
        plan()
    assert clock.now == pytest.approx(1007, abs=1)
    with pytest.raises(UnsettledError):
        plan(startingOffsets='{"orders": {"0": "2:10"}}', endingOffsets='{"orders": {"0": "2:20"}}')
    assert plan(failOnDataLoss="false") == [100]
    assert "orders/0 at 2:0" in caplog.text
    assert plan(endingOffsets='{"orders": {"0": "1:70"}}') == [70], "what is before it can be read"

    def back(seconds: float) -> None:
        partition.unsettled = 0

    assert [rows for *_, rows in flat(plan_batch(options(), cluster, clock, back))] == [150]
