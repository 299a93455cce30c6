"""Brokers that cannot report a place at the moment are asked again for as long as `readTimeout` says."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from seriatim import PartitionOffset
from seriatim_api.errors import PositionUnknownError
from seriatim_spark.errors import ClusterError
from seriatim_spark.options import parse, parse_target
from seriatim_spark.reading import brokers
from seriatim_spark.reading.brokers import RealBrokers


class Busy:
    """A connection and its client: the first questions are not answered."""

    def __init__(self, unanswered: int) -> None:
        self.client = self
        self.unanswered = unanswered
        self.asked = 0

    async def offsets(self, topic: str, at: str, **_: Any) -> tuple[PartitionOffset, ...]:
        self.asked += 1
        if self.asked <= self.unanswered:
            raise PositionUnknownError(f"partition 0 of {topic!r}: a broker did not answer")
        return (
            PartitionOffset(
                topic=topic, incarnation="one", partition=0, partition_id=7, offset=5, position=5, bytes_before=50,
                blocked=False, found=True,
            ),
        )  # fmt: skip

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        return asyncio.run(asyncio.wait_for(coroutine, timeout_s))


def asked(monkeypatch: pytest.MonkeyPatch, busy: Busy, timeout: str) -> int:
    monkeypatch.setattr(brokers, "connected", lambda _target: busy)
    monkeypatch.setattr(brokers, "AGAIN_S", 0.001)
    options = parse({"bootstrap": "127.0.0.1:1", "topic": "orders", "readTimeout": timeout})
    return RealBrokers(options).at("end", {})["orders"].places[0].offset


def test_the_ends_of_a_topic_that_is_written_are_asked_for_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "connected", lambda _target: Busy(unanswered=2))
    monkeypatch.setattr(brokers, "AGAIN_S", 0.001)
    assert brokers.ends_of(parse_target({"bootstrap": "127.0.0.1:1"}), "orders").places[0].offset == 5


def test_a_place_that_no_broker_tells_now_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy(unanswered=3)
    assert asked(monkeypatch, busy, "60s") == 5
    assert busy.asked == 4


def test_it_ends_with_the_timeout_and_says_which_option_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"a broker did not answer.*readTimeout"):
        asked(monkeypatch, Busy(unanswered=1_000_000), "50ms")
