"""TABLE: a prepared producer table that is not marked incomplete knows the last batch of each producer.

GAP: no broker refuses the sequence of a producer that keeps the rules.
"""

from __future__ import annotations

from itertools import islice

from seriatim_api.batch import BatchHeader
from seriatim_api.errors import BatchMismatchError, SequenceGapError, SequenceTooOldError, SeriatimError
from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.log import Batch, Preparation
from seriatim_broker.core.values.producers import SHARES, IdleBlock, ProducerTable, newest_of, room_of
from seriatim_broker.core.values.segment import SegmentState

from .excuses import Excuse
from .lost_tables import began_incomplete, lost_below
from .seen import Seen

_NO_BATCH = (0, -1)

PLACED_LATE_US = 1_000
"""The judge sees a batch so much later than the master, at most."""


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
        self._placed_us: dict[tuple[PartitionId, int, int], int] = {}  # when, by segment and index

    def placed(self, partition: PartitionId, batch: Batch) -> None:
        """A batch was written for the first time."""
        header = batch.header
        self._heard.setdefault(partition, {}).setdefault(header.producer, []).append(batch)
        self._placed_us[partition, header.segment, header.base_index] = self._seen.schedule.now_us

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
        table = ProducerTable(preparation.table, (), blocks)
        self._check_table(chain, table)
        self._check_function(chain, table)

    def _check_function(self, chain: Chain, table: ProducerTable) -> None:
        """If no table was ever incomplete, the table is exactly what the rule makes of the log, and it protects."""
        seen = self._seen
        segments = (*seen.left.get(chain.partition, ()), *chain.segments[:-1])
        if any(segment.incomplete_table or segment.state is not SegmentState.SEALED for segment in segments):
            return
        rooms: dict[int, dict[bytes, BatchHeader]] = {}
        for segment in segments:
            for batch in seen.batches(chain.partition, segment.no, segment.sealed_len or 0):
                header = batch.header
                number = room_of(header.producer)
                room = rooms.setdefault(number, {})
                limit = max(1, segment.producers_max // SHARES[number])
                if header.producer not in room:
                    for _ in range(min(2, len(room) + 1 - limit, len(room) - header.spared)):
                        gone = next(islice(room, header.spared, None))
                        self._check_protected(chain.partition, room.pop(gone), header)
                room.pop(header.producer, None)
                room[header.producer] = header
        expected = {
            producer: (header.producer_epoch, header.last_sequence)
            for room in rooms.values()
            for producer, header in room.items()
        }
        found = {producer: newest_of(window) for producer, window in table.items()}
        if {producer: (entry.epoch, entry.last_sequence) for producer, entry in found.items()} != expected:
            seen.fail("TABLE", f"segment {chain.open_segment.no} begins with {found}, the rule says {expected}")

    def _check_protected(self, partition: PartitionId, gone: BatchHeader, newcomer: BatchHeader) -> None:
        """The producer of a batch is pushed out: it was silent for as long as producers are protected."""
        places = [(partition, header.segment, header.base_index) for header in (gone, newcomer)]
        if any(place not in self._placed_us for place in places):
            return  # this judge did not see the write
        before_us, after_us = (self._placed_us[place] for place in places)
        if after_us - before_us < self._limits.producer_protect_us - PLACED_LATE_US:
            what = f"{gone.producer.hex()[:8]} is pushed out {after_us - before_us} us after its batch at {places[0]}"
            self._seen.fail("TABLE", what)

    def _check_table(self, chain: Chain, table: ProducerTable) -> None:
        """A table that is not marked incomplete knows the last batch of each producer."""
        seen = self._seen
        if not chain.settled_before(chain.open_segment.no):
            seen.fail("TABLE", f"segment {chain.open_segment.no} begins unmarked after an unsettled one")
        newest = {producer: newest_of(window) for producer, window in table.items()}
        found = {producer: (entry.epoch, entry.last_sequence) for producer, entry in newest.items()}
        expected = self._last_batches(chain, with_lost=False)
        if found == expected:
            return
        at_most = self._last_batches(chain, with_lost=True)  # a table may be older than the gap
        for producer in {**found, **at_most}:
            rank = found.get(producer, _NO_BATCH)
            is_older = rank < expected.get(producer, _NO_BATCH)
            if is_older and rank in self._known_of_forgotten(chain, producer):
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

        Only of segments after the one with the number `behind`.
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
        """Whether this many others of its room sent after the producer's last batch that a table need not know it."""
        heard = self._heard.get(partition, {})
        last: dict[bytes, tuple[int, int]] = {}
        for other, batches in heard.items():
            places = [(batch.header.segment, batch.header.base_index) for batch in batches]
            places = [place for place in places if not self._is_cut(partition, *place)]
            if places and room_of(other) == room_of(producer):
                last[other] = max(places)
        if producer not in last:
            return False
        limit = self._limits.producers_max
        limit = max(1, limit // SHARES[room_of(producer)])
        is_gone = sum(place > last[producer] for place in last.values()) >= limit
        if is_gone:
            self._seen.states.add("producer forgotten")
        return is_gone

    def _known_of_forgotten(self, chain: Chain, producer: bytes) -> set[tuple[int, int]]:
        """What a table may know of a producer that may be forgotten, as epoch and last sequence: no batch, usually.

        A segment that begins with an incomplete table may forget the producer, while the tables before it stay as they
        are. The merge of these tables knows the producer's last batch before that segment.
        """
        if not self._may_be_forgotten(chain.partition, producer):
            return set()
        sent = [
            (header.segment, (header.producer_epoch, header.last_sequence))
            for header in (batch.header for batch in self._heard[chain.partition][producer])
            if not self._is_cut(chain.partition, header.segment, header.base_index)
        ]
        begun = [no for no in range(1, chain.open_segment.no + 1) if began_incomplete(self._seen, chain, no)]
        return {_NO_BATCH, *(max((rank for at, rank in sent if at < no), default=_NO_BATCH) for no in begun)}

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
        last_sequence = int(error.details.get("expected", "0")) - 1
        chains = [known[-1] for known in seen.history.values()]
        if any(last_sequence == known for chain in chains for _, known in self._known_of_forgotten(chain, producer)):
            seen.states.add("forgotten producer reported")
            seen.excuse(Excuse.PRODUCER_FORGOTTEN)
            return
        if not (self._may_miss or seen.losses.has_any) or not isinstance(error, SequenceGapError):
            seen.fail("GAP", f"{who} refuses a producer that keeps the rules: {error}")
        seen.states.add("a gap reported to a producer")
        seen.excuse(Excuse.SEQUENCE_UNKNOWN)
