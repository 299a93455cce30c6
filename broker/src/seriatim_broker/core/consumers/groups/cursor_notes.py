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
from ...state.consumers import KeyedServed, Served
from ...state.partition import Partition
from ...values.events import CursorRecord, WriteOutcome
from ...values.keyed import ConsumerMode
from ...values.kinds import TimerKind
from ...values.tokens import TERM_MAX
from ..cursors import control_records, crossing
from ..cursors.consumer_group import serving_of
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
    """If the note in the cursor of a broadcast group is old, renew it. The consumer continues meanwhile.

    Rule `here-stays` (I13): the cursor of a consumer that is here is kept. Without it:
      1. A consumer is connected for 8 days, and the partition's segment does not change.
      2. The controller removes its cursor, because nothing was noted in it for 7 days.
      3. The consumer reconnects, and begins at the end: it misses all messages between.
    """
    served = serving_of(partition, group)
    if isinstance(served, KeyedServed):
        _take_next_term(served)
        return
    if served is None or served.cursor.mode is not ConsumerMode.BROADCAST or not served.group.consumers:
        return
    served.poll(LOOK_US, TimerKind.KEEPING)
    is_old = broker.now.wall_ms - served.cursor.reported_at_ms >= KEEP_MS
    if (
        is_old
        and not _is_busy(served)
        and right.has_right(served.broker, served.partition, served.segment, seeks=False)
    ):
        crossing.write_cursor(served, kept(broker, served.cursor), served.group.cursor_revision)


def _is_busy(served: Served) -> bool:
    """Whether something else is written into the cursor, or the coordinator takes no writes."""
    is_written = served.group.cursor_write is not None or bool(served.group.operations)
    return is_written or served.partition.write_wait_us(served.broker) > 0


def _take_next_term(served: KeyedServed) -> None:
    """Many tokens of the term are given: write the next one into the cursor, and count from 0. Grants continue
    meanwhile.

    The transaction compares the chain record too, which names the server, as a crossing does.

    Rule `next-term` (J3): a term has more tokens than a server gives in it. Without it:
      1. A server grants 100,000 keys a second for months. Its counter has no more bits.
      2. It begins again at 0: the tokens of each key fall, and applications that fence with them refuse all messages.
    """
    broker, consumer_group = served.broker, served.group
    count = broker.streams.tokens - consumer_group.tokens_from
    if served.keyed.handoff.frozen is not None or count < broker.config.term_tokens_max:
        return
    if _is_busy(served) or not right.has_right(served.broker, served.partition, served.segment, seeks=False):
        served.poll(broker.config.retry_us, TimerKind.KEEPING)
    elif not served.partition.revision:
        served.partition.read_chain(broker)
        served.poll(broker.config.retry_us, TimerKind.KEEPING)
    elif served.term < TERM_MAX:
        crossing.write_cursor(
            served, with_next_term(served.cursor), consumer_group.cursor_revision, served.partition.revision
        )


def _take_up(served: Served, written: CursorRecord, revision: int) -> None:
    """What was written into the cursor counts from now on."""
    if isinstance(served, KeyedServed):
        served.group.tokens_from = served.broker.streams.tokens
    served.take_up(written, revision)
    if isinstance(served, KeyedServed):
        control_records.replicate(served)  # the disks know the term base, for a rebuild


def on_written(served: Served, written: CursorRecord, outcome: WriteOutcome, revision: int) -> None:
    """The note was written, or not. After a conflict the place of the consumer group is found again."""
    if outcome is WriteOutcome.DONE:
        _take_up(served, written, revision)
    elif outcome is WriteOutcome.CONFLICT:
        # Rule `term-reads-chain`: the transaction may have compared the chain too, so that is read again. Without it:
        #   1. This member was not notified of a change of the chain record. It writes the next term.
        #   2. After the conflict it reads the cursor, which has not changed, and starts over.
        #   3. It writes the next term under the same revision, for ever, and grants nothing.
        served.group.look_again()
        served.group.reads_chain_first = True
        served.partition.read_chain(served.broker)
        served.read_cursor()
        return
    elif outcome is WriteOutcome.UNKNOWN:
        served.read_cursor()
    operations.go_on(served)
    progress.go_on(served)
