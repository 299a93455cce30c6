"""Producer tables of sealed segments: switches merge them, and servers find repeats with them.

A segment that was opened with a complete producer table knows the producers of all segments before it. A segment after
an UNSETTLED one was opened with an incomplete table. For such a segment the tables of all segments before are merged.
Each server asks the server of the segment before its own.

So members only ask for the tables of segments right before an incomplete one. A member forgets the table of every
other sealed segment, in memory and on its disk (`is_kept`, `let_go`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from seriatim_api.ids import MemberId

from ..peers import right
from ..state.broker import BrokerState
from ..state.copies import TableWait
from ..state.partition import Partition
from ..switching import sealing
from ..values.chain import Chain
from ..values.kinds import TimerKind
from ..values.log import DropPreparation, PutPreparation
from ..values.messages import TableAnswer, TableRequest
from ..values.producers import NO_TABLE, ProducerTable, merge
from ..values.segment import Segment, SegmentState
from ..values.states import drop, put


def is_kept(chain: Chain, no: int) -> bool:
    """Whether a switch or a reader may still ask for the producer table of a sealed segment.

    The switch and the readers of a segment with an incomplete table ask for the table of the segment before it. If an
    administrator declared that one lost, they ask for the table of the segment before the lost one. So a table is kept
    if one of the next two segments is incomplete (`Chain.reads_table_of`). It is also kept while there are fewer than
    two next segments, because the missing ones may still be opened incomplete. Retention asks only for the first of
    these (`control.retention.first_kept`). The mark of a segment never changes, so a table that is not kept is
    never needed again. (If two segments in a row are lost, they count as empty, and so do the tables that they were
    opened with.)

    Rule `tables-go-early` (I9). Without it:
      1. Segment 1 is UNSETTLED. A producer resends a batch of it, and segment 2 stores the batch again.
      2. A member of segment 1 settles it with the batch in it, and forgets its producer table.
      3. The server of segment 2 finds no repeat, and delivers the batch a second time.
    """
    return len(chain.following(no, 2)) < 2 or chain.reads_table_of(no)


def let_go(broker: BrokerState, partition: Partition, chain: Chain, segment: Segment) -> None:
    """Forget the producer table that a sealed segment was opened with, if no switch and no reader needs it any more.

    The uncertain tail of the segment before came with that table. It stays until the record lists two in-sync copies
    of that segment (docs/internals/switch.md, step 4).
    """
    log = partition.logs.get(segment.no)
    if log is None or log.record.sealed_len is None or is_kept(chain, segment.no):
        return
    log.let_table_go(broker)
    log.share(segment)
    chosen = log.opened_with
    if chosen is None:
        return
    tail_of = chain.segment(chosen.tail.segment_no) if chosen.tail is not None else None
    if tail_of is not None and not tail_of.has_two_copies:
        log.opened_with = replace(chosen, table=NO_TABLE)
        if chosen.table.blocks:  # on the disk too: else it names idle blocks that the disk drops
            broker.out.write(PutPreparation(partition.id, log.opened_with))
        return
    log.opened_with = None
    broker.out.write(DropPreparation(partition.id, segment.no, segment.switch_attempt))


def let_go_around(broker: BrokerState, partition: Partition, chain: Chain, changed: Iterable[Segment]) -> None:
    """Call `let_go` for these segments, for the two before each of them, and for the next one.

    Whether the tables of these neighbours are kept depends on the changed segment.
    """
    numbers: set[int] = set()
    for segment in changed:
        nearest, following = chain.before(segment.no), chain.after(segment.no)
        farther = chain.before(nearest.no) if nearest is not None else None
        numbers.update(near.no for near in (farther, nearest, segment, following) if near is not None)
    for no in sorted(numbers):
        near = chain.segment(no)
        assert near is not None
        let_go(broker, partition, chain, near)


def table_after(partition: Partition, no: int) -> ProducerTable | None:
    """The table as of the end of the settled segment `no`, merged with all before; None while it is not known here."""
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    log = partition.logs.get(no)
    if segment is None or chain is None:
        return None
    if not is_kept(chain, no):
        return ProducerTable()
    if segment.state is SegmentState.LOST:
        return ProducerTable() if no == chain.segments[0].no else partition.before_tables.get(no)
    if segment.state is not SegmentState.SEALED or segment.sealed_len is None or log is None or not log.is_in_sync:
        return None
    if partition.chosen_preparation(segment) is None:
        return None  # a copy under way has not got the table yet that the segment was opened with
    own = log.live_table  # the log ends at the sealed length, and so does its table
    if not segment.incomplete_table or no == chain.segments[0].no:
        return own
    before = partition.before_tables.get(no)
    return merge([before, own]) if before is not None else None


def _keep_before(broker: BrokerState, partition: Partition, no: int, table: ProducerTable) -> None:
    """Keep the merged table of all segments before `no`, and older ones up to `before_tables_bytes_max` (32 MiB).

    The tables that were used longest ago are forgotten first. Nothing is lost: a reader that needs such a table waits
    until this member has asked for it again. The newest table is always kept, however large it is, because otherwise
    its readers would wait for ever.
    """
    left_bytes = broker.config.before_tables_bytes_max - table.size_bytes
    kept: list[tuple[int, ProducerTable]] = []
    for other, known in reversed(tuple(partition.before_tables.items())):
        left_bytes -= known.size_bytes
        if other != no and left_bytes >= 0:
            kept.append((other, known))
        elif other != no:
            broker.out.note("before_table_forgotten", partition.id, segment=other, producers=known.producer_count)
    partition.before_tables = {**dict(reversed(kept)), no: table}
    broker.poll(0, TimerKind.PUMP, partition.id, no)  # at once: later another table may take its place


def want_before(broker: BrokerState, partition: Partition, no: int) -> ProducerTable | None:
    """The merged table of all segments before `no`. If it is not here, ask for it and return None."""
    known = partition.before_tables.get(no)
    if known is not None:
        if len(partition.before_tables) > 1:
            partition.before_tables = put(drop(partition.before_tables, no), no, known)
        return known
    chain = partition.chain
    before = chain.before(no) if chain is not None else None
    if chain is None or not chain.settled_before(no):
        return None
    if before is None:
        return ProducerTable()
    here = table_after(partition, before.no)
    if here is not None:
        _keep_before(broker, partition, no, here)
        return here
    if before.server == broker.member or before.state is SegmentState.LOST:
        earlier = want_before(broker, partition, before.no)
        if earlier is not None:
            here = table_after(partition, before.no)
            if here is not None:
                _keep_before(broker, partition, no, here)
        return here
    broker.send(before.server, TableRequest(partition.id, before.no))
    if not broker.is_linked(before.server):
        # Rule `server-unmissed` (I13). Without it: 1. The server of the segment before is gone. 2. All consumer groups
        # have read that segment, so no consumer misses its server. 3. This member waits for the table for ever, and the
        # segment after it is never delivered.
        right.want_another(broker, partition, before)
    return None


def on_request(broker: BrokerState, partition: Partition, sender: MemberId, message: TableRequest) -> None:
    """Another server asks for the table as of the end of a segment: answer now, or as soon as it is known.

    One question leads to at most one further question, about the segment before. If this member asked for all that wait
    here, two servers of alternating segments would ask each other without end.
    """
    wait = TableWait(message.segment_no, sender)
    partition.table_waits = (*(known for known in partition.table_waits if known != wait), wait)
    if table_after(partition, wait.segment_no) is None:
        want_before(broker, partition, wait.segment_no)
    _answer(broker, partition, ask=False)


def on_answer(broker: BrokerState, partition: Partition, message: TableAnswer) -> None:
    """A server reported the table as of the end of its segment: keep it, and answer the servers that wait for it."""
    if message.table is not None:
        segment = partition.chain.after(message.segment_no) if partition.chain is not None else None
        if segment is not None and (segment.incomplete_table or segment.state is SegmentState.LOST):
            _keep_before(broker, partition, segment.no, ProducerTable(message.table))
    sealing.on_table(broker, partition, message.segment_no, message.table)
    _answer(broker, partition, ask=False)


def on_learned(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """The chain record changed. A settlement may have made a table known: answer the servers that wait for it."""
    for no in [no for no in partition.before_tables if chain.segment(no) is None]:
        partition.before_tables = drop(partition.before_tables, no)
    # A server that waits for the table of a folded segment learns this record too. Then it asks for the table of the
    # segment before.
    partition.table_waits = tuple(wait for wait in partition.table_waits if not chain.is_folded(wait.segment_no))
    _answer(broker, partition, ask=True)


def _answer(broker: BrokerState, partition: Partition, ask: bool) -> None:
    still: list[TableWait] = []
    for wait in partition.table_waits[-64:]:  # the newest 64: a server that asks again comes last
        table = table_after(partition, wait.segment_no)
        if table is None and ask:
            want_before(broker, partition, wait.segment_no)
            table = table_after(partition, wait.segment_no)
        if table is None:
            still.append(wait)
        else:
            told = table.spelled_out(broker.config.table_bytes_max)
            if told is None:
                broker.out.note(
                    "table_too_large", partition.id, segment=wait.segment_no, producers=table.producer_count
                )
            broker.send(wait.member, TableAnswer(partition.id, wait.segment_no, told))
    partition.table_waits = tuple(still)
