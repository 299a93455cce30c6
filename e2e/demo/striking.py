"""Carries out the faults of a plan on a running cluster, one after another, and measures what each of them cost.

A fault counts only if its victim had an open segment or served a consumer at that moment, and if messages were under
way on one of these partitions before it and after it. The victim is chosen from a snapshot. If it had an open segment,
the chain is read again afterwards: the fault does not count if the segment was sealed before the fault. The next fault
waits until everything is complete again and each partition accepts messages. `faults` has the plan. `gaps` measures for
how long a partition accepted nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from seriatim_api.errors import DeadlineExceededError, SeriatimError
from seriatim_local import LocalCluster

from e2e.demo.faults import Kind, PlannedFault, Victim, choose
from e2e.demo.gaps import Silences
from e2e.demo.report import DemoFault
from e2e.observe import OPEN, UNSETTLED, Observer, Snapshot, still_struck

WHOLE_DEADLINE_S: Final = 30.0
"""The longest time to wait for a whole cluster after a fault was mended. Then the next fault comes in any case."""

ATTEMPTS_MAX: Final = 3
"""How often a fault is tried if it hits nothing, before the plan continues."""

FAULT_COUNT_MAX_RATIO: Final = 3
"""The demo gives up after it has tried this many faults, in multiples of those that must hit."""


@dataclass(eq=False)
class Striker:
    """Carries out faults one after another. Only one task may use it at a time.

    Attributes:
        cluster: The cluster to strike.
        observer: The observer of the topic and of the consumer group.
        silences: When each partition acknowledged nothing. Another task fills it meanwhile.
        faults: The faults in their order, without end.
        kinds: A fault of each of these kinds must hit.
        hits_min: How many faults must hit, if the machine is fast enough.
        time_s: After this many seconds, only a fault of each kind must hit.
        begin: When the demo began to send, on the monotonic clock, in seconds.
        on_change: Called after each change of `records`.
        is_sending: Whether the producer still has events to send. Without them, no fault can hit anything.
        records: The faults so far.
    """

    cluster: LocalCluster
    observer: Observer
    silences: Silences
    _: KW_ONLY
    faults: Iterator[PlannedFault]
    kinds: Sequence[Kind]
    hits_min: int
    time_s: float
    begin: float
    on_change: Callable[[str], None] = lambda _doing: None
    is_sending: Callable[[], bool] = lambda: True
    records: list[DemoFault] = field(default_factory=list)

    @property
    def hit_count(self) -> int:
        """The number of faults so far that count."""
        return sum(record.hit for record in self.records)

    @property
    def left_count(self) -> int:
        """How many faults must still hit, so that the number is reached and every kind has hit."""
        return max(self.hits_min - self.hit_count, len(self.kinds_missing))

    @property
    def kinds_missing(self) -> tuple[str, ...]:
        """The kinds of which no fault has hit yet."""
        seen = {record.kind for record in self.records if record.hit}
        return tuple(kind for kind in self.kinds if kind not in seen)

    @property
    def _members(self) -> dict[str, tuple[str, ...]]:
        plan = self.cluster.plan
        return {group: tuple(broker.name for broker in plan.brokers if broker.group == group) for group in plan.groups}

    async def run(self, after_each: Callable[[], None] = lambda: None) -> None:
        """Inject faults until enough have hit.

        It ends before if the producer has sent all, or after `FAULT_COUNT_MAX_RATIO` times as many tries.
        """
        await self._whole()
        tries, tries_max = 0, FAULT_COUNT_MAX_RATIO * self.hits_min
        while self.left_count and tries < tries_max and self.is_sending():
            if time.monotonic() > self.begin + self.time_s:
                self.hits_min = min(self.hits_min, max(self.hit_count, len(self.kinds)))
                if not self.left_count:
                    break
            fault = next(self.faults)
            if self.left_count == len(self.kinds_missing) and fault.kind not in self.kinds_missing:
                continue  # only kinds that are missing can still help
            for _ in range(ATTEMPTS_MAX):
                tries += 1
                if await self._strike(fault) or not self.is_sending():
                    break
            after_each()
        self.on_change("all faults done")

    async def _strike(self, fault: PlannedFault) -> bool:
        """Inject one fault, from the choice of its victim until all is complete again. Return whether it hit."""
        before = await self.observer.wait_until(lambda now: bool(now.masters()), "a look succeeds", WHOLE_DEADLINE_S)
        victim = choose(fault, before, self._members)
        if victim is None:
            return False
        struck_at, struck_at_ms = time.monotonic(), time.time_ns() // 1_000_000
        self.records.append(DemoFault(fault.kind, victim.name, victim.role, struck_at - self.begin))
        self.on_change(f"{fault.kind} {victim.name} ({victim.role})")
        await self._inject(fault, victim)
        await asyncio.sleep(fault.hold_s)  # this is how long the fault lasts
        await self._mend(fault, victim)
        self._update(healed_at_s=time.monotonic() - self.begin, gap_ms=self._gap_ms(before, victim, struck_at))
        self.on_change(f"{fault.kind} {victim.name}: mended, waiting until all brokers are ready")
        after = await self._whole()
        partitions = before.partitions_on(victim.brokers) + before.partitions_served_by(victim.brokers)
        was_under_way = any(self.silences.was_struck(partition, struck_at) for partition in partitions)
        hit = was_under_way and _has_hit(before, after, victim, struck_at_ms)
        self._update(hit=hit, gap_ms=self._gap_ms(before, victim, struck_at))
        self.on_change("")
        return hit

    def _gap_ms(self, before: Snapshot, victim: Victim, struck_at: float) -> float | None:
        """Return the longest gap of the victim's partitions until now; None if it is a member of no open segment."""
        partitions = before.partitions_on(victim.brokers)
        gap_s = self.silences.worst_gap_s(partitions, struck_at, time.monotonic())
        return None if gap_s is None else gap_s * 1000

    def _update(self, **changes: float | bool | None) -> None:
        self.records[-1] = replace(self.records[-1], **changes)  # type: ignore[arg-type]

    async def _inject(self, fault: PlannedFault, victim: Victim) -> None:
        if fault.kind == "cut":
            await self.cluster.cut(victim.brokers[0], victim.cut_from)
        elif fault.kind == "freeze":
            await self.cluster.freeze(*victim.brokers)
        elif fault.kind == "stop":
            await self.cluster.stop_gracefully(*victim.brokers)
        else:
            await self.cluster.kill(*victim.brokers)

    async def _mend(self, fault: PlannedFault, victim: Victim) -> None:
        if fault.kind == "cut":
            await self.cluster.heal()
        else:
            await (self.cluster.thaw if fault.kind == "freeze" else self.cluster.start_again)(*victim.brokers)

    def _is_whole(self, snapshot: Snapshot) -> bool:
        missing = not_whole(snapshot) or (self._not_accepting(snapshot) if self.is_sending() else "")
        if missing:
            self.on_change(f"waiting: {missing}")
        return not missing

    def _not_accepting(self, snapshot: Snapshot) -> str:
        now = time.monotonic()
        for chain in snapshot.chains:
            if not self.silences.is_under_way(chain.partition, now):
                return f"partition {chain.partition} has acknowledged nothing yet"
        return ""

    async def _whole(self) -> Snapshot | None:
        """Wait until every broker is ready, every chain open and settled, and every partition read; None if that takes
        too long.
        """
        try:
            await self.cluster.wait_ready(deadline_s=WHOLE_DEADLINE_S)
            return await self.observer.wait_until(self._is_whole, "the cluster is complete", WHOLE_DEADLINE_S)
        except DeadlineExceededError as error:
            self.on_change(f"not complete in time: {error}")
        except SeriatimError as error:  # a broker that ended by itself: start it, so that the run can continue
            self.on_change(f"not complete: {error}")
            await self.cluster.start_again("brokers")
        return None


def not_whole(snapshot: Snapshot) -> str:
    """Say what is missing, as human-readable text; empty if the snapshot is complete."""
    for chain in snapshot.chains:
        for segment in chain.segments:
            if segment.state == UNSETTLED:
                return f"segment {segment.no} of partition {chain.partition} is not settled"
        if chain.open_segment.state != OPEN:
            return f"partition {chain.partition} accepts nothing"
    for reader in snapshot.readers:
        if not reader.server or not reader.active:
            return (
                f"partition {reader.partition} is not read (segment {reader.segment}, {reader.server or 'no server'})"
            )
    return "" if snapshot.chains else "no broker describes the topic"


def _has_hit(before: Snapshot, after: Snapshot | None, victim: Victim, struck_at_ms: int) -> bool:
    if victim.role == "server":
        return True  # the broker itself said so just before the fault
    later = {chain.partition: chain for chain in after.chains} if after is not None else {}
    held = [
        chain
        for chain in before.chains
        if chain.open_segment.members and chain.open_segment.members[0] in victim.brokers
    ]
    return any(still_struck(chain, later.get(chain.partition), struck_at_ms) for chain in held)
