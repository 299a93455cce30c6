"""Checks of each batch that comes from the disk: place, body, header, and the checksum chain to the next batch."""

from __future__ import annotations

from seriatim_api.batch import BatchHeader, Checksum, chain_is_intact
from seriatim_api.errors import CorruptionError

from ...core.values.log import Batch, TailCopy
from .keys import split_batch_key


def verify(batch: Batch, key: bytes, checksum: Checksum) -> None:
    """Check that a batch is the one that was written under `key`.

    Raises:
        CorruptionError: Its place is another one, or its body or header does not match its checksum.
    """
    header = batch.header
    place = (header.partition, header.segment, header.base_index)
    if place != split_batch_key(key):
        raise CorruptionError(f"the batch stored for {split_batch_key(key)} says that it is {place}")
    _verify_content(batch, checksum)


def verify_link(earlier: BatchHeader, later: BatchHeader) -> None:
    """Check that `later` is the next batch after `earlier`.

    Raises:
        CorruptionError: It begins at another index, or does not continue the checksum chain.
    """
    if later.base_index != earlier.end_index:
        raise CorruptionError(f"{_name(later)}: follows index {earlier.end_index} on disk, but begins elsewhere")
    if later.previous_checksum != earlier.checksum:
        raise CorruptionError(f"{_name(later)}: its checksum chain does not continue the one before it")


def verify_tail(tail: TailCopy, checksum: Checksum) -> None:
    """Check each batch of a tail copy, and that each follows the one before.

    Raises:
        CorruptionError: A body or the chain does not match its checksum.
    """
    for batch in tail.batches:
        _verify_content(batch, checksum)
    for earlier, later in zip(tail.batches, tail.batches[1:], strict=False):
        verify_link(earlier.header, later.header)


def _verify_content(batch: Batch, checksum: Checksum) -> None:
    header = batch.header
    if len(batch.body) != header.body_length:
        raise CorruptionError(f"{_name(header)}: its body has {len(batch.body)} bytes, not {header.body_length}")
    if checksum(0, batch.body) != header.body_crc:
        raise CorruptionError(f"{_name(header)}: its body does not match its checksum")
    if not chain_is_intact(header, checksum):
        raise CorruptionError(f"{_name(header)}: its header does not match the checksum chain")


def _name(header: BatchHeader) -> str:
    return f"partition id {header.partition} batch {header.segment}:{header.base_index}"
