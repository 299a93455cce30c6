"""Finds staged data: a batch, or a manifest, on this broker's disk or on another one's.

A staged batch is found by its place. So it is read raw, and also after a segment that is not settled yet.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import structlog
from seriatim_api.batch import FLAG_PUBLISH, FLAG_STAGED, HeaderError, parse_header
from seriatim_api.errors import (
    BatchMismatchError,
    NotServingError,
    SeriatimError,
    StagedDataGoneError,
    UnavailableError,
    UnreadableBodyError,
)
from seriatim_api.ids import PartitionId, format_offset, make_offset, split_offset
from seriatim_api.publications import Manifest, StagedBatch, read_manifest
from seriatim_api.v1 import publications_pb2

from ...core.values import effects as fx
from ...core.values.chain import Chain
from ...core.values.events import ReadRange, StagedFetched
from ...core.values.log import Batch
from ...core.values.positions import Place
from ...core.values.segment import Segment, SegmentState
from ...core.values.writers import ManifestPlace
from ...core.writing.publication_plan import is_as_staged
from ..calls.outbound import BrokerCalls
from ..calls.services import Services
from .places import Places

BATCH_BYTES_MAX: Final = 2 << 20
"""Limit of a read. It is more than a batch may have, because a batch is read in full."""

FETCHES_AT_ONCE: Final = 64
"""Staged batches that this broker fetches for its core at once: 64 MiB if all are of the largest size."""

READ_DEADLINE_S: Final = 2.0
"""Time for one member's answer, which takes a read of its disk."""

COMMIT_TOLD_S: Final = 0.02
"""Within this time a slave learns the commit of a stage partition (`commit_idle_us`, and the way)."""

CHAIN_AGE_S: Final = 1.0
"""How old the known chain of a stage partition may be if only the members of a segment are wanted."""

CHAINS_KEPT: Final = 1000

MANIFESTS_KEPT_MAX: Final = 100
MANIFESTS_KEPT_BYTES_MAX: Final = 64 << 20
"""Memory for manifests that were read. The newest one stays, however large it is."""

MANIFESTS_AT_ONCE: Final = 2
"""Manifests that are read at once: each takes up to 17 MiB meanwhile."""

LARGE_BYTES: Final = 64 << 10
"""A larger manifest is parsed in a thread, because the largest takes most of a second."""

DISK_LOOK_S: Final = 0.02
"""Pause between two checks whether the disk takes more, while it is behind with its writes."""

_log = structlog.get_logger(__name__)


class StagedData:
    """Reads staged batches for this broker's core and for other brokers."""

    def __init__(self, services: Services, calls: BrokerCalls, places: Places) -> None:
        self._services = services
        self._calls = calls
        self._places = places
        self._chains: dict[PartitionId, tuple[Chain, bool, float]] = {}  # whether read in the coordinator, and when
        self._manifests: OrderedDict[ManifestPlace, tuple[Manifest, int]] = OrderedDict()  # with its size in memory
        self._manifest_bytes = 0
        self._reading = asyncio.Semaphore(MANIFESTS_AT_ONCE)
        self._room = asyncio.Semaphore(FETCHES_AT_ONCE)

    # ---- for the core ----

    async def fetch(self, effect: fx.FetchStaged) -> StagedFetched:
        """A staged batch, from any member that has it. Raises nothing."""
        try:
            if effect.only_here:
                batch, is_here = await self._read_as_follower(effect.staged), True
            else:
                async with self._room:
                    await self._until_disk_takes_more()
                    batch, is_here = await self._read(effect.staged, must_match=True)
        except StagedDataGoneError:
            return StagedFetched(effect.serial, effect.partition, None, is_gone=True)
        except (SeriatimError, TimeoutError) as exc:
            _log.debug("staged_batch_not_read", stage_partition=effect.staged.partition, error=str(exc))
            return StagedFetched(effect.serial, effect.partition, None)
        return StagedFetched(effect.serial, effect.partition, batch, is_here=is_here)

    async def _read_as_follower(self, staged: StagedBatch) -> Batch:
        """Read it from this disk. If its commit is not known here yet, try once more after 20 ms."""
        try:
            return await self.read_here(staged)
        except NotServingError:
            await asyncio.sleep(COMMIT_TOLD_S)
            return await self.read_here(staged)

    async def _until_disk_takes_more(self) -> None:
        """Wait while the disk is behind with its writes, because what is fetched is appended here.

        Raises:
            UnavailableError: It is still behind after 2 s.
        """
        until = time.monotonic() + READ_DEADLINE_S
        while self._services.storage.is_saturated:
            if time.monotonic() >= until:
                raise UnavailableError("the disk is behind with its writes")
            await asyncio.sleep(DISK_LOOK_S)

    # ---- batches ----

    async def read(self, staged: StagedBatch, *, must_match: bool = False) -> Batch:
        """A staged batch. With `must_match`, only the one that the manifest names.

        Raises:
            StagedDataGoneError: Its segment was declared lost, retention has dropped it, or no member has it.
            UnavailableError: No member that has it answers now.
        """
        return (await self._read(staged, must_match=must_match))[0]

    async def _read(self, staged: StagedBatch, *, must_match: bool) -> tuple[Batch, bool]:
        """Read a batch, and say whether it is on this disk.

        Rule `differs-everywhere` (I13): if all members give another batch than the one that must match, it is gone.
        Without it: 1. A manifest names a chunk at a place where another batch is. 2. It is decided, because there is a
        batch at that place. 3. No master ever finds the chunk. The publication never ends, and the writer waits.
        """
        partition = PartitionId(staged.partition)
        no, index = split_offset(staged.offset)
        said: SeriatimError | None = None
        # Rule `reads-the-chain` (I13): a broker learns of the last segments of a chain only if it is a member of them.
        # So if the chain that it knows lacks the segment, or no member gives the batch, it reads the coordinator's
        # chain. Without it: 1. This broker holds an old segment of a stage partition. 2. The partition moves twice,
        # and no broker reports this one. 3. It never finds what is staged there after that.
        chain, is_read = await self._known_chain(partition)
        while True:
            segment, differs = chain.from_no(no), 0
            brokers = self._brokers(segment)
            for broker in brokers:
                try:
                    is_here = broker == self._services.identity.member.broker
                    batch = await (self.read_here(staged) if is_here else self._read_there(broker, staged))
                    if not must_match:
                        return batch, is_here
                    if is_as_staged(batch, staged, self._services.checksum):
                        self._check_readable(batch)
                        return batch, is_here
                    differs += 1
                    said = NotServingError(f"what {broker} gives is not what the manifest names")
                except StagedDataGoneError:
                    raise
                except SeriatimError as exc:
                    said = exc
            if is_read:
                if brokers and differs == len(brokers):
                    _log.error("staged_batch_differs", stage_partition=partition, offset=format_offset(staged.offset))
                    raise StagedDataGoneError(f"the batch staged at {no}:{index} is not what the manifest names")
                break
            chain, is_read = await self._read_chain(partition), True
        if segment is not None and segment.state is SegmentState.LOST:
            return await self.read_here(staged), True  # this raises, and says from the newest record that it is gone
        raise UnavailableError(
            f"no broker gives what was staged at {no}:{index} of stage partition id {partition}"
            + (f" ({said.message})" if said is not None else "")
        )

    def _check_readable(self, batch: Batch) -> None:
        """Rule `only-readable` (I1): what readers cannot take apart is not appended, as if its disks were lost.

        A master refuses it when it is staged. But a version with another limit may have staged it.

        Raises:
            StagedDataGoneError: It cannot be read.
        """
        try:
            self._services.bodies.check(batch.body, batch.header.message_count, batch.header.flags)
        except (BatchMismatchError, UnreadableBodyError) as exc:
            header = batch.header
            offset = format_offset(make_offset(header.segment, header.base_index))
            _log.error("staged_batch_unreadable", stage_partition=header.partition, offset=offset, error=str(exc))
            raise StagedDataGoneError(f"the batch staged at {offset} cannot be read: {exc.message}") from exc

    def _brokers(self, segment: Segment | None) -> Sequence[str]:
        """The brokers that may have a segment, this one first."""
        if segment is None:
            return ()
        own = self._services.identity.member.broker
        members = (segment.server, *segment.eligible, *segment.members)
        return sorted(dict.fromkeys(member.broker for member in members), key=lambda broker: broker != own)

    async def read_here(self, staged: StagedBatch) -> Batch:
        """Read a staged batch from this disk only.

        Raises:
            NotServingError: It is not here, or not committed as far as this broker knows.
            StagedDataGoneError: Its segment was declared lost, or retention has dropped it.
        """
        no, index = split_offset(staged.offset)
        until_us = time.monotonic_ns() // 1000 + int(READ_DEADLINE_S * 0.9e6)
        answer = await self._services.ask_core(
            lambda number: ReadRange(
                number, PartitionId(staged.partition), Place(no, index), Place(no, index + staged.rows),
                BATCH_BYTES_MAX, True, until_us, staged=True,
            ),
            READ_DEADLINE_S,
        )  # fmt: skip
        assert isinstance(answer, fx.RangeRead)
        for event in answer.events:
            if isinstance(event, fx.RangeBatches):
                return event.batches[0]
            if isinstance(event, (fx.RangeGap, fx.RangeDropped)):
                raise StagedDataGoneError(f"segment {no} of stage partition id {staged.partition} is gone")
        if answer.error is not None:
            raise answer.error
        raise NotServingError(f"segment {no} of stage partition id {staged.partition} is not on this broker")

    async def _read_there(self, broker: str, staged: StagedBatch) -> Batch:
        request = publications_pb2.ReadStagedRequest(
            partition_id=staged.partition, offset=staged.offset, rows=staged.rows
        )
        answer: publications_pb2.ReadStagedResponse = await self._calls.publications(
            broker, "ReadStaged", request, READ_DEADLINE_S
        )
        if answer.is_gone:
            raise StagedDataGoneError(f"what was staged on stage partition id {staged.partition} is gone")
        try:
            return Batch(parse_header(answer.header), answer.body)
        except HeaderError as exc:
            raise NotServingError(f"{broker} gave no batch: {exc}") from exc

    async def _known_chain(self, partition: PartitionId) -> tuple[Chain, bool]:
        """The chain as this broker knows it, and whether it was read in the coordinator within the last second."""
        known = self._chains.get(partition)
        if known is not None and time.monotonic() - known[2] < CHAIN_AGE_S:
            return known[0], known[1]
        surveyed = await self._places.survey(partition, 0, READ_DEADLINE_S)
        return self._keep_chain(partition, surveyed.chain, is_read=False), False

    async def _read_chain(self, partition: PartitionId) -> Chain:
        """The chain as the coordinator has it."""
        surveyed = (await self._places.survey_all([partition], READ_DEADLINE_S)).get(partition)
        if surveyed is None:
            raise UnavailableError(f"there is no chain of stage partition id {partition}")
        return self._keep_chain(partition, surveyed.chain, is_read=True)

    def _keep_chain(self, partition: PartitionId, chain: Chain, *, is_read: bool) -> Chain:
        if len(self._chains) >= CHAINS_KEPT:
            self._chains.clear()
        self._chains[partition] = chain, is_read, time.monotonic()
        return chain

    # ---- manifests ----

    async def manifest(self, place: ManifestPlace) -> Manifest:
        """The manifest at a place.

        Raises:
            StagedDataGoneError: It is gone.
            UnavailableError: No member that has it answers now, or a member gave something else. It is not known
                whether the manifest is gone. Before the decision that makes no difference. After it, the publication
                must not be given up.
            BadRequestError: There is no manifest at that place.
        """
        async with self._reading:
            known = self._manifests.get(place)
            if known is not None:
                self._manifests.move_to_end(place)
                return known[0]
            pieces: list[bytes] = []
            for offset in place.offsets:
                batch = await self.read(StagedBatch(place.partition, 1, offset, place.id))
                header = batch.header
                is_piece = header.flags & (FLAG_STAGED | FLAG_PUBLISH) == FLAG_STAGED | FLAG_PUBLISH
                if not is_piece or header.stage != place.id or header.message_count != 1:
                    raise UnavailableError("there is no manifest at the place that the publication names")
                pieces.append(batch.body)
            is_large = sum(map(len, pieces)) > LARGE_BYTES
            manifest = await asyncio.to_thread(self._parse, place, pieces) if is_large else self._parse(place, pieces)
            self._keep(place, manifest)
            return manifest

    def _parse(self, place: ManifestPlace, pieces: Sequence[bytes]) -> Manifest:
        """Parse the manifest in these pieces, and compute what takes long. Safe in a thread."""
        data = b"".join(pieces)
        if len(data) != place.length or self._services.checksum(0, data) != place.crc:
            raise UnavailableError("the manifest is not the one that the publication names")
        manifest = read_manifest(data)
        assert manifest.spans, "it names something"
        _ = manifest.names_a_batch_twice
        return manifest

    def _keep(self, place: ManifestPlace, manifest: Manifest) -> None:
        size_bytes = manifest.size_bytes
        self._manifests[place] = manifest, size_bytes
        self._manifest_bytes += size_bytes
        while len(self._manifests) > 1 and (
            len(self._manifests) > MANIFESTS_KEPT_MAX or self._manifest_bytes > MANIFESTS_KEPT_BYTES_MAX
        ):
            self._manifest_bytes -= self._manifests.popitem(last=False)[1][1]

    def forget_manifest(self, place: ManifestPlace) -> None:
        """A broker says that the manifest is gone: read it again when it is needed next."""
        self._manifest_bytes -= self._manifests.pop(place, (None, 0))[1]
