"""What the server of a consumer group notes in its cursor while it serves: that consumers are here, and the next term.

The positions of broadcast groups are kept as long as their consumers are here.

In broadcast mode each consumer has a cursor of its own. Consumers come and go, so cursors would become more and more.
The server of a consumer that is here notes the day in its cursor. The controller removes a cursor that has an old day
(`runtime.controller.expiry`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...peers import right
from ...state.broker import BrokerState
from ...state.consumers import ConsumerGroup, ConsumerGroupPhase
from ...state.partition import Partition
from ...values.events import CursorRecord, WriteOutcome
from ...values.keyed import ConsumerMode
from ...values.kinds import TimerKind
from ...values.tokens import TERM_MAX
from ..cursors import control_records, crossing
from ..cursors.consumer_group import read_cursor
from . import operations, progress

KEEP_MS: Final = 86_400_000
"""A day: so old may the note in a cursor be before it is renewed. One transaction a day is little for the coordinator.
"""

LOOK_US: Final = 3_600_000_000
"""An hour between two looks at a consumer group."""


def kept(broker: BrokerState, record: CursorRecord) -> CursorRecord:
    """The record with a note that the consumer is here now."""
    return replace(record, reported_at_ms=broker.now.wall_ms)


def with_next_term(record: CursorRecord) -> CursorRecord:
    """The record with the next term."""
    return replace(record, term_base=record.term_base + 1)


def look(broker: BrokerState, partition: Partition, group: str) -> None:
    """If the note in the cursor of a broadcast group is old, renew it. The consumer goes on meanwhile.

    Rule `here-stays` (I13): the cursor of a consumer that is here is kept. Without it:
      1. A consumer is connected for 8 days, and the partition's segment does not change.
      2. The controller removes its cursor, because nothing was noted in it for 7 days.
      3. The consumer reconnects, and begins at the end: it misses all messages between.
    """
    consumer_group = partition.consumer_groups.get(group)
    if consumer_group is not None and consumer_group.keyed is not None:
        _take_next_term(broker, partition, consumer_group)
        return
    if (
        consumer_group is None
        or consumer_group.phase is not ConsumerGroupPhase.SERVING
        or consumer_group.cursor is None
        or consumer_group.cursor.mode is not ConsumerMode.BROADCAST
        or not consumer_group.consumers
    ):
        return
    broker.poll(LOOK_US, TimerKind.KEEPING, partition.id, group)
    is_busy = consumer_group.crossing_serial or consumer_group.operations or partition.write_wait_us(broker)
    is_old = broker.now.wall_ms - consumer_group.cursor.reported_at_ms >= KEEP_MS
    if is_old and not is_busy and right.may_deliver(broker, partition, consumer_group.segment_no):
        record = kept(broker, consumer_group.cursor)
        crossing.write_cursor(broker, partition, consumer_group, record, consumer_group.cursor_revision)


def _take_next_term(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup) -> None:
    """Many tokens of the term are given: write the next one into the cursor, and count from 0. Grants go on meanwhile.

    The transaction compares the chain record too, which names the server, as a crossing does.

    Rule `next-term` (J3): a term has more tokens than a server gives in it. Without it:
      1. A server grants 100,000 keys a second for months. Its counter has no more bits.
      2. It begins again at 0: the tokens of each key fall, and applications that fence with them refuse all messages.
    """
    keyed = consumer_group.keyed
    if (
        consumer_group.phase is not ConsumerGroupPhase.SERVING
        or keyed is None
        or keyed.handoff.frozen is not None
        or consumer_group.cursor is None
        or broker.streams.tokens - consumer_group.tokens_from < broker.config.term_tokens_max
    ):
        return
    is_busy = consumer_group.crossing_serial or consumer_group.operations or partition.write_wait_us(broker)
    if is_busy or not right.may_deliver(broker, partition, consumer_group.segment_no):
        broker.poll(broker.config.retry_us, TimerKind.KEEPING, partition.id, consumer_group.name)
    elif not partition.revision:
        partition.read_chain(broker)
        broker.poll(broker.config.retry_us, TimerKind.KEEPING, partition.id, consumer_group.name)
    elif consumer_group.term < TERM_MAX:
        record = with_next_term(consumer_group.cursor)
        crossing.write_cursor(
            broker, partition, consumer_group, record, consumer_group.cursor_revision, partition.revision
        )


def _note(broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup, revision: int) -> None:
    """What was written into the cursor counts from now on."""
    assert consumer_group.cursor is not None
    consumer_group.cursor_revision = revision
    if consumer_group.keyed is None:
        consumer_group.cursor = kept(broker, consumer_group.cursor)
        return
    consumer_group.cursor = with_next_term(consumer_group.cursor)
    consumer_group.tokens_from = broker.streams.tokens
    control_records.replicate(broker, partition, consumer_group)  # the disks know the term base, for a rebuild


def on_written(
    broker: BrokerState, partition: Partition, consumer_group: ConsumerGroup, outcome: WriteOutcome, revision: int
) -> None:
    """The note was written, or not. After a conflict the place of the consumer group is found anew."""
    assert consumer_group.cursor is not None
    if outcome is WriteOutcome.DONE:
        _note(broker, partition, consumer_group, revision)
    elif outcome is WriteOutcome.CONFLICT:
        # Rule `term-reads-chain`: the transaction may have compared the chain too, so that is read again. Without it:
        #   1. This member was not told of a change of the chain record. It writes the next term.
        #   2. After the conflict it reads the cursor, which has not changed, and begins anew.
        #   3. It writes the next term under the same revision, for ever, and grants nothing.
        consumer_group.look_again()
        consumer_group.reads_chain_first = True
        partition.read_chain(broker)
        read_cursor(broker, partition, consumer_group)
        return
    elif outcome is WriteOutcome.UNKNOWN:
        read_cursor(broker, partition, consumer_group)
    operations.go_on(broker, partition, consumer_group)
    progress.go_on(broker, partition, consumer_group)
