"""What the chain records and the present disks say: which segments there are, and who has a copy of them."""

from __future__ import annotations

from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import Segment, SegmentState

from ..basics.interfaces import Cluster
from ..basics.setting import Setting
from ..judge import Judge, own_tail


class Copies:
    """The chains of a world, and their copies."""

    def __init__(self, setting: Setting, cluster: Cluster, judge: Judge) -> None:
        self._setting = setting
        self._cluster = cluster
        self._judge = judge

    def chain(self, partition: PartitionId) -> Chain:
        """The record, also while the coordinator lacks it."""
        chain = self._cluster.coordinator.records.chain(partition)[0]
        return (
            chain if chain is not None else self._judge.seen.history[partition][-1]
        )  # back empty, and not rebuilt yet

    def open_length(self, chain: Chain) -> int:
        """How much of the open segment all present members have."""
        return min(self._tails(chain.partition, chain.open_segment), default=0)

    def _tails(self, partition: PartitionId, segment: Segment) -> list[int]:
        """Of the present disks that the chain names."""
        present = (self._cluster.brokers[member.broker] for member in segment.members if not self.is_gone(member))
        return [own_tail(broker.disk.durable, partition, segment.no) for broker in present]

    def open_segment_is_quiet(self, chain: Chain) -> bool:
        """Whether the members of the open segment are the current ones and hold the same."""
        segment = chain.open_segment
        tails = set()
        for member in segment.members:
            broker = self._cluster.brokers[member.broker]
            if broker.member != member or broker.process is None:
                return False
            tails.add(own_tail(broker.disk.durable, chain.partition, segment.no))
        if not self._setting.options.flush:
            tails.add(self._judge.seen.losses.longest((chain.partition, segment.no)))  # messages in memory will come
        return len(tails) == 1

    def has_all_copies(self, chain: Chain) -> bool:
        """Whether each settled segment is complete on as many of the present disks as a broker group has members."""
        return self._has_copies(chain, self._setting.options.member_count)

    def _has_copies(self, chain: Chain, count: int) -> bool:
        """Whether each settled segment is complete on that many of the present disks that the chain names."""
        for segment in chain.segments:
            length = segment.sealed_len
            if segment.state is not SegmentState.SEALED or not length:
                continue
            may_keep_more = (chain.partition, segment.no) in self._judge.seen.contradicted
            tails = self._tails(chain.partition, segment)
            if sum(tail == length or (may_keep_more and tail > length) for tail in tails) < count:
                return False
        return True

    def is_agreed(self) -> bool:
        """Whether each disk that the chain may contradict has read the record. Before that, it has quarantined
        nothing."""
        seen = self._judge.seen
        logs = (log.record for place in seen.contradicted if place in seen.sealed for log in seen.logs(place))
        return all(record.quarantined or record.sealed_len is not None for record in logs)

    def is_repaired(self) -> bool:
        """Whether every segment has two copies on present disks, as far as it is not lost for good."""
        for partition in self._setting.partitions:
            chain = self.chain(partition)
            if any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                return False
            if any(self.is_gone(member) for member in chain.open_segment.members) or not self._has_copies(chain, 2):
                return False
            sealed = [segment for segment in chain.segments if segment.state is SegmentState.SEALED]
            if any(sum(not self.is_gone(member) for member in segment.members) < 2 for segment in sealed):
                return False  # also of an empty segment, a member must know that it is sealed
        return True

    def is_gone(self, member: MemberId) -> bool:
        """Whether its disk was lost."""
        return self._cluster.brokers[member.broker].member != member
