"""TABLE: a prepared producer table that is not marked incomplete knows the last batch of each producer.

GAP: no broker refuses the sequence of a producer that keeps the rules.
"""

from __future__ import annotations

from itertools import pairwise

from seriatim_api.batch import BatchHeader
from seriatim_api.errors import BatchMismatchError, SequenceGapError, SequenceTooOldError, SeriatimError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import Batch, Preparation
from seriatim_broker.core.values.producers import IdleBlock, ProducerTable, newest_of
from seriatim_broker.core.values.segment import SegmentState

from .excuses import Excuse
from .lost_tables import began_incomplete, lost_below
from .seen import Seen

_NO_BATCH = (0, -1)


class ProducerTables:
    """Remembers the batches of each producer.

    Args:
        seen: The record of the run.
        limits: The limits at which brokers may forget producers.
        may_miss: Whether a producer's acknowledged batches may be gone, because it asked for a level without a promise.
    """

    def __init__(self, seen: Seen, limits: BrokerConfig, *, may_miss: bool) -> None:
        self._seen = seen
        self._limits = limits
        self._may_miss = may_miss
        self._heard: dict[PartitionId, dict[bytes, list[Batch]]] = {}  # the batches of each producer that were placed
        self._times: dict[PartitionId, list[tuple[int, int, int, int]]] = {}  # segment, index, serial, append time
        self._looks: set[tuple[PartitionId, int]] = set()  # serials of times that no batch has
        self._leapt: set[PartitionId] = set()  # a full table was tidied by a clock that was set back

    def placed(self, partition: PartitionId, batch: Batch) -> None:
        """A batch was written for the first time."""
        header = batch.header
        self._heard.setdefault(partition, {}).setdefault(header.producer, []).append(batch)
        times = self._times.setdefault(partition, [])
        times.append((header.segment, header.base_index, len(times), header.append_time_ms))

    def looked(self, partition: PartitionId, wall_ms: int) -> None:
        """A master refused a new producer, because its table is full. Before, it tidied the table by its wall clock."""
        times = self._times.get(partition)
        if not times:
            return
        segment, index, _, last_ms = max(times)
        believes = last_ms - wall_ms <= self._limits.append_time_ahead_ms_max
        now_ms = max(last_ms, wall_ms) if believes else wall_ms
        self._looks.add((partition, len(times)))
        times.append((segment, index, len(times), now_ms))
        if now_ms < last_ms:
            self._leapt.add(partition)

    def prepared(self, chain: Chain, member: MemberId, preparation: Preparation) -> None:
        """A segment is opened on a member that prepared this for it."""
        if chain.open_segment.incomplete_table:
            return
        image = self._seen.image(member)
        assert image is not None
        blocks = {block.id: block for block in map(IdleBlock, image.partitions[chain.partition].blocks.values())}
        if any(name.id not in blocks for name in preparation.table.blocks):
            self._seen.fail("TABLE", f"{member} prepared a table whose idle blocks it does not have")
        if preparation.table.blocks:
            self._seen.states.add("idle blocks named")
        self._check_table(chain, ProducerTable(preparation.table, (), blocks))

    def _check_table(self, chain: Chain, table: ProducerTable) -> None:
        """A table that is not marked incomplete knows the last batch of each producer."""
        seen = self._seen
        if not chain.settled_before(chain.open_segment.no):
            seen.fail("TABLE", f"segment {chain.open_segment.no} begins unmarked behind an unsettled one")
        newest = {producer: newest_of(window) for producer, window in table.items()}
        found = {producer: (entry.epoch, entry.last_sequence) for producer, entry in newest.items()}
        expected = self._last_batches(chain, with_lost=False)
        if found == expected:
            return
        at_most = self._last_batches(chain, with_lost=True)  # a table may be older than the gap
        is_merged = any(began_incomplete(seen, chain, no) for no in range(1, chain.open_segment.no))
        for producer in {**found, **at_most}:
            rank = found.get(producer, _NO_BATCH)
            # An unsettled segment keeps its table. If a later segment has forgotten the producer meanwhile, the merge
            # of both tables knows what the producer had sent to the unsettled one.
            is_forgotten = producer not in found or (is_merged and rank < expected.get(producer, _NO_BATCH))
            if is_forgotten and self._may_be_forgotten(chain.partition, producer):
                seen.excuse(Excuse.PRODUCER_FORGOTTEN)
                continue
            behind = self._last_batches(chain, with_lost=False, behind=lost_below(seen, chain))
            if behind.get(producer, _NO_BATCH) <= rank < expected.get(producer, rank):
                seen.excuse(Excuse.TABLES_LOST)
                continue
            if not expected.get(producer, _NO_BATCH) <= rank <= at_most.get(producer, _NO_BATCH):
                seen.fail("TABLE", f"segment {chain.open_segment.no} begins with {found}, the log says {expected}")
            if rank != expected.get(producer, _NO_BATCH):
                seen.excuse(Excuse.TABLE_OLDER_THAN_GAP)

    def _last_batches(self, chain: Chain, *, with_lost: bool, behind: int = 0) -> dict[bytes, tuple[int, int]]:
        """For each producer the epoch and the last sequence of its last batch before the open segment.

        Only of segments behind the one with the number `behind`.
        """
        last: dict[bytes, tuple[int, int]] = {}
        for segment in (*self._seen.left.get(chain.partition, ()), *chain.segments[:-1]):
            if segment.no <= behind:
                continue
            if segment.sealed_len is None or (segment.state is SegmentState.LOST and not with_lost):
                continue
            for batch in self._seen.batches(chain.partition, segment.no, segment.sealed_len):
                header = batch.header
                rank = (header.producer_epoch, header.last_sequence)
                last[header.producer] = max(last.get(header.producer, _NO_BATCH), rank)
        return last

    def _may_be_forgotten(self, partition: PartitionId, producer: bytes) -> bool:
        """Whether the producer was idle for so long that a table need not know it any more.

        The append time of its last batch says so, as it does for a broker; an earlier batch has a later time if a
        clock was set back between them. Once it was, the leap forward to the true time makes each idle producer old.
        """
        heard, limits = self._heard.get(partition, {}), self._limits
        headers = [batch.header for batch in heard.get(producer, ())]
        headers = [header for header in headers if not self._is_cut(partition, header.segment, header.base_index)]
        last = max(headers, key=lambda header: (header.producer_epoch, header.last_sequence), default=None)
        if last is None:
            return False
        silent_ms = self._newest_ms(partition) - last.append_time_ms
        full = len(heard) >= limits.producer_count_max
        limit_ms = limits.producer_evict_ms if full else limits.producer_expiry_ms
        is_long = silent_ms >= limit_ms
        if partition in self._leapt or any(of == partition for of, _, _ in self._seen.set_back):
            is_long = silent_ms >= limits.producer_idle_ms or self._counted_ms(partition, last) >= limit_ms
        if is_long:
            self._seen.states.add("producer forgotten")
        return is_long

    def _newest_ms(self, partition: PartitionId) -> int:
        """The newest append time by which a table may have forgotten producers.

        Behind a leap of append time, a table forgets only when the leap's batch is committed. So in each segment, cut
        batches from a leap on do not count.
        """
        newest_ms = before_ms = leapt_in = 0
        for no, index, serial, time_ms in sorted(self._times[partition]):
            if self._is_cut(partition, no, index) and (partition, serial) not in self._looks:
                if before_ms and not 0 <= time_ms - before_ms <= self._limits.producer_idle_ms:
                    leapt_in = no
                if leapt_in == no:
                    continue
            before_ms = time_ms
            newest_ms = max(newest_ms, time_ms)
        return newest_ms

    def _counted_ms(self, partition: PartitionId, last: BatchHeader) -> int:
        """How long the producer of this batch was silent at most, as a producer table counts it step by step.

        A leap of append time counts as half of `producer_idle_ms`, or whole if the producer was idle before it. If a
        clock was set back and is right again, the append times of two batches may be as near as if nothing was between
        them. Batches that were cut count too, because a table had them before the cut.
        """
        idle_ms = self._limits.producer_idle_ms
        places = sorted(self._times[partition])
        times = [time_ms for no, index, _, time_ms in places if (no, index) >= (last.segment, last.base_index)]
        silent_ms = longest_ms = 0
        for before_ms, after_ms in pairwise(times):
            step_ms = after_ms - before_ms
            leaps = not 0 <= step_ms <= idle_ms
            if leaps and (longest_ms < idle_ms or silent_ms + step_ms < 0):
                step_ms = idle_ms // 2
            silent_ms += step_ms
            longest_ms = max(longest_ms, silent_ms)
        return longest_ms

    def _was_idle(self, producer: bytes) -> bool:
        """Whether there was a time after which only the producer's newest batch need be known."""
        for partition, heard in self._heard.items():
            times = sorted(batch.header.append_time_ms for batch in heard.get(producer, ()))
            pauses_ms = [after - before for before, after in pairwise([*times, self._newest_ms(partition)])]
            if times and max(pauses_ms) >= self._limits.producer_idle_ms:
                return True
        return False

    def _is_cut(self, partition: PartitionId, segment_no: int, index: int) -> bool:
        """Whether the batch at that index is above the length of its segment."""
        sealed = self._seen.sealed.get((partition, segment_no))
        return sealed is not None and index >= sealed[0]

    def denied(self, who: str, error: SeriatimError) -> None:
        """GAP, unless the broker cannot know the producer's last batch: it was acknowledged, and is gone."""
        if not isinstance(error, SequenceGapError | SequenceTooOldError | BatchMismatchError):
            return
        seen = self._seen
        producer = bytes.fromhex(error.details.get("producer", ""))
        if any(self._may_be_forgotten(partition, producer) for partition in self._heard):
            seen.states.add("forgotten producer told")
            seen.excuse(Excuse.PRODUCER_FORGOTTEN)
            return
        if isinstance(error, SequenceTooOldError) and self._was_idle(producer):
            seen.states.add("cut window told")
            return
        if not (self._may_miss or seen.losses.has_any) or not isinstance(error, SequenceGapError):
            seen.fail("GAP", f"{who} refuses a producer that keeps the rules: {error}")
        seen.states.add("a gap told to a producer")
        seen.excuse(Excuse.SEQUENCE_UNKNOWN)
