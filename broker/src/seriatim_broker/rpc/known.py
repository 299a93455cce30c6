"""What a broker knows, for the rebuild of a coordinator that lost decisions: from the core to the wire and back."""

from __future__ import annotations

from collections.abc import Mapping

from seriatim_api.errors import CorruptionError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import operations_pb2

from ..core.broker import BrokerCore
from ..core.control import rebuild
from ..core.peers import behind
from ..core.values.chain import Chain
from ..core.values.log import CursorState
from ..interfaces.settings_records import known_settings, settings_to_proto
from ..runtime.membership import Identity, Place, describe
from ..runtime.rebuilding import Told
from ..runtime.records import chain_from_record, chain_to_record

PAGE_SIZE_BYTES = 1 << 20
"""An answer ends with the first partition that makes it larger than this. A message may be much larger."""


def tell(core: BrokerCore, identity: Identity, place: Place, after: int) -> operations_pb2.TellKnownResponse:
    """The partitions above `after` of which this broker has a record, as many as fit."""
    answer = operations_pb2.TellKnownResponse(
        cluster=place.cluster, cluster_id=identity.cluster_id, behind=behind.reason(core.state)
    )
    describe(answer.member, identity.member, place, identity.run)
    answer.member.admitted = True
    size_bytes = 0
    for number in sorted(number for number in core.partitions if number > after):
        if size_bytes >= PAGE_SIZE_BYTES:
            return answer
        partition = core.partitions[number]
        if partition.decided is None:
            continue
        cursors = [
            operations_pb2.KnownCursor(
                group=cursor.consumer_group,
                segment=cursor.segment_no,
                group_epoch=cursor.group_epoch,
                acked=cursor.acked,
                oldest=cursor.oldest,
                settings=settings_to_proto(cursor.settings),
                term_base=cursor.term_base,
                server_epoch=cursor.server_epoch,
                serial=cursor.serial,
            )
            for cursor in partition.cursors.values()
        ]
        writers = [operations_pb2.KnownWriter(**writer._asdict()) for writer in rebuild.known_writers(partition)]
        known = operations_pb2.KnownPartition(
            chain=chain_to_record(partition.decided), cursors=cursors, writers=writers
        )
        size_bytes += known.ByteSize()
        answer.partitions.append(known)
    answer.is_last = True
    return answer


def read(name: str, pages: list[operations_pb2.TellKnownResponse]) -> Told:
    """What a broker told in all its pages.

    Raises:
        CorruptionError: A record that it told cannot be read.
    """
    chains: dict[PartitionId, Chain] = {}
    cursors: dict[PartitionId, list[CursorState]] = {}
    writers: dict[PartitionId, list[rebuild.KnownWriter]] = {}
    for page in pages:
        for known in page.partitions:
            chain = chain_from_record(known.chain)
            chains[chain.partition] = chain
            cursors[chain.partition] = [_read_cursor(cursor) for cursor in known.cursors]
            writers[chain.partition] = [
                rebuild.KnownWriter(writer.producer, writer.sequence, writer.rows, writer.append_time_ms)
                for writer in known.writers
            ]
    first = pages[0]
    found: Mapping[PartitionId, list[CursorState]] = cursors
    return Told(name, first.cluster, first.cluster_id, first.member, chains, found, first.behind, writers)


def _read_cursor(known: operations_pb2.KnownCursor) -> CursorState:
    """A control record, without what a rebuild does not need.

    Raises:
        CorruptionError: It does not say how the consumer group is served, or this version does not know it.
    """
    if not known.HasField("settings"):
        raise CorruptionError(f"a broker does not tell the settings of consumer group {known.group}")
    try:
        settings = known_settings(known.settings)
    except ValueError as error:
        raise CorruptionError(
            f"the settings of consumer group {known.group} were written by a newer version, or are damaged: {error}"
        ) from error
    return CursorState(
        known.segment,
        known.group,
        known.group_epoch,
        known.acked,
        known.acked,
        known.server_epoch,
        known.oldest,
        settings=settings,
        term_base=known.term_base,
        serial=known.serial,
    )
