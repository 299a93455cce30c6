"""The records of chains: what changed from one to the next is passed to the rules, one segment after the other."""

from __future__ import annotations

from seriatim_api.ids import PartitionId, RunId
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import Segment, SegmentState

from ..basics.story import brief
from .rules import Rules
from .transitions import note_change


class ChainRecords:
    """Takes each record of a chain apart."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._seen = rules.seen

    def written(self, who: str, before: Chain | None, after: Chain, certificate: RunId | None) -> None:
        """The coordinator carries out one transition of a chain."""
        seen = self._seen
        if seen.schedule.trace:
            what = f"chain of partition {after.partition} by {who}"
            seen.schedule.tell("coord", f"{what}: {brief(after)} cert {certificate}")
        chains.check(after)
        if after.partition in seen.gone:
            self._seen.fail("GONE", f"{who} writes a chain of partition {after.partition}, whose topic was deleted")
        self._rules.transitions.used_once(who, after)
        seen.history.setdefault(after.partition, []).append(after)
        if before is None:
            self._rules.transitions.begun(after)
            self._opened(after)
            return
        self._rules.transitions.followed(before, after)
        for old in before.segments:
            new = after.segment(old.no)
            if new is None and old.no < after.segments[0].no and not after.is_folded(old.no):
                self._rules.retention.left_record(after, old)
            elif new is None:
                self._rules.transitions.folded(before, after, old)
            else:
                self._changed(after.partition, old, new)
        if after.open_segment.no != before.open_segment.no:
            self._rules.transitions.opens(before)
            self._rules.suspicions.opened(before, after)
            self._opened(after)
            old = after.segments[-2]
            if old.state is SegmentState.UNSETTLED:
                self._rules.transitions.opened_over(old, certificate)

    def _changed(self, partition: PartitionId, old: Segment, new: Segment) -> None:
        what = f"segment {old.no} of partition {partition}"
        note_change(self._seen, old, new)
        self._rules.append_time.changed(partition, old, new)
        self._rules.retention.changed(partition, old, new)
        self._rules.transitions.changed(what, old, new)
        self._rules.one_log.changed(what, old, new)
        self._rules.copies.changed(what, partition, old, new)
        self._rules.servers.changed(what, partition, old, new)
        if old.state is not SegmentState.SEALED and new.state is SegmentState.SEALED:
            what = f"segment {new.no} of partition {partition} is sealed at {new.sealed_len}"
            self._rules.lengths.sealed(what, partition, new)
            self._rules.one_log.sealed(what, partition, new)
            self._rules.two_copies.sealed(what, partition, new)
            self._rules.servers.sealed(what, partition, new)
            self._rules.copies.sealed(what, partition, new)
        if old.state is not SegmentState.LOST and new.state is SegmentState.LOST:
            self._rules.gaps.declared_lost(partition, old)
            self._rules.deliveries.lost(partition, old.no)
            self._rules.lengths.forget_deliveries(partition, old.no, 0)

    def _opened(self, chain: Chain) -> None:
        segment = chain.open_segment
        self._rules.full_disks.opened(chain.partition, segment)
        if len(chain.segments) > 1 and chain.segments[-2].incomplete_table:
            self._seen.states.add("mark inherited" if segment.incomplete_table else "tables merged")
        self._rules.append_time.opened(chain.partition, segment)
        self._rules.two_copies.opened(segment)
        for member in segment.members:
            preparation = self._rules.copies.prepared(chain.partition, segment, member)
            self._rules.tables.prepared(chain, member, preparation)

    def rebuilt(self, after: Chain) -> None:
        """An administrator rewrites a record after the coordinator lost it."""
        chains.check(after)
        self._rules.transitions.used_once("the rebuild", after)
        self._rules.lengths.rebuilt(after)
        self._rules.transitions.rebuilt(after)
        self._rules.retention.rebuilt(after)
        self._seen.history.setdefault(after.partition, []).append(after)
