"""What the planner of a stream answers Spark, through growth, limits, retention, restarts and topics made again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from seriatim_spark.errors import DataLossError, OffsetsError, TopicReplacedError, UnsettledError
from seriatim_spark.options import parse
from seriatim_spark.reading.stream_plan import ENDS_KEPT_S, Limit, StreamPlanner

from .fake_brokers import FakeBrokers, FakeClock, FakePartition, FakeTopic

OPTIONS = Limit()
EVERYTHING = Limit(everything=True)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Query:
    """A query as Spark runs it: it keeps offsets as strings."""

    def __init__(self, *partitions: FakePartition, **given: str) -> None:
        numbered = dict(enumerate(partitions or (FakePartition([100]),)))
        self.given = {"bootstrap": "h:1", "topic": "orders"} | given
        self.brokers = FakeBrokers(orders=FakeTopic("id-1", numbered))
        self.partitions = numbered
        self.clock = FakeClock()
        self.restart()
        self.at = ""

    def restart(self, **changed: str) -> None:
        self.given |= changed
        self.planner = StreamPlanner(parse(self.given), self.brokers, self.clock, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds

    def begin(self) -> dict[int, str]:
        self.at = json.dumps(self.planner.initial())
        return self.places()

    def places(self, text: str | None = None) -> dict[int, str]:
        found = json.loads(text or self.at)["t"]["orders"]["p"]
        return {int(number): place for number, place in found.items()}

    def latest(self, limit: Limit = OPTIONS) -> str:
        self.clock.now += 10 * ENDS_KEPT_S
        return json.dumps(self.planner.latest(json.loads(self.at), limit))

    def batch(self, limit: Limit = OPTIONS) -> list[tuple[int, int]]:
        """Run a micro-batch; rows by partition. Empty: there was nothing."""
        end = self.latest(limit)
        if end == self.at:
            return []
        tasks = self.planner.tasks(json.loads(self.at), json.loads(end))
        assert tasks == self.planner.tasks(json.loads(self.at), json.loads(end)), "a repeated batch has the same tasks"
        self.at = end
        assert tasks, "Spark runs no empty batch"
        return [(unit.partition, unit.rows) for task in tasks for unit in task]


def test_from_the_beginning_to_the_end_and_then_nothing() -> None:
    query = Query(FakePartition([100, 20]), FakePartition([5]))
    assert query.begin() == {0: "1:0", 1: "1:0"}
    assert query.batch() == [(0, 120), (1, 5)]
    assert query.places() == {0: "2:20", 1: "1:5"}
    assert query.batch() == []
    query.partitions[1].segments[-1] += 7
    assert query.batch() == [(1, 7)]


def test_from_where_the_options_say() -> None:
    assert Query(startingOffsets="latest").begin() == {0: "1:100"}
    assert Query(startingOffsets='{"orders": {"0": "1:33"}}').begin() == {0: "1:33"}
    query = Query(startingTimestamp=NOON.isoformat())
    query.brokers.topics["orders"].times[NOON] = {0: 50}
    assert query.begin() == {0: "1:50"}
    with pytest.raises(OffsetsError, match="after the end"):
        Query(startingOffsets='{"orders": {"0": "1:101"}}').begin()


def test_spark_asks_often_and_brokers_are_not() -> None:
    query = Query()
    query.begin()
    query.batch()
    before = len(query.brokers.asked)
    for _ in range(50):
        query.planner.latest(json.loads(query.at), OPTIONS)
    assert len(query.brokers.asked) == before
    query.clock.now += 10 * ENDS_KEPT_S
    query.planner.latest(json.loads(query.at), OPTIONS)
    assert len(query.brokers.asked) == before + 1


def test_a_switch_without_messages_makes_no_batch() -> None:
    query = Query(FakePartition([800]))
    query.begin()
    assert query.batch() == [(0, 800)]
    query.partitions[0].segments.append(0)
    assert query.latest() == query.at
    assert query.places() == {0: "1:800"}
    query.partitions[0].segments[-1] = 3
    assert query.batch() == [(0, 3)]


def test_the_end_that_goes_back_while_a_segment_is_unsettled_moves_nothing_back() -> None:
    query = Query(FakePartition([10, 10]))
    query.begin()
    query.batch()
    query.partitions[0].segments = [10, 0]  # brokers cannot say more than the beginning of the second one
    assert query.latest() == query.at


def test_rows_and_bytes_are_limited_and_shared() -> None:
    query = Query(FakePartition([900]), FakePartition([100]), maxRowsPerTrigger="100")
    query.begin()
    assert query.batch() == [(0, 90), (1, 10)]
    query.restart(maxBytesPerTrigger="1000")  # ten rows of a hundred bytes
    assert query.batch() == [(0, 9), (1, 1)]
    assert query.batch(Limit(max_rows=5)) == [(0, 4), (1, 1)]
    assert sum(rows for _, rows in query.batch(EVERYTHING)) > 800, "ReadAllAvailable passes over the options' limits"


def test_a_limit_may_end_in_a_segment_before_the_last() -> None:
    query = Query(FakePartition([10, 10, 10]), maxRowsPerTrigger="4")
    query.begin()
    ends = []
    while query.batch():
        ends.append(query.places()[0])
    assert ends == ["1:4", "1:8", "2:2", "2:6", "2:10", "3:4", "3:8", "3:10"]


def test_a_batch_waits_for_rows_but_not_for_ever() -> None:
    query = Query(FakePartition([5]), minRowsPerTrigger="10", maxTriggerDelay="60s")
    query.begin()
    assert query.batch() == []
    query.partitions[0].segments[0] = 10
    assert query.batch() == [(0, 10)]
    query.partitions[0].segments[0] = 12
    assert query.batch() == []
    query.clock.now += 61
    assert query.batch() == [(0, 2)]


def test_available_now_ends_where_it_was_frozen() -> None:
    query = Query(FakePartition([100]), maxRowsPerTrigger="30", minRowsPerTrigger="20")
    query.begin()
    query.planner.freeze()
    query.partitions[0].segments[0] = 500
    query.partitions[1] = FakePartition([5])
    sizes = []
    while rows := query.batch():
        sizes.append(rows)
    assert sizes == [[(0, 30)], [(0, 30)], [(0, 30)], [(0, 10)]]


def test_a_partition_that_is_new_is_read_from_its_first_message() -> None:
    query = Query(startingOffsets="latest")
    query.begin()
    query.partitions[1] = FakePartition([5])
    assert query.batch() == [(1, 5)]
    assert query.places() == {0: "1:100", 1: "1:5"}


def test_a_new_partition_without_messages_makes_no_batch() -> None:
    query = Query(startingOffsets="latest")
    query.begin()
    query.partitions[1] = FakePartition([0])
    assert query.latest() == query.at


def test_a_new_partition_whose_first_messages_are_gone_is_a_loss() -> None:
    query = Query()
    query.begin()
    query.batch()
    query.partitions[1] = FakePartition([5], dropped=2)
    with pytest.raises(DataLossError, match="orders/1 up to 1:2"):
        query.batch()
    query.restart(failOnDataLoss="false")
    assert query.batch() == [(1, 3)]


def test_retention_under_a_checkpoint_is_an_error_or_a_counted_gap(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(FakePartition([100]), maxRowsPerTrigger="10")
    query.begin()
    query.batch()
    query.partitions[0].dropped = 50
    query.restart()
    with pytest.raises(DataLossError, match=r"orders/0 from 1:10 to 1:50.*failOnDataLoss=false"):
        query.batch()
    query.restart(failOnDataLoss="false")
    assert query.batch() == [(0, 10)]
    assert query.places() == {0: "1:60"}
    assert "1 ranges that this query needs are gone" in caplog.text


def test_a_replayed_range_has_the_same_name_although_its_beginning_is_gone() -> None:
    query = Query(FakePartition([100]), failOnDataLoss="false")
    query.begin()
    end = json.loads(query.latest())
    ((before,),) = query.planner.tasks(json.loads(query.at), end)
    query.partitions[0].dropped = 40
    query.restart()
    ((after,),) = query.planner.tasks(json.loads(query.at), end)
    assert (after.start, after.end) == (before.start, before.end)
    assert (before.rows, after.rows) == (100, 60)


def test_a_topic_made_again_is_not_read() -> None:
    query = Query()
    query.begin()
    query.brokers.topics["orders"] = FakeTopic("id-2", {0: FakePartition([500])})
    for ask in (query.latest, query.batch):
        with pytest.raises(TopicReplacedError, match="not the one that this query has read"):
            ask()
    query.restart()
    query.planner.freeze()  # knows the new one only
    with pytest.raises(TopicReplacedError):
        query.batch()


def test_a_topic_that_is_gone_is_an_error() -> None:
    query = Query()
    query.begin()
    query.brokers.topics["orders"].partitions.clear()
    with pytest.raises(TopicReplacedError, match="there is no topic"):
        query.batch()


def test_a_restart_goes_on_where_the_checkpoint_is() -> None:
    query = Query(FakePartition([10, 10, 10]), maxRowsPerTrigger="7")
    query.begin()
    sizes = []
    while rows := query.batch():
        sizes.append(rows)
        before, end = query.at, query.latest()
        tasks = query.planner.tasks(json.loads(before), json.loads(end))
        query.restart()
        assert query.planner.tasks(json.loads(before), json.loads(end)) == tasks, "a replayed batch has the same tasks"
    assert [rows for ((_, rows),) in sizes] == [7, 7, 7, 7, 2]


@pytest.mark.parametrize(
    "offsets", [{"v": 1, "t": {"payments": {"id": "x", "p": {}}}}, {"v": 9, "t": {}}, {"orders": {"0": 5}}]
)
def test_a_checkpoint_of_another_query_is_refused(offsets: dict[str, Any]) -> None:
    query = Query()
    with pytest.raises(OffsetsError):
        query.planner.latest(offsets, OPTIONS)


def test_a_stream_may_end_at_a_time() -> None:
    query = Query(endingTimestamp=NOON.isoformat())
    query.begin()
    assert query.batch() == [(0, 100)], "the time is in the future"
    query.partitions[0].segments[0] = 200
    query.brokers.topics["orders"].times[NOON] = {0: 150}
    assert query.batch() == [(0, 50)]
    query.partitions[0].segments[0] = 300
    assert query.batch() == []


def test_a_stream_ends_at_its_time_although_a_partition_is_idle() -> None:
    query = Query(FakePartition([200]), FakePartition([10]), endingTimestamp=NOON.isoformat())
    query.brokers.topics["orders"].times[NOON] = {0: 150}  # nothing in partition 1 is of that time or later
    query.begin()
    assert query.batch() == [(0, 150), (1, 10)]
    query.partitions[1].segments[0] = 30
    query.brokers.topics["orders"].times[NOON] = {0: 150, 1: 12}
    assert query.batch() == [(1, 2)]
    assert query.batch() == []


def test_available_now_waits_for_a_segment_that_is_not_settled(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(FakePartition([100, 50], unsettled=2), FakePartition([10]), readTimeout="7s")
    query.begin()
    before = query.clock.now
    with pytest.raises(UnsettledError, match="orders/0 at 2:0"):
        query.planner.freeze()
    assert query.clock.now >= before + 7
    query.restart(failOnDataLoss="false")
    query.planner.freeze()
    assert query.batch() == [(0, 100), (1, 10)]
    assert "orders/0 at 2:0" in caplog.text
    query.restart(failOnDataLoss="true", endingOffsets='{"orders": {"0": "1:90"}}')
    query.planner.freeze()
    query.restart(endingOffsets='{"orders": {"0": "2:10"}}')
    with pytest.raises(UnsettledError):
        query.planner.freeze()
    query.restart(endingOffsets="latest")
    query.partitions[0].unsettled = 0
    query.planner.freeze()
    assert query.batch() == [(0, 50)]


def test_a_range_of_which_all_is_lost_is_told() -> None:
    query = Query(FakePartition([100, 0]))
    query.begin()
    query.batch()
    query.partitions[0].segments = [100, 50, 0]
    query.partitions[0].lost = frozenset({2})
    with pytest.raises(DataLossError, match="orders/0"):
        query.batch()
    query.restart(failOnDataLoss="false")
    assert query.batch() == []


def test_the_lag_is_told() -> None:
    query = Query()
    query.begin()
    assert query.planner.latest_reported()["t"]["orders"]["p"] == {"0": "1:100"}


def test_ten_thousand_partitions_cost_one_question_a_batch() -> None:
    query = Query(*[FakePartition([10]) for _ in range(10_000)])
    query.begin()
    before = len(query.brokers.asked)
    assert len(query.batch()) == 10_000
    assert query.brokers.asked[before:] == ["end"]
