"""Producer tables of segments that are over: what a switch merges, and what readers skip by.

The table of a segment that was opened with a complete one says all of its own. Behind an unsettled segment it does not:
there the tables of all segments before are merged in, asked for from server to server.

So only the tables of segments that stand right before an incomplete one are ever asked for. A member forgets the table
of every other sealed segment, in memory and on its disk (`is_kept`, `let_go`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from seriatim_api.ids import MemberId

from ..peers import right
from ..state.broker import BrokerState
from ..state.copies import TableWait
from ..state.partition import Partition
from ..switching import idle_blocks, sealing
from ..values.chain import Chain, Segment, SegmentState
from ..values.kinds import TimerKind
from ..values.log import DropPreparation, PutPreparation
from ..values.messages import TableAnswer, TableRequest
from ..values.producers import NO_TABLE, ProducerTable, merge
from ..values.states import drop, put


def is_kept(chain: Chain, no: int) -> bool:
    """Whether the producer table of a sealed segment may still be asked for.

    The switch and the readers of an incomplete segment ask for the table of the segment before it. If that one is
    declared lost, they ask for the one before that. So a table is kept if one of the next two segments is incomplete,
    and as long as there are no two next ones: they may be opened incomplete yet. Segments never change their mark, so
    what is not kept is never needed again. (If two segments in a row are lost, they count as empty, and so does what
    they were opened with.)
    """
    following = chain.following(no, 2)
    return len(following) < 2 or any(segment.incomplete_table for segment in following)


def let_go(broker: BrokerState, partition: Partition, chain: Chain, segment: Segment) -> None:
    """Forget what a sealed segment was opened with, as far as nothing needs it any more.

    The uncertain tail of the segment before, which came with it, is kept until two whole copies of that segment are
    listed (protocol, switch, step 4).
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
        if chosen.table.blocks:  # on the disk too, or it would name blocks that nothing keeps there
            broker.out.write(PutPreparation(partition.id, log.opened_with))
        return
    log.opened_with = None
    broker.out.write(DropPreparation(partition.id, segment.no, segment.attempt))


def let_go_around(broker: BrokerState, partition: Partition, chain: Chain, changed: Iterable[Segment]) -> None:
    """`let_go` of all that may hang on these segments: two before them, which count on them, and one behind."""
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
    """The table as of the end of settled segment `no`, merged with all before; None if not known here (yet)."""
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    log = partition.logs.get(no)
    if segment is None or chain is None:
        return None
    if not is_kept(chain, no):
        return ProducerTable()
    if segment.state is SegmentState.LOST:
        return ProducerTable() if no == chain.segments[0].no else partition.before_tables.get(no)
    if segment.state is not SegmentState.SEALED or segment.sealed_len is None or log is None or not log.is_whole:
        return None
    if partition.chosen_preparation(segment) is None:
        return None  # a copy under way: what the segment was opened with is not known yet
    own = log.live_table  # the log ends at the sealed length, and so does its table
    if not segment.incomplete_table or no == chain.segments[0].no:
        return own
    before = partition.before_tables.get(no)
    return merge([before, own]) if before is not None else None


def _keep_before(broker: BrokerState, partition: Partition, no: int, table: ProducerTable) -> None:
    """Keep the merged table of all segments before `no`, and of others as many as there is room for.

    Those that were not used for longest are forgotten. Nothing is lost by that: who needs one asks for it again, and
    its readers wait until it comes. The newest is always kept, however large it is, or they would wait for ever.
    """
    table.read_on(table.unread_count)  # each batch that is delivered is looked up
    left_bytes = broker.config.before_tables_bytes_max - table.size_bytes
    kept: list[tuple[int, ProducerTable]] = []
    for other, known in reversed(tuple(partition.before_tables.items())):
        left_bytes -= known.size_bytes
        if other != no and left_bytes >= 0:
            kept.append((other, known))
        elif other != no:
            broker.out.note("before_table_forgotten", partition.id, segment=other, producers=known.producer_count)
    partition.before_tables = {**dict(reversed(kept)), no: table}
    broker.poll(0, TimerKind.PUMP, partition.id, no)  # its readers come before another table takes its place


def want_before(broker: BrokerState, partition: Partition, no: int) -> ProducerTable | None:
    """The merged table of all segments before `no`, or None after having asked for it."""
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
        # Rule `server-missed` (I13): nobody else may miss the server of a segment that is empty, or that all have read.
        right.want_another(broker, partition, before)
    return None


def on_request(broker: BrokerState, partition: Partition, sender: MemberId, message: TableRequest) -> None:
    """Answer now, or when what lies before is known.

    One question leads to one further question at the most, about a segment before: asked on behalf of all who wait
    here, two servers that stand behind each other in turn would ask each other without end.
    """
    wait = TableWait(message.segment_no, sender)
    partition.table_waits = (*(known for known in partition.table_waits if known != wait), wait)
    if table_after(partition, wait.segment_no) is None:
        want_before(broker, partition, wait.segment_no)
    _answer(broker, partition, ask=False)


def on_answer(broker: BrokerState, partition: Partition, message: TableAnswer) -> None:
    """A server told the table as of the end of its segment."""
    if message.table is not None:
        segment = partition.chain.after(message.segment_no) if partition.chain is not None else None
        if segment is not None and (segment.incomplete_table or segment.state is SegmentState.LOST):
            _keep_before(broker, partition, segment.no, ProducerTable(message.table))
    sealing.on_table(broker, partition, message.segment_no, message.table)
    _answer(broker, partition, ask=False)


def on_learned(broker: BrokerState, partition: Partition, chain: Chain) -> None:
    """A settlement may have made a table known."""
    for no in [no for no in partition.before_tables if chain.segment(no) is None]:
        partition.before_tables = drop(partition.before_tables, no)
    # Whoever waits for the table of a folded segment learns of the record, and asks for that of the one before.
    partition.table_waits = tuple(wait for wait in partition.table_waits if not chain.is_folded(wait.segment_no))
    _answer(broker, partition, ask=True)


def _answer(broker: BrokerState, partition: Partition, ask: bool) -> None:
    still: list[TableWait] = []
    for wait in partition.table_waits[-64:]:  # who asks again is the newer one
        table = table_after(partition, wait.segment_no)
        if table is None and ask:
            want_before(broker, partition, wait.segment_no)
            table = table_after(partition, wait.segment_no)
        if table is None:
            still.append(wait)
        else:
            size_bytes_max = idle_blocks.table_bytes_max(broker, wait.member)
            told = table.spelled_out(size_bytes_max, broker.config.producer_evict_ms)
            if told is None:
                broker.out.note(
                    "table_too_large", partition.id, segment=wait.segment_no, producers=table.producer_count
                )
            broker.send(wait.member, TableAnswer(partition.id, wait.segment_no, told))
    partition.table_waits = tuple(still)
