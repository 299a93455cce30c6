"""What the chain records and the present disks say: which segments there are, and who has a copy of them."""

from __future__ import annotations

from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import SegmentState

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
        segment = chain.open_segment
        tails = []
        for member in segment.members:
            broker = self._cluster.brokers[member.broker]
            if broker.member == member:
                tails.append(own_tail(broker.disk.durable, chain.partition, segment.no))
        return min(tails, default=0)

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

    def has_two_copies(self, chain: Chain) -> bool:
        """Whether each settled segment is complete on two of the present disks that the chain names."""
        contradicted = self._judge.seen.contradicted
        for segment in chain.segments:
            if segment.state is not SegmentState.SEALED or not segment.sealed_len:
                continue
            whole = 0
            for member in segment.members:
                broker = self._cluster.brokers[member.broker]
                if broker.member == member:
                    tail = own_tail(broker.disk.durable, chain.partition, segment.no)
                    is_contradicted = (chain.partition, segment.no) in contradicted
                    keeps_more = is_contradicted and tail > segment.sealed_len
                    whole += tail == segment.sealed_len or keeps_more
            if whole < 2:
                return False
        return True

    def is_repaired(self) -> bool:
        """Whether every segment has two copies on present disks, as far as it is not lost for good."""
        for partition in self._setting.partitions:
            chain = self.chain(partition)
            if any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                return False
            if any(self.is_gone(member) for member in chain.open_segment.members) or not self.has_two_copies(chain):
                return False
            sealed = [segment for segment in chain.segments if segment.state is SegmentState.SEALED]
            if any(sum(not self.is_gone(member) for member in segment.members) < 2 for segment in sealed):
                return False  # also of an empty segment, a member must know that it is sealed
        return True

    def is_gone(self, member: MemberId) -> bool:
        """Whether its disk was lost."""
        return self._cluster.brokers[member.broker].member != member
