"""What is checked of each batch that comes from the disk: its place, body and header, and the chain to the next."""

from __future__ import annotations

from seriatim_api.batch import BatchHeader, Checksum, chain_is_intact
from seriatim_api.errors import CorruptionError

from ...core.values.log import Batch, TailCopy
from .keys import split_batch_key


def verify(batch: Batch, key: bytes, checksum: Checksum) -> None:
    """Check that a batch is the one that was put under `key`.

    Raises:
        CorruptionError: It is not.
    """
    header = batch.header
    place = (header.partition, header.segment, header.base_index)
    if place != split_batch_key(key):
        raise CorruptionError(f"the batch stored for {split_batch_key(key)} says that it is {place}")
    _verify_content(batch, checksum)


def verify_link(earlier: BatchHeader, later: BatchHeader) -> None:
    """Check that one batch follows the other.

    Raises:
        CorruptionError: It does not.
    """
    if later.base_index != earlier.end_index:
        raise CorruptionError(f"{_name(later)}: follows index {earlier.end_index} on disk, but begins elsewhere")
    if later.previous_checksum != earlier.checksum:
        raise CorruptionError(f"{_name(later)}: its checksum chain does not continue the one before it")


def verify_tail(tail: TailCopy, checksum: Checksum) -> None:
    """Check a tail copy.

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
    return f"partition {header.partition} batch {header.segment}:{header.base_index}"
