"""How many messages wait: within a segment, across segments, in a new partition, and when no broker says so."""

from __future__ import annotations

import pytest
from seriatim_api.ids import make_offset
from seriatim_spark.errors import TopicReplacedError
from seriatim_spark.offsets import Offsets, TopicPlaces
from seriatim_spark.reading.lag import LagCounter

from .fake_brokers import FakeBrokers, FakePartition, FakeTopic


def read(**places: int) -> Offsets:
    return {"orders": TopicPlaces("one", {int(name[1:]): at for name, at in places.items()})}


def test_what_waits_is_counted_across_segments_and_each_chain_is_asked_for_once() -> None:
    partition = FakePartition([100, 40, 10])
    brokers = FakeBrokers(orders=FakeTopic("one", {0: partition}))
    counter = LagCounter(brokers)
    assert counter.lags(read(p0=make_offset(1, 70))) == {("orders", 0): 30 + 40 + 10}
    partition.segments[-1] += 5
    assert counter.lags(read(p0=make_offset(2, 0))) == {("orders", 0): 40 + 15}
    assert counter.lags(read(p0=make_offset(3, 15))) == {("orders", 0): 0}
    assert brokers.asked.count("plan") == 1
    partition.segments.append(3)
    assert counter.lags(read(p0=make_offset(3, 15))) == {("orders", 0): 3}
    assert brokers.asked.count("plan") == 2


def test_a_partition_that_is_new_waits_as_a_whole_and_dropped_messages_do_not() -> None:
    partitions = {
        0: FakePartition([10]),
        1: FakePartition([50, 20], dropped=30),
        2: FakePartition([100, 1], dropped=60),
    }
    counter = LagCounter(FakeBrokers(orders=FakeTopic("one", partitions)))
    lags = counter.lags(read(p0=make_offset(1, 10), p2=make_offset(1, 0)))
    assert lags == {("orders", 0): 0, ("orders", 1): 20 + 20, ("orders", 2): 40 + 1}


def test_a_topic_that_was_replaced_has_no_lag() -> None:
    counter = LagCounter(FakeBrokers(orders=FakeTopic("two", {0: FakePartition([10])})))
    with pytest.raises(TopicReplacedError):
        counter.lags(read(p0=make_offset(1, 0)))
