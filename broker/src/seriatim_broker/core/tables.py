"""Producer tables of segments that are over: what a switch merges, and what readers skip by.

The table of a segment that was opened with a complete one says all of its own. Behind an unsettled segment it does not:
there the tables of all segments before are merged in, asked for from server to server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from seriatim_api.ids import MemberId

from .chain import Chain, SegmentState
from .messages import TableAnswer, TableRequest
from .outbox import Outbox
from .partition import Partition
from .producers import Table, merge
from .state import drop, put

KnownTables = Mapping[int, Table]
"""Segment number -> the merged table of all segments before it; kept only for segments with an incomplete one, and for
lost ones, which have none of their own."""


class TableWait(NamedTuple):
    """Another broker waits for the table as of the end of a segment."""

    segment_no: int
    member: MemberId


def table_after(partition: Partition, no: int) -> Table | None:
    """The table as of the end of settled segment `no`, merged with all before; None if not known here (yet)."""
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    log = partition.logs.get(no)
    if segment is None or chain is None:
        return None
    if segment.state is SegmentState.LOST:
        return () if no == chain.segments[0].no else partition.before_tables.get(no)
    if segment.state is not SegmentState.SEALED or segment.sealed_len is None or log is None or not log.is_whole:
        return None
    if partition.chosen_preparation(segment) is None:
        return None  # a copy under way: what the segment was opened with is not known yet
    own = log.table.as_of(no, segment.sealed_len)
    if not segment.incomplete_table or no == chain.segments[0].no:
        return own
    before = partition.before_tables.get(no)
    return merge([before, own]) if before is not None else None


def want_before(outbox: Outbox, partition: Partition, no: int) -> Table | None:
    """The merged table of all segments before `no`, or None after having asked for it."""
    known = partition.before_tables.get(no)
    if known is not None:
        return known
    chain = partition.chain
    before = chain.segment(no - 1) if chain is not None else None
    if chain is None or not chain.settled_before(no):
        return None
    if before is None:
        return ()
    here = table_after(partition, no - 1)
    if here is not None:
        partition.before_tables = put(partition.before_tables, no, here)
        return here
    if before.server == outbox.member or before.state is SegmentState.LOST:
        earlier = want_before(outbox, partition, no - 1)
        if earlier is not None:
            here = table_after(partition, no - 1)
            if here is not None:
                partition.before_tables = put(partition.before_tables, no, here)
        return here
    outbox.send(before.server, TableRequest(partition.id, no - 1))
    return None


def on_request(outbox: Outbox, partition: Partition, sender: MemberId, message: TableRequest) -> None:
    """Answer now, or when what lies before is known.

    One question leads to one further question at the most, about a segment before: asked on behalf of all who wait
    here, two servers that stand behind each other in turn would ask each other without end.
    """
    wait = TableWait(message.segment_no, sender)
    partition.table_waits = (*(known for known in partition.table_waits if known != wait), wait)
    if table_after(partition, wait.segment_no) is None:
        want_before(outbox, partition, wait.segment_no)
    _answer(outbox, partition, ask=False)


def on_answer(outbox: Outbox, partition: Partition, message: TableAnswer) -> None:
    """A server told the table as of the end of its segment."""
    if message.table is not None:
        segment = partition.chain.segment(message.segment_no + 1) if partition.chain is not None else None
        if segment is not None and (segment.incomplete_table or segment.state is SegmentState.LOST):
            partition.before_tables = put(partition.before_tables, segment.no, message.table)
    if partition.switch is not None:
        partition.switch.on_table(outbox, partition, message.segment_no, message.table)
    _answer(outbox, partition, ask=False)


def on_learned(outbox: Outbox, partition: Partition, chain: Chain) -> None:
    """A settlement may have made a table known."""
    for no in [no for no in partition.before_tables if chain.segment(no) is None]:
        partition.before_tables = drop(partition.before_tables, no)
    _answer(outbox, partition, ask=True)


def _answer(outbox: Outbox, partition: Partition, ask: bool) -> None:
    still: list[TableWait] = []
    for wait in partition.table_waits[-64:]:  # who asks again is the newer one
        table = table_after(partition, wait.segment_no)
        if table is None and ask:
            want_before(outbox, partition, wait.segment_no)
            table = table_after(partition, wait.segment_no)
        if table is None:
            still.append(wait)
        else:
            outbox.send(wait.member, TableAnswer(partition.id, wait.segment_no, table))
    partition.table_waits = tuple(still)
