"""The load of a case, in the process that starts the client processes and tells them what to do.

`Clients` keeps one producer and one reader process over all cases. `Load` is one case on them: it has a topic of its
own, the numbers of messages acknowledged and read so far, and the files of its history.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self

from seriatim import DelayedStats, TopicSettings
from seriatim_api.errors import DeadlineExceededError, SeriatimError
from seriatim_local import LocalCluster

from e2e.demo.gaps import Silences
from e2e.faults.schedule import Workload
from e2e.faults.systems.namespaces import Namespaces
from e2e.observe import POLL_S, Describing, Observer, Snapshot
from e2e.workers import Worker, start_worker

Role = Literal["producer", "reader"]

LOST: Final = "LOST"
"""The state of a segment whose gap is declared."""

GROUP: Final = "readers"
LATE_GROUP: Final = "late"
BEGIN_DEADLINE_S: Final = 60.0
PROGRESS_DEADLINE_S: Final = 45.0
"""The deadline for a partition to accept again, and for consumers to read on, during a fault or after it."""

DRAIN_DEADLINE_S: Final = 90.0
"""The deadline, from the last heal, until every send has an outcome and everything is read.

If it takes longer, it is stuck.
"""

IDS_PER_PROCESS: Final = 10_000_000
"""The range of message numbers of one producer process. A later process of the same case begins above it."""

LATE_S: Final = 0.5
"""A delayed message that comes later than this after its time was held up by a fault."""

SLOW_PAUSE_S: Final = 0.05
SLOW_FETCH_COUNT: Final = 10
SLOW_CREDIT_BYTES: Final = 1 << 16
CREDIT_BYTES: Final = 4 << 20
RESET_EVERY_S: Final = (0.2, 0.6)


class Clients:
    """The client processes. Use it as an asynchronous context manager. If a process was killed, its role gets a new
    one.

    Args:
        log: The file for their stderr.
        network: The network in which they live; None: the network of this process.
    """

    def __init__(self, log: Path, network: Namespaces | None = None) -> None:
        self._log = log
        self._network = network
        self._stacks: dict[Role, AsyncExitStack] = {}
        self._workers: dict[Role, Worker] = {}
        self.on_line: Callable[[Role, dict[str, Any]], None] = lambda _role, _line: None

    async def __aenter__(self) -> Self:
        await asyncio.gather(self.start("producer"), self.start("reader"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for role in list(self._stacks):
            await self._stacks.pop(role).aclose()

    async def start(self, role: Role) -> None:
        """Start a process for this role. If there was one before, replace it."""
        before = self._stacks.pop(role, None)
        if before is not None:
            await before.aclose()
        stack = AsyncExitStack()
        place = () if self._network is None else ("--namespace", self._network.namespace(role))
        self._workers[role] = await stack.enter_async_context(
            start_worker(
                role,
                "e2e.faults.traffic.client",
                [role, *place],
                log=self._log,
                on_line=lambda line: self.on_line(role, line),
            )
        )
        self._stacks[role] = stack
        await self._workers[role].wait_for("ready", BEGIN_DEADLINE_S)

    def worker(self, role: Role) -> Worker:
        """Return the process of this role."""
        return self._workers[role]


class TopicMaker(Describing, Protocol):
    """The calls by which a load makes and describes its topics."""

    async def create_topic(self, name: str, partition_count: int, settings: TopicSettings) -> None:
        """Make a topic."""

    async def delayed_stats(self, topic: str) -> list[DelayedStats]:
        """Count what is delayed in each partition."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The outcomes that producers reported, and the number of messages that readers got (repeats included)."""

    ok: int = 0
    failed: int = 0
    unknown: int = 0
    delivered: int = 0


class Load:
    """The load of one case.

    Args:
        clients: The client processes.
        admin: Makes and describes topics of the cluster.
        bootstrap: The addresses of the cluster.
        case: The number of the case.
        workload: What to send, and how to read.
        directory: The directory for the histories.
        tls: The files `ca`, `cert` and `key` of the clients, if brokers speak TLS.
    """

    def __init__(
        self,
        clients: Clients,
        admin: TopicMaker,
        bootstrap: tuple[str, ...],
        case: int,
        workload: Workload,
        directory: Path,
        tls: Mapping[str, str] | None = None,
    ) -> None:
        self.topic = f"case-{case}"
        self.workload = workload
        self.directory = directory
        self.observer = Observer(admin, self.topic)
        self.acks = Silences()  # from one acknowledgement of a partition to the next
        self.clock_shifts_ms: list[int] = []
        self.groups: list[str] = []
        self.gaps: set[tuple[str, int, int]] = (
            set()
        )  # (group, partition, segment) of each gap that a group was notified of
        self._begun_at = time.monotonic()
        self._clients = clients
        self._admin = admin
        self._bootstrap = bootstrap
        self._tls = dict(tls or {})
        self._case = case
        self._process_count = 0
        self._reader_count = 0
        self._ended_counts = Counts()  # of producer processes that were killed
        self._producer_counts: dict[str, int] = {}
        self._acked_in: Counter[tuple[int, int]] = Counter()  # acknowledged messages by (partition, segment)
        self._segments: dict[int, int] = {}  # for each partition, the segment of its last acknowledgement
        self._hand_overs: list[tuple[float, float]] = []  # when a segment was taken up, and the gap before it
        # when delayed messages of a partition came, and how late the latest of them was
        self._late: list[tuple[float, int, float]] = []
        self._answers: Counter[str] = Counter()  # to cancellations
        self._delivered: dict[str, int] = {}
        self._delivered_before: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._notifying: set[asyncio.Task[None]] = set()

    # ---- what it is ------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counts:
        """All counts until now."""
        now, before = self._producer_counts, self._ended_counts
        return Counts(
            before.ok + now.get("ok", 0),
            before.failed + now.get("failed", 0),
            before.unknown + now.get("unknown", 0),
            sum(self._delivered.values()) + sum(self._delivered_before.values()),
        )

    def pid(self, role: Role) -> int:
        """Return the process id of a role."""
        return self._clients.worker(role).pid

    # ---- its life --------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Make the topic, and start to send and to read.

        Raises:
            SeriatimError, WorkerError: The topic could not be made, or a client did not begin.
        """
        self._clients.on_line = self._take
        settings = TopicSettings(flush=self.workload.flush, retention_ms=self.workload.retention_ms)
        await self._admin.create_topic(self.topic, self.workload.partitions, settings)
        await self.observer.wait_until(Snapshot.settled, f"{self.topic} accepts", BEGIN_DEADLINE_S)
        await asyncio.gather(self.begin_producer(), self.begin_reader(GROUP))
        await self.goes_on(20)

    async def begin_producer(self) -> None:
        """Let the producer's process send. A new process gets message numbers of its own."""
        first = self._process_count * IDS_PER_PROCESS
        self._process_count += 1
        load = self.workload
        self._clients.worker("producer").tell(
            do="begin",
            case=self._case,
            name=f"producer-{self._process_count}",
            bootstrap=list(self._bootstrap),
            tls=self._tls,
            topic=self.topic,
            history=str(self.directory / f"producer-{self._process_count}.jsonl"),
            rate=load.rate,
            size_bytes=load.size_bytes,
            keys=load.keys,
            flush=load.flush,
            delays=load.delays,
            first=first,
        )
        await self._clients.worker("producer").wait_for(f"sending {self._case}", BEGIN_DEADLINE_S)

    async def begin_reader(self, group: str) -> None:
        """Let the reader's process read for a group, and wait until it has joined.

        A new group begins at the earliest offset.
        """
        self.tell_reader(group)
        await self._clients.worker("reader").wait_for(f"joined {self._case} {group}", BEGIN_DEADLINE_S)

    def tell_reader(self, group: str) -> None:
        """Let the reader's process read for a group. Do not wait."""
        slow = self.workload.is_slow
        self._reader_count += 1
        number = self._reader_count
        if group not in self.groups:
            self.groups.append(group)
        self._clients.worker("reader").tell(
            do="begin",
            case=self._case,
            name=f"{group}-{number}",
            bootstrap=list(self._bootstrap),
            tls=self._tls,
            topic=self.topic,
            group=group,
            partitions=self.workload.partitions,
            history=str(self.directory / f"{group}-{number}.jsonl"),
            pause_s=SLOW_PAUSE_S if slow else 0.0,
            fetch_count=SLOW_FETCH_COUNT,
            credit_bytes=SLOW_CREDIT_BYTES if slow else CREDIT_BYTES,
        )

    def pause(self, *, paused: bool) -> None:
        """Let the producer's process send nothing, or send again."""
        self._clients.worker("producer").tell(do="pause", case=self._case, paused=paused)

    async def stop(self) -> None:
        """Stop sending. Wait until every send has an outcome and every group has read everything.

        Raises:
            DeadlineExceededError: A group has not read everything in time.
            WorkerError: A client's process ended, or the producer did not get all outcomes in time.
        """
        self._clients.worker("reader").tell(do="hurry", case=self._case)
        self._clients.worker("producer").tell(do="stop", case=self._case)
        settled = await self._clients.worker("producer").wait_for(f"settled {self._case}", DRAIN_DEADLINE_S)
        self._answers.update(settled["answers"])
        if self.workload.delays:
            await self._until_fired()
        for group in self.groups:
            observer = Observer(self._admin, self.topic, group)
            await observer.wait_until(
                lambda now: now.settled() and now.drained() and self._reaches(now),
                f"{group} has read all of {self.topic}",
                DRAIN_DEADLINE_S,
            )

    async def _until_fired(self) -> None:
        """Wait until nothing is delayed any more.

        Raises:
            DeadlineExceededError: Something is, after `DRAIN_DEADLINE_S`.
        """
        until, found = time.monotonic() + DRAIN_DEADLINE_S, "no broker counts"
        while time.monotonic() < until:
            with suppress(SeriatimError):
                stats = await self._admin.delayed_stats(self.topic)
                found = "; ".join(str(one) for one in stats if one.message_count or one.unserved)
                if not found:
                    return
            await asyncio.sleep(POLL_S)
        raise DeadlineExceededError(f"delayed messages still wait after {DRAIN_DEADLINE_S:g} s: {found}")

    def _reaches(self, now: Snapshot) -> bool:
        """Whether the servers name ends as high as the number of acknowledged messages.

        If a segment was declared lost before its length was known, its messages have no positions, and do not count.
        """
        lost = sum(
            self._acked_in[chain.partition, segment.no]
            for chain in now.chains
            for segment in chain.segments
            if segment.state == LOST and not segment.sealed_len
        )
        return sum(reader.end_position for reader in now.readers) >= self.counts.ok - lost

    async def end(self) -> None:
        """Let the processes close their histories. Replace a process that does not."""
        for role in ("reader", "producer"):
            worker = self._clients.worker(role)
            worker.tell(do="end", case=self._case)
            try:
                await worker.wait_for(f"ended {self._case}", BEGIN_DEADLINE_S)
            except Exception:  # its history has no last line, so the checker knows that it is cut short
                await self._clients.start(role)
        self._clients.on_line = lambda _role, _line: None

    # ---- faults of clients -----------------------------------------------------------------------------------

    async def kill(self, role: Role) -> None:
        """Kill the process of a role (SIGKILL), if it has not ended by itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid(role), signal.SIGKILL)
        if role == "producer":
            counts = self._producer_counts
            self._producer_counts = {}
            before = self._ended_counts
            self._ended_counts = Counts(
                before.ok + counts.get("ok", 0),
                before.failed + counts.get("failed", 0),
                before.unknown + counts.get("unknown", 0),
            )
        else:
            for group, count in self._delivered.items():
                self._delivered_before[group] = self._delivered_before.get(group, 0) + count
            self._delivered = {}

    async def start_again(self, role: Role) -> None:
        """Start a new process for a role, and let it continue."""
        await self._clients.start(role)
        if role == "producer":
            await self.begin_producer()
        else:
            for group in list(self.groups):
                await self.begin_reader(group)

    # ---- waiting ---------------------------------------------------------------------------------------------

    async def goes_on(self, count: int = 100) -> None:
        """Wait until `count` more messages are acknowledged and delivered.

        Raises:
            DeadlineExceededError: They are not within `PROGRESS_DEADLINE_S`.
        """
        now = self.counts
        await self._until(
            lambda: self.counts.ok >= now.ok + count and self.counts.delivered >= now.delivered + count,
            f"{count} more messages are acknowledged and delivered",
        )

    async def accepts(self, count: int = 100) -> None:
        """Wait until `count` more messages are acknowledged. Deliveries do not matter.

        Raises:
            DeadlineExceededError: They are not within `PROGRESS_DEADLINE_S`.
        """
        wanted = self.counts.ok + count
        await self._until(lambda: self.counts.ok >= wanted, f"{count} more messages are acknowledged")

    async def gap_s(self, since: float) -> float:
        """Return the longest time since `since` in which a partition acknowledged nothing, in seconds.

        The producer's process reports acknowledgements a moment later. So this call first waits until each partition
        has acknowledged a message after the call. Otherwise the delay of the report would count as a gap.

        Raises:
            DeadlineExceededError: A partition acknowledges nothing within `PROGRESS_DEADLINE_S`.
        """
        until, partitions = time.monotonic(), range(self.workload.partitions)
        await self._until(
            lambda: all(self.acks.last(partition) > until for partition in partitions), "every partition acknowledges"
        )
        found = self.acks.worst_gap_s(partitions, since, until)
        assert found is not None
        return found

    def hand_over_s(self, since: float) -> float:
        """Return the longest gap since `since` in which a partition went from one segment to the next; 0 if none did.

        Other gaps do not count. On a machine with few processors, a process that gets no processor time makes a gap
        too.
        """
        return max((gap_s for at, gap_s in self._hand_overs if at >= since), default=0.0)

    def late_s(self, since: float, partition: int | None = None) -> float:
        """Return how late the latest delayed message was that readers got since then, of a partition or of all."""
        return max(
            (late_s for at, number, late_s in self._late if at >= since and partition in (number, None)), default=0.0
        )

    def has_fired(self, since: float, partition: int) -> bool:
        """Whether readers got a delayed message of a partition since then."""
        return any(at >= since and number == partition for at, number, _ in self._late)

    def lateness_ended_s(self, healed: float) -> float:
        """Return how long after the heal a message came that was late by more than `LATE_S`; 0 if none did."""
        return max((at - healed for at, _, late_s in self._late if at > healed and late_s > LATE_S), default=0.0)

    def delayed_summary(self, struck: float, healed: float) -> str:
        """Say how late delayed messages were, and what became of those that were cancelled."""
        answers = ", ".join(f"{count} {answer}" for answer, count in sorted(self._answers.items()))
        return (
            f"delayed messages were up to {self.late_s(struck):.2f} s late, and by more than {LATE_S:g} s until "
            f"{self.lateness_ended_s(healed):.1f} s after the heal; cancellations: {answers}"
        )

    async def told_of(self, gaps: Set[tuple[str, int, int]]) -> None:
        """Wait until readers were notified of these gaps: group, partition, segment.

        Raises:
            DeadlineExceededError: They were not within `PROGRESS_DEADLINE_S`.
        """
        await self._until(lambda: gaps <= self.gaps, f"readers are notified of the gaps {sorted(gaps)}")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PROGRESS_DEADLINE_S), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            raise DeadlineExceededError(f"waited {PROGRESS_DEADLINE_S:g} s until {what}, without success") from None

    def _take(self, role: Role, line: dict[str, Any]) -> None:
        if line.get("case") != self._case:
            return
        if role == "producer" and line["k"] == "progress":
            for partition, at, segment in line["acks"]:
                if self._segments.get(partition, segment) != segment:
                    self._hand_overs.append((at, at - self.acks.last(partition)))
                self._segments[partition] = segment
                last = self.acks.last(partition)
                self.acks.add(partition, min(self._begun_at, at) if last == -inf else last, at)
                self._acked_in[partition, segment] += 1
            self._producer_counts = {name: line[name] for name in ("ok", "failed", "unknown")}
            self.clock_shifts_ms.append(line["clock_shift_ms"])
        elif role == "reader" and line["k"] == "read":
            self._delivered[line["group"]] = line["delivered"]
            if line["group"] == GROUP:
                self._late += [(line["at"], partition, late_ms / 1000) for partition, late_ms in line["late"]]
        elif role == "reader" and line["k"] == "gap":
            self.gaps.add((line["group"], line["partition"], line["segment"]))
        task = asyncio.ensure_future(self._notify())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def break_connections(cluster: LocalCluster, over: asyncio.Event, dice: random.Random) -> int:
    """Break the clients' connections again and again until `over` is set. Return how often.

    An event ends it, and not a cancellation, because a cancelled call to the proxy closes the proxy's control
    connection.
    """
    count = 0
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(dice.uniform(*RESET_EVERY_S)):
                await over.wait()
        if over.is_set():
            return count
        await cluster.cut("clients", "brokers", reset=True)
        await cluster.heal("clients", "brokers")
        count += 1
