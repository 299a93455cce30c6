"""The series of topics: made of what the logs have, and limited."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from seriatim_api.ids import PartitionId
from seriatim_api.publications import STAGE_TOPIC
from seriatim_broker.metrics.topics import OTHER, TopicMeter


class Partition:
    """A partition whose open segment this broker leads."""

    def __init__(self, number: int, topic: str) -> None:
        self.id = PartitionId(number)
        self.chain = SimpleNamespace(topic=topic)
        self.logs: dict[int, Any] = {}
        self.no = 0
        self.open()

    def open(self, *, leads: bool = True) -> None:
        """Another segment begins."""
        self.no += 1
        self.logs[self.no] = SimpleNamespace(no=self.no, tail=0, size_bytes=0, unbroken=leads)

    def add(self, messages: int) -> None:
        """Messages of ten bytes come."""
        self.logs[self.no].tail += messages
        self.logs[self.no].size_bytes += 10 * messages

    def open_log(self) -> Any:
        """The log of the open segment."""
        return self.logs[self.no]


class Page:
    """A meter of one broker, and what Prometheus reads of it."""

    def __init__(self, *topics: str, series_max: int = 9) -> None:
        self.partitions = [Partition(number, topic) for number, topic in enumerate(topics, 1)]
        core = SimpleNamespace(partitions={one.id: one for one in self.partitions})
        self.pending: dict[str, int] = {}
        self.meter = TopicMeter("g0-0", cast(Any, core), series_max, lambda: self.pending)

    async def read(self, name: str = "stored_messages") -> dict[str, float]:
        """The values of one metric by topic, after a measurement."""
        await self.meter.measure()
        return {
            sample.labels["topic"]: sample.value
            for family in self.meter.collect()
            if family.name == f"seriatim_topic_{name}"
            for sample in family.samples
            if not sample.name.endswith("_created")
        }


async def test_messages_and_bytes_of_all_partitions_of_a_topic_are_added_up() -> None:
    page = Page("a", "a", "b", STAGE_TOPIC)
    for partition in page.partitions:
        partition.add(5)
    assert await page.read() == {"a": 10, "b": 5}
    page.partitions[0].add(1)
    assert await page.read("stored_bytes") == {"a": 110, "b": 50}


async def test_the_end_of_a_segment_counts_and_what_others_lead_does_not() -> None:
    page = Page("a")
    (one,) = page.partitions
    one.add(5)
    await page.meter.measure()
    one.add(2)
    one.open(leads=False)
    one.add(100)
    assert await page.read() == {"a": 7}
    one.open()
    one.add(1)
    assert await page.read() == {"a": 8}


async def test_a_log_that_lost_its_end_takes_nothing_away() -> None:
    page = Page("a")
    (one,) = page.partitions
    one.add(5)
    await page.meter.measure()
    one.logs[1].tail = 3
    assert await page.read() == {"a": 5}


async def test_topics_beyond_the_limit_are_added_up_and_no_counter_of_the_others_falls() -> None:
    page = Page("a", "b", "c", series_max=1)
    for partition, messages in zip(page.partitions, (10, 4, 3), strict=True):
        partition.add(messages)
    assert await page.read() == {"a": 10, OTHER: 7}
    page.partitions[1].add(4)
    assert await page.read() == {"a": 10, OTHER: 11}, "a keeps its series: b did not take twice as much"
    page.partitions[1].add(40)
    assert await page.read() == {"b": 40, OTHER: 11}
    page.partitions[0].add(1)
    assert await page.read() == {"b": 40, OTHER: 12}


async def test_ten_thousand_topics_have_as_many_series_as_the_limit_says() -> None:
    page = Page(*(f"t{number}" for number in range(10_000)), series_max=20)
    for partition in page.partitions:
        partition.add(1 + partition.id % 7)
    found = await page.read()
    assert len(found) == 21
    assert sum(found.values()) == sum(1 + partition.id % 7 for partition in page.partitions)


async def test_delayed_messages_that_wait_are_added_up_beyond_the_limit_of_series() -> None:
    page = Page("a", "b", series_max=2)
    page.partitions[0].add(1)
    page.pending = {"b": 5, "c": 7}
    assert await page.read("delayed_pending") == {"a": 0, "b": 5, OTHER: 7}
    page.pending = {}
    assert await page.read("delayed_pending") == {"a": 0, "b": 0, OTHER: 0}
