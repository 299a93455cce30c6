"""What the runs of both demos share: their directory and logs, the cluster with its topic, the pace of the producer."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from seriatim import Admin, Client, TopicSettings
from seriatim.history import HistoryWriter
from seriatim_api.errors import TopicExistsError
from seriatim_local import FaultRecord as ClusterFault
from seriatim_local import LinkDelay, LocalCluster

from e2e.demo.flights import event_number
from e2e.demo.report import DemoFault
from e2e.observe import Observer, Snapshot
from e2e.workers import Worker, start_worker

TOPIC: Final = "flights"
GROUP: Final = "histories"

HISTORY: Final = "demo.jsonl"
"""The history of the main process: the faults, the end, and what its `Admin` does."""

LOAD_DEADLINE_S: Final = 90.0
EXPECT_DEADLINE_S: Final = 180.0


class Shape(Protocol):
    """The settings of both demos that say what the cluster is like."""

    @property
    def partition_count(self) -> int:
        """The number of partitions of the topic."""

    @property
    def delay(self) -> LinkDelay:
        """The delay of all links, each way."""

    @property
    def group_count(self) -> int:
        """The number of broker groups."""

    @property
    def member_count(self) -> int:
        """The number of brokers in each of them."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster whose topic accepts messages."""

    cluster: LocalCluster
    admin: Admin


@contextmanager
def workshop(out: Path, stale: Iterable[Path]) -> Iterator[tuple[Path, HistoryWriter]]:
    """A directory for the cluster, and the history of the main process. At the end only the brokers' logs stay.

    Args:
        out: The directory of the run.
        stale: Files of an earlier run, which are removed.
    """
    out.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.unlink(missing_ok=True)
    data = Path(tempfile.mkdtemp(prefix="cluster-", dir=out))
    try:
        with HistoryWriter(out / HISTORY, "demo") as history:
            yield data, history
    finally:
        keep_logs(data, out / "logs")


def keep_logs(data: Path, logs: Path) -> None:
    """Keep the brokers' logs, and remove their data (hundreds of megabytes)."""
    shutil.rmtree(logs, ignore_errors=True)
    if (data / "logs").exists():
        shutil.copytree(data / "logs", logs)
    shutil.rmtree(data, ignore_errors=True)


@asynccontextmanager
async def staged(data: Path, shape: Shape, history: HistoryWriter) -> AsyncIterator[Stage]:
    """Start the cluster, and make the topic.

    Raises:
        SeriatimError: The cluster did not come up.
    """

    def fault(record: ClusterFault) -> None:
        history.fault(record.kind, record.victim, phase=record.phase, at=record.at, details=record.details)

    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            LocalCluster(
                data,
                groups=shape.group_count,
                members=shape.member_count,
                delay=shape.delay,
                name="demo",
                on_fault=fault,
            )
        )
        client = await stack.enter_async_context(
            Client.connect(cluster.bootstrap, recorder=history, message_id=event_number)
        )
        admin = client.admin()
        with suppress(TopicExistsError):  # the client asked twice, because an answer was lost
            await admin.create_topic(TOPIC, shape.partition_count, settings=TopicSettings(flush=True))
        await Observer(admin, TOPIC).wait_until(Snapshot.settled, "the topic accepts", LOAD_DEADLINE_S)
        yield Stage(cluster, admin)


def started(
    name: Literal["producer", "consumer"],
    out: Path,
    cluster: LocalCluster,
    on_line: Callable[[dict[str, Any]], None],
    *arguments: str,
) -> AbstractAsyncContextManager[Worker]:
    """The demo's producer or consumer, with its history and its log."""
    common = ["--bootstrap", ",".join(cluster.bootstrap), "--topic", TOPIC, "--history", str(out / f"{name}.jsonl")]
    return start_worker(name, f"e2e.demo.{name}", [*common, *arguments], log=out / f"{name}.log", on_line=on_line)


def expecting(out: Path, event_limit: int | None) -> AbstractAsyncContextManager[Worker]:
    """A worker that computes the histories from the file."""
    arguments = [str(out / "expected.json")]
    if event_limit is not None:
        arguments += ["--limit", str(event_limit)]
    return start_worker("expect", "e2e.demo.expect", arguments, log=out / "expect.log")


async def guard(worker: Worker) -> None:
    """Fail the run if a worker ends before it has said `done`."""
    await worker.wait_for("done", None)


BACKLOG_S: Final = 2.0
"""If more messages wait than this many seconds of the present rate, the machine is slower than the rate."""


PACE_S: Final = 0.5
"""Seconds between two changes of the rate."""


class Pace:
    """Reports the faults one by one, and says how fast to send so that the events last for the faults that are left.

    Args:
        fault_s: A first guess at the time from one fault to the next, in seconds.
        rate_min: The lowest rate, in events a second.
        rate_max: The highest one.
        on_fault: Called with each fault once its gap is known.
    """

    def __init__(self, fault_s: float, rate_min: float, rate_max: float, on_fault: Callable[[DemoFault], None]) -> None:
        self._fault_s = fault_s
        self._rate_min = rate_min
        self._rate_max = rate_max
        self._on_fault = on_fault
        self._reported = 0

    def report(self, faults: Sequence[DemoFault]) -> None:
        """Report the faults that are new. All of them must be over."""
        for fault in faults[self._reported :]:
            self._on_fault(fault)
        self._reported = len(faults)

    def rate(self, elapsed_s: float, done: int, to_come: int, left: float, waiting: int) -> float:
        """The rate from now on, in events a second. It follows the machine: ask every `PACE_S`.

        Args:
            elapsed_s: Seconds since the first message.
            done: The number of faults that are over.
            to_come: The number of faults that must still hit, the present one included.
            left: So many events are to last for these faults.
            waiting: So many events are sent and not acknowledged.
        """
        # The first guess counts as two faults, so that one slow fault does not stop the flow.
        fault_s = (elapsed_s + 2 * self._fault_s) / (done + 2)
        rate = min(max(left / (max(to_come, 1) * fault_s), self._rate_min), self._rate_max)
        return self._rate_min if waiting > BACKLOG_S * rate else rate
