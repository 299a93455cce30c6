"""What must hold in every state of the small world, and at every step that the judge of the big simulation knows.

The judge (`sim.judge`) remembers one history, but here each state has a history of its own. So each transaction
and each reply gets a new judge, which knows only the disks and the chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seriatim_api.ids import MemberId, PartitionId, RunId, format_offset, split_offset
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.effects import AppendAccepted, AppendRefused
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.testing.memory_disk import DiskImage, MemoryDisk

from ..basics.schedule import Schedule, Violation
from ..judge import Judge, holds
from .state import NAMES, PARTITION, Promise

if TYPE_CHECKING:
    from .state import Draft, State
    from .steps import Steps


class _Standing:
    """A broker as the judge wants to see it."""

    def __init__(self, member: MemberId, run: int, durable: DiskImage) -> None:
        self.name = member.broker
        self.member = member
        self.real_disk = MemoryDisk()
        self.real_disk.durable = durable
        self.process: Any = None
        self.run = run
        self.suspect_before_run = 0


class _Running:
    def __init__(self, run: int) -> None:
        self.run = run


class Checks:
    """Checks states and steps. It remembers only results of comparisons that cannot change."""

    def __init__(self) -> None:
        self._schedule = Schedule(0)
        self._agree: dict[tuple[int, int], str] = {}
        self._orders: dict[tuple[Any, ...], str] = {}
        self._held: dict[tuple[int, Promise], bool] = {}

    def _judge(self, model: Steps, draft: Draft) -> Judge:
        brokers: dict[str, Any] = {}
        for broker, name in enumerate(NAMES):
            image = model.images.values[draft.images[broker]]
            standing = _Standing(model.members[broker], draft.runs[broker], image)
            if draft.cores[broker] >= 0:
                standing.process = _Running(draft.runs[broker])
            brokers[name] = standing
        judge = Judge(self._schedule, brokers)
        for broker in range(len(NAMES)):
            visible = model.apply_writes(draft.images[broker], draft.pending[broker])
            for _, _, batch in batches_of(model.images.values[visible]):
                judge.found(PARTITION, batch)
        chain: Chain | None = model.chains.values[draft.chain]
        for segment in chain.segments if chain is not None else ():
            if segment.sealed_len is not None and segment.state is SegmentState.SEALED:
                judge.seen.sealed[PARTITION, segment.no] = (segment.sealed_len, segment.sealed_checksum)
        return judge

    # ---- steps --------------------------------------------------------------------------------------

    def chain_written(
        self, model: Steps, draft: Draft, broker: int, before: Chain | None, after: Chain, certificate: RunId | None
    ) -> None:
        """I5, I6, I7, I12, tables and copies of one transition."""
        judge = self._judge(model, draft)
        judge.chain_written(NAMES[broker] if broker >= 0 else "a late transaction", before, after, certificate)
        draft.seen |= judge.seen.states
        if before is not None and len(after.segments) > len(before.segments):
            draft.seen.add("switched")
        if after.partition != PARTITION:
            judge.fail("I7", f"another partition: {after}")

    def accepted(self, model: Steps, draft: Draft, broker: int, sent: Any, effect: AppendAccepted) -> None:
        """I1, I6, I12 at the acknowledgement."""
        judge = self._judge(model, draft)
        judge.accepted(NAMES[broker], PARTITION, [sent.batch_id], effect.offset)
        segment, base = split_offset(effect.offset)
        draft.promises |= {Promise(segment, base, base + 1, sent.batch_id)}
        draft.seen.add("acknowledged")

    def refused(self, model: Steps, draft: Draft, broker: int, sent: Any, effect: AppendRefused) -> None:
        """I10: a batch that was refused as not stored is on no disk. GAP: a producer that keeps the rules continues."""
        judge = self._judge(model, draft)
        for place in draft.places:
            if place.request == effect.request:
                batch = judge.seen.placed.get((PARTITION, place.segment, place.base))
                if batch is not None and batch.body == sent.batch_id.to_bytes(8, "big"):
                    judge.appended(effect.request, batch)
        judge.denied(NAMES[broker], effect.request, effect.error)

    # ---- states -------------------------------------------------------------------------------------

    def state(self, model: Steps, state: State) -> None:
        """I1, I5, I6 and the order in sealed segments, in one state."""
        chain: Chain = model.chains.values[state.chain]
        for first in range(len(NAMES)):
            for second in range(first + 1, len(NAMES)):
                self._compare(model, state.images[first], state.images[second])
        for promise in state.promises:
            self._kept(model, state, chain, promise)
        self._in_order(model, state, chain)

    def _kept(self, model: Steps, state: State, chain: Chain, promise: Promise) -> None:
        segment = chain.segment(promise.segment)
        what = f"{promise.batch_id}, acknowledged at {promise.segment}:{promise.base},"
        if segment is None:
            raise Violation("I1", f"{what} is in no segment of the chain")
        if segment.sealed_len is not None and promise.end > segment.sealed_len:
            raise Violation("I6", f"{what} lies above the sealed length {segment.sealed_len}")
        disks = 0
        for image in state.images:
            key = (image, promise)
            known = self._held.get(key)
            if known is None:
                found: DiskImage = model.images.values[image]
                known = self._held[key] = holds(found, PARTITION, promise.segment, promise.base, promise.end) and any(
                    batch.body == promise.batch_id.to_bytes(8, "big")
                    for no, base, batch in batches_of(found)
                    if (no, base) == (promise.segment, promise.base)
                )
            disks += known
        if disks < 2:
            raise Violation("I1" if not disks else "I12", f"{what} is on {disks} disks")

    def _compare(self, model: Steps, first: int, second: int) -> None:
        """I5: at one place of a segment there is one batch."""
        key = (min(first, second), max(first, second))
        problem = self._agree.get(key)
        if problem is None:
            problem = ""
            known = {(no, base): batch for no, base, batch in batches_of(model.images.values[first])}
            for no, base, batch in batches_of(model.images.values[second]):
                other = known.get((no, base))
                if other is not None and (other.header.checksum, other.body) != (batch.header.checksum, batch.body):
                    problem = f"two batches at {no}:{base}: {other} and {batch}"
            self._agree[key] = problem
        if problem:
            raise Violation("I5", problem)

    def _in_order(self, model: Steps, state: State, chain: Chain) -> None:
        """Sealed segments with nothing unsettled before them have each message once, in the order of sending."""
        key = (state.chain, state.images)
        problem = self._orders.get(key)
        if problem is None:
            problem = self._orders[key] = self._order(model, state, chain)
        if problem:
            raise Violation("I2", problem)

    def _order(self, model: Steps, state: State, chain: Chain) -> str:
        placed: dict[tuple[int, int], Batch] = {}
        for image in state.images:
            placed.update({(no, base): batch for no, base, batch in batches_of(model.images.values[image])})
        last = -1
        for segment in chain.segments:
            if segment.state is not SegmentState.SEALED or segment.incomplete_table:
                return ""
            for index in range(segment.sealed_len or 0):
                batch = placed.get((segment.no, index))
                if batch is None:
                    return f"{segment.no}:{index} is sealed and on no disk"
                sequence = batch.header.base_sequence
                if sequence <= last:
                    return f"sequence {sequence} at {format_offset((segment.no << 40) + index)} stands after {last}"
                last = sequence
        return ""


def batches_of(image: DiskImage) -> list[tuple[int, int, Batch]]:
    """All batches on a disk, in logs and tail copies: segment, base index, batch."""
    found: list[tuple[int, int, Batch]] = []
    partition = image.partitions.get(PartitionId(PARTITION))
    if partition is None:
        return found
    for no, segment in partition.segments.items():
        found.extend((no, batch.header.base_index, batch) for batch in segment.batches)
    tails = [*partition.tails.values(), *(p.tail for p in partition.preparations.values() if p.tail is not None)]
    for tail in tails:
        found.extend((tail.segment_no, batch.header.base_index, batch) for batch in tail.batches)
    return found
