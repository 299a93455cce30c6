"""The demo's producer, a process of its own: sends the events in the order of time, and reports acknowledgements.

`python -m e2e.demo.producer --help`. Its parent sets the speed (`rate`, events a second; null: as fast as possible) and
starts it (`go`). It prints `ready`. Then it prints `progress` every 0.1 s, with the acknowledgements by partition and
the silences that they end, and `done` when every event has an outcome. Its history has every send and every outcome.

The events of a tick go to their partitions as slices of tables that are made in advance. So a tick costs one call for
each partition.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from seriatim import Client, Producer, partition_of_key
from seriatim.history import HistoryWriter

from e2e.demo.flights import load_events
from e2e.demo.gaps import Waits
from e2e.demo.member import command_line
from e2e.workers import Parent

TICK_S: Final = 0.01
"""The time between two sends. It is short, so that a gap in acceptance is measured to a few milliseconds."""

TICK_EVENTS_MAX: Final = 2_000
"""The most events of a tick at full speed. Then several batches for each partition are under way at a time."""

UNSETTLED_MAX: Final = 200_000
"""The most events that are sent and have no outcome yet. (The producer's own buffer limits their bytes.)"""

SAY_S: Final = 0.1
FLUSH_S: Final = 1.0
DELIVERY_TIMEOUT_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class Lane:
    """The events of one partition, in their order.

    Attributes:
        numbers: The numbers of these events in the whole stream.
        table: Their columns key, value, timestamp.
    """

    numbers: Sequence[int]
    table: pa.Table


def make_lanes(events: pa.Table, partition_count: int) -> list[Lane]:
    """Split the events by partition, as the client's partitioner does."""
    encoded = events["key"].combine_chunks().dictionary_encode()
    places = pa.array([partition_of_key(key, partition_count) for key in encoded.dictionary.to_pylist()], pa.int64())
    numbers: list[list[int]] = [[] for _ in range(partition_count)]
    for number, partition in enumerate(places.take(encoded.indices).to_pylist()):
        numbers[partition].append(number)
    return [Lane(mine, events.take(pa.array(mine, pa.int64())).combine_chunks()) for mine in numbers]


class Sending:
    """One run over all events.

    If a message was sent again after an unsettled segment, readers may find it at an earlier place. A consumer that
    gets whole partitions is told which places the server skips. Others are not, so their demo asks for `final_places`.

    The tasks `settle` (one for each partition) and `report` run beside `run`, which sends.
    """

    def __init__(
        self, producer: Producer, lanes: Sequence[Lane], history: HistoryWriter, topic: str, *, final_places: bool
    ) -> None:
        self._final_places = final_places
        self._producer, self._lanes, self._history = producer, lanes, history
        self._name, self._topic = producer.producer_id.hex()[:12], topic
        self._sent_in_lane = [0] * len(lanes)
        self._under_way: list[asyncio.Queue[tuple[Any, int, int]]] = [asyncio.Queue() for _ in lanes]
        self._total = sum(len(lane.numbers) for lane in lanes)
        self._acks: list[tuple[int, float, int, float]] = []
        self.waits = Waits()
        self.rate: float | None = 1000.0
        self.go, self.finished = asyncio.Event(), asyncio.Event()
        self.counts = {"ok": 0, "failed": 0, "unknown": 0}
        self.sent = 0
        self.first_send_at = self.last_ack_at = 0.0

    @property
    def _unsettled(self) -> int:
        return self.sent - sum(self.counts.values())

    async def run(self) -> None:
        """Send everything, tick by tick."""
        await self.go.wait()
        self.first_send_at = time.monotonic()
        due, last = 0.0, self.first_send_at
        while self.sent < self._total:
            await asyncio.sleep(TICK_S if self.rate is not None else 0)
            now = time.monotonic()
            due = min(due + (now - last) * (self.rate or 0.0), TICK_EVENTS_MAX)
            last = now
            count = TICK_EVENTS_MAX if self.rate is None else int(due)
            due -= int(due)
            if self._unsettled <= UNSETTLED_MAX:
                await self._send_until(min(self.sent + count, self._total))

    async def _send_until(self, end: int) -> None:
        """Send all events with numbers below `end`."""
        for partition, lane in enumerate(self._lanes):
            begin_row = self._sent_in_lane[partition]
            end_row = bisect_left(lane.numbers, end, begin_row)
            if end_row == begin_row:
                continue
            self._sent_in_lane[partition] = end_row
            numbers = lane.numbers[begin_row:end_row]
            name, topic = self._name, self._topic
            self._history.sends(numbers, producer=name, topic=topic, partition=partition, sequence=begin_row)
            rows = lane.table.slice(begin_row, end_row - begin_row)
            self.waits.send(partition, time.monotonic(), end_row - begin_row)
            deliveries = await self._producer.send_table(rows, partition=partition)
            self._under_way[partition].put_nowait((deliveries, begin_row, end_row))
        self.sent = end

    async def settle(self, partition: int) -> None:
        """Take the outcomes of one partition, in the order of sending, until all its events have one."""
        lane, settled = self._lanes[partition], 0
        while settled < len(lane.numbers):
            deliveries, begin_row, settled = await self._under_way[partition].get()
            parts = await deliveries.settled()
            at = time.monotonic()
            for part in parts:
                rows = [lane.numbers[begin_row + position] for position in part.positions]
                is_known = part.outcome == "ok" and (part.is_final or not self._final_places)
                self._history.outcomes(rows, part.outcome, offset=part.offset if is_known else None, at=at)
                self.counts[part.outcome] += len(rows)
                if part.outcome == "ok":
                    self._acks.append((partition, at, len(rows), self.waits.acknowledge(partition, at)))
                    self.last_ack_at = at
                self.waits.settle(partition, len(rows))

    async def report(self, parent: Parent) -> None:
        """Send the parent the progress until all events have an outcome."""
        flush_at = 0.0
        while True:
            acks, self._acks = self._acks, []
            parent.say(
                "progress", at=time.monotonic(), sent=self.sent, **self.counts, acks=acks,
                waiting=list(self.waits.since.items()),
            )  # fmt: skip
            if time.monotonic() > flush_at:
                self._history.flush()
                flush_at = time.monotonic() + FLUSH_S
            if self.finished.is_set() and not self._acks:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self.finished.wait(), SAY_S)


async def _main(arguments: argparse.Namespace) -> None:
    started: list[Sending] = []

    def told(line: dict[str, Any]) -> None:
        for sending in started:
            sending.rate = line["rate"]
            if line.get("go"):
                sending.go.set()

    parent = Parent(told)
    events = load_events(arguments.limit)
    with HistoryWriter(arguments.history, "producer") as history:
        async with Client.connect(arguments.bootstrap) as client:
            producer = await client.producer(arguments.topic, delivery_timeout_ms=DELIVERY_TIMEOUT_MS)
            lanes = make_lanes(events, producer.partition_count)
            sending = Sending(producer, lanes, history, arguments.topic, final_places=arguments.final_places)
            started.append(sending)
            tasks = [asyncio.create_task(one) for one in (_work(sending, len(lanes), parent), parent.listen())]
            parent.say("ready", events=len(events))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await producer.close(timeout_s=0)


async def _work(sending: Sending, lane_count: int, parent: Parent) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sending.report(parent), name="progress")
        settling = [tasks.create_task(sending.settle(n), name=f"outcomes of {n}") for n in range(lane_count)]
        await sending.run()
        for task in settling:
            await task
        sending.finished.set()
    parent.say(
        "done", **sending.counts, sent=sending.sent,
        first_send_at=sending.first_send_at, last_ack_at=sending.last_ack_at,
        longest_silence_s=sending.waits.longest_s,
    )  # fmt: skip


def main() -> None:
    parser = command_line("e2e.demo.producer", __doc__)
    parser.add_argument(
        "--final-places", action="store_true", help="note places only if it is certain that readers find messages there"
    )
    parser.add_argument("--limit", type=int, default=None, help="only this many events")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
