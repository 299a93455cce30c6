"""The judge itself: it passes each observation to the rules that listen to it, always in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol

from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId, RunId, format_offset, split_offset
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.effects import DeliveryEvent, Granted, Note
from seriatim_broker.core.values.events import AckLevel, CursorRecord
from seriatim_broker.core.values.log import Batch, PutBatch, PutPreparation, PutSegment, PutTailCopy, Write
from seriatim_broker.testing.simulated_bodies import messages_in

from ..basics.schedule import Schedule, Violation
from .chain_records import ChainRecords
from .excuses import Excuse
from .rules import Rules
from .seen import Seen
from .views import Fate

if TYPE_CHECKING:
    from ..basics.interfaces import Broker


class Publications(Protocol):
    """The judge of publications."""

    def wrote(self, who: str, writes: tuple[Write, ...]) -> None:
        """A broker writes."""


class Judge:
    """Sees everything that happens in one run, and fails the run when a promise is broken.

    Args:
        schedule: The time, and the story.
        brokers: All slots.
        flush: Whether the topic flushes before it commits.
        levels: The ack levels that producers ask for.
        limits: The limits at which brokers may forget producers.
        ahead_ms_max: How far append time may be ahead of the wall clock of the master that appends.
    """

    def __init__(
        self,
        schedule: Schedule,
        brokers: Mapping[str, Broker],
        *,
        flush: bool = True,
        levels: tuple[int, ...] = (int(AckLevel.REPLICATED_FLUSHED),),
        ahead_ms_max: int = 0,
        limits: BrokerConfig = BrokerConfig(),  # noqa: B008 - it never changes
    ) -> None:
        self.publications: Publications | None = None  # only if the world has writers
        self.seen = Seen(schedule, brokers, self.fail, flush=flush)
        may_miss = min(levels) < AckLevel.REPLICATED
        self.rules = rules = Rules(self.seen, limits, ahead_ms_max=ahead_ms_max, may_miss=may_miss)
        self._frame_bytes_max = limits.deliver_bytes
        self._chains = ChainRecords(rules)

        # Observations to which one rule alone listens
        self.said_safe = rules.copies.said_safe
        self.certified = rules.transitions.certified
        self.rebuilt = self._chains.rebuilt
        self.appended = rules.outcomes.appended
        self.check_room = rules.full_disks.taken
        self.settled = rules.outcomes.settled
        self.subscribed = rules.operations.subscribed
        self.operated = rules.operations.done
        self.gap_told = rules.gaps.told
        self.dropped_told = rules.retention.told
        self.confirmed = rules.cursors.confirmed
        self.begun = rules.cursors.begun
        self.delivered = rules.deliveries.delivered
        self.skipped = rules.deliveries.skipped

        # What others ask the judge
        self.view = self.seen.view
        self.replay = rules.order.replay
        self.wanted = rules.order.wanted
        self.untold = rules.gaps.untold

    def fail(self, rule: str, text: str) -> NoReturn:
        """Report a broken promise."""
        raise Violation(rule, text)

    def note(self, effect: Note) -> None:
        """Count what happened, so that a run can say which rare states it reached."""
        self.seen.states.add(effect.name)
        self.rules.calm.noted(effect)
        self.rules.growth.noted(effect)
        if effect.name == "cancellations_lost":
            self.rules.delayed.forgotten.add((effect.partition, dict(effect.fields)["segment"]))  # type: ignore[arg-type]
        if ("reason", "moved to a chosen place") in effect.fields:
            self.seen.states.add("head moved for balance")

    # ---- disks and chains ---------------------------------------------------------------------------

    def writes(self, who: str, writes: tuple[Write, ...], wall_ms: int | None = None) -> None:
        """A core writes to its disk; `wall_ms` is its wall clock."""
        self.seen.losses.wrote(who, writes)
        for write in writes:
            if isinstance(write, PutBatch):
                if wall_ms is not None:
                    self.rules.append_time.appended(who, write.partition, write.batch, wall_ms)
                self._placed(who, write.partition, write.batch, wall_ms)
            elif isinstance(write, PutTailCopy):
                for batch in write.tail.batches:
                    self._placed(who, write.partition, batch)
            elif isinstance(write, PutPreparation) and write.preparation.tail is not None:
                for batch in write.preparation.tail.batches:
                    self._placed(who, write.partition, batch)
            elif isinstance(write, PutSegment) and write.segment.sealed_len is not None:
                self.rules.one_log.seal_written(who, write)

    def _placed(self, who: str, partition: PartitionId, batch: Batch, wall_ms: int | None = None) -> None:
        if self.rules.one_log.placed(who, partition, batch):
            self.rules.tables.placed(partition, batch)
            self.rules.delayed.placed(who, partition, batch, wall_ms)

    def found(self, partition: PartitionId, batch: Batch) -> None:
        """A batch is on a disk, and this judge did not see the write."""
        header = batch.header
        self.seen.placed.setdefault((partition, header.segment, header.base_index), batch)
        self.rules.append_time.found((partition, header.segment), batch)

    def chain_written(self, who: str, before: Chain | None, after: Chain, certificate: RunId | None) -> None:
        """The coordinator carries out one transition of a chain."""
        self._chains.written(who, before, after, certificate)

    # ---- producers ----------------------------------------------------------------------------------

    def sent(
        self, message: int, partition: PartitionId, producer: bytes, level: int = AckLevel.REPLICATED_FLUSHED
    ) -> None:
        """The application handed a message over, and asked for an ack level."""
        self.seen.fates[message] = Fate(partition, producer, self.seen.schedule.now_us, level)

    def accepted(
        self,
        who: str,
        partition: PartitionId,
        messages: list[int],
        offset: int,
        level: int = AckLevel.REPLICATED_FLUSHED,
    ) -> None:
        """A broker says that a batch is at `offset`; the ack level says what that promises.

        If the level carries the promise, the segment is not sealed below the batch. With `replicated_flushed` two disks
        have it, else two members.
        """
        rules = self.rules
        segment_no, index = split_offset(offset)
        what = f"{who} acknowledges {messages} at {format_offset(offset)}"
        batch = rules.outcomes.accepted(what, partition, messages, segment_no, index)
        if level < AckLevel.REPLICATED or partition in self.seen.gone:
            return  # of a deleted topic a member may have nothing any more
        rules.outcomes.promised(what, partition, segment_no)
        rules.lengths.promised(what, partition, segment_no, batch.header.end_index)
        if self.seen.is_dropped(partition, segment_no, index):
            self.seen.excuse(Excuse.RESEND_OF_DROPPED)
        elif level == AckLevel.REPLICATED_FLUSHED:
            rules.two_copies.on_two_disks(batch, what)
            rules.lengths.flushed(partition, segment_no, batch.header.end_index)
        else:
            rules.two_copies.two_hold(batch, what)

    def denied(self, who: str, request: int, error: SeriatimError) -> None:
        """A broker refuses a send attempt."""
        self.rules.tables.denied(who, error)
        self.rules.outcomes.denied(who, request, error)

    def is_gone(self, partition: PartitionId, messages: list[int]) -> bool:
        """Whether these acknowledged messages may all be missing, because they were lost with their disks."""
        seen, may_be_gone = self.seen, self.rules.outcomes.may_be_gone
        repeats = seen.lost_repeats.get(partition, ())
        return all(message in repeats or may_be_gone(seen.fates[message]) for message in messages)

    # ---- consumers ----------------------------------------------------------------------------------

    def served(self, who: str, batches: tuple[Batch, ...], server_epoch: int) -> None:
        """A broker puts batches on a consumer's stream."""
        rules = self.rules
        for batch in batches:
            header = batch.header
            partition = PartitionId(header.partition)
            rules.servers.served(who, (partition, header.segment), server_epoch)
            what = f"{who} delivers {header.segment}:{header.base_index}"
            rules.one_log.served(what, partition, batch)
            rules.lengths.promised(what, partition, header.segment, header.end_index)
            if partition not in self.seen.gone:
                rules.two_copies.two_hold(batch, what)

    def granted(self, who: str, stream: int, subscription: int, event: Granted) -> None:
        """A broker puts grants of messages on a consumer's stream."""
        of = self.rules.operations.grant_of(stream, subscription)
        if of is None:
            return
        messages, at = messages_in(event.body), 0
        self.rules.keyed.framed(who, len(event.body), len(messages), self._frame_bytes_max)
        for run in event.runs:
            mine = messages[at : at + len(run.offsets)]
            at += len(mine)
            self.rules.keyed.granted(who, *of, event.server_epoch, run, mine)
            flagged = run.maybe_repeated or run.attempt > 1
            self.rules.dead_letters.granted(who, *of, event.server_epoch, mine, flagged=flagged)

    def told(self, who: str, stream: int, subscription: int, event: DeliveryEvent) -> None:
        """A broker puts something on a consumer's stream."""
        self.rules.operations.told(who, stream, subscription, event)
        self.rules.told_once.sent(who, stream, subscription, event)

    def acknowledged(self, group: str, partition: PartitionId, offset: int, group_epoch: int | None = None) -> None:
        """The application of a group acknowledges everything up to and including `offset`."""
        segment_no, index = split_offset(offset)
        view = self.seen.view(group, partition, group_epoch)
        view.acked[segment_no] = max(view.acked.get(segment_no, 0), index + 1)

    def moved(self, group: str, partition: PartitionId, segment_no: int) -> None:
        """A reader of ranges, which has no cursor, has finished all before that segment."""
        self.seen.cursorless.add(group)
        self.seen.cursors[group, partition] = segment_no

    def cursor_written(
        self, who: str, partition: PartitionId, group: str, old: CursorRecord | None, new: CursorRecord
    ) -> None:
        """The coordinator takes a cursor."""
        self.seen.schedule.tell("coord", f"cursor of {group} in partition {partition} by {who}: {new}")
        self.rules.cursors.written(who, partition, group, old, new)

    # ---- the end ------------------------------------------------------------------------------------

    def topic_gone(self, partition: PartitionId) -> None:
        """The topic of a partition is deleted: the coordinator has its tombstone."""
        self.seen.gone.add(partition)
        if any(fate.partition == partition and not fate.outcome for fate in self.seen.fates.values()):
            self.seen.states.add("topic deleted under traffic")

    def final(self, chain: Chain, open_length: int, groups: list[str], keyed_groups: Sequence[str] = ()) -> None:
        """The run is over, and everything has drained.

        Args:
            groups: The exclusive consumer groups, and readers of ranges.
            keyed_groups: The consumer groups in which order is by key.
        """
        rules = self.rules
        order = rules.order.replay(chain, open_length)
        rules.delayed.final(chain.partition, order)
        rules.outcomes.final(chain.partition, order)
        rules.order.check_producers(order)
        rules.append_time.final(chain, open_length)
        rules.lengths.final(chain.partition)
        rules.gaps.final(chain.partition, [*groups, *keyed_groups])
        rules.order.final(chain, open_length, groups)

    def final_of_gone(self) -> None:
        """The run is over, and some topics were deleted."""
        self.rules.outcomes.final_of_gone()
        self.rules.order.final_of_gone()
