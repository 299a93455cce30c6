"""What a broker knows, for the rebuild of a coordinator that lost decisions: from the core to the wire and back."""

from __future__ import annotations

from typing import NamedTuple

from seriatim_api.errors import CorruptionError
from seriatim_api.v1 import operations_pb2

from ...core.broker import BrokerCore
from ...core.control import rebuild
from ...core.peers import lost_decisions
from ...core.values.chain import Chain
from ...core.values.log import CursorState
from ...interfaces import forms
from ...runtime.membership.registration import Identity, Place, describe
from ...runtime.rebuild import Told

PAGE_SIZE_BYTES = 1 << 20
"""An answer ends with the first partition that makes it larger than this. A message may be much larger."""


class KnownPartition(NamedTuple):
    """What a broker knows of a partition: its chain record, control records, and writers that published to it."""

    chain: Chain
    cursors: tuple[CursorState, ...]
    writers: tuple[rebuild.KnownWriter, ...]


def tell(core: BrokerCore, identity: Identity, place: Place, after: int) -> operations_pb2.TellKnownResponse:
    """The partitions above `after` of which this broker has a record, as many as fit."""
    answer = operations_pb2.TellKnownResponse(
        cluster=place.cluster, cluster_id=identity.cluster_id, behind=lost_decisions.reason(core.state)
    )
    describe(answer.member, identity.member, place, identity.run)
    answer.member.admitted = True
    size_bytes = 0
    for number in sorted(number for number in core.partitions if number > after):
        if size_bytes >= PAGE_SIZE_BYTES:
            return answer
        partition = core.partitions[number]
        chain = rebuild.known_chain(partition)
        if chain is None:
            continue
        known = KnownPartition(chain, partition.group_cursors, tuple(rebuild.known_writers(partition)))
        told = operations_pb2.KnownPartition(partition_id=number, form=forms.encode(known))
        size_bytes += len(told.form)
        answer.partitions.append(told)
    answer.is_last = True
    return answer


def read(name: str, pages: list[operations_pb2.TellKnownResponse]) -> Told:
    """What a broker reported in all its pages.

    Raises:
        CorruptionError: A record that it reported cannot be read.
    """
    first = pages[0]
    try:
        found = [forms.decode(KnownPartition, known.form) for page in pages for known in page.partitions]
    except forms.FormError as error:
        raise CorruptionError(
            f"{name} reported what this version does not know, or what is damaged: {error}"
        ) from error
    chains = {known.chain.partition: known.chain for known in found}
    cursors = {known.chain.partition: known.cursors for known in found}
    writers = {known.chain.partition: known.writers for known in found}
    return Told(name, first.cluster, first.cluster_id, first.member, chains, cursors, first.behind, writers)
