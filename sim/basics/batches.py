"""Batches as producers of a world send them, and as its masters place them."""

from __future__ import annotations

from typing import Any

from seriatim_api.batch import BatchHeader, make_header, parse_header, place

from .interfaces import checksum


def header_of(
    partition: int, producer: bytes, body: bytes, *, count: int = 1, epoch: int = 0, sequence: int = 0, **more: Any
) -> BatchHeader:
    """The header that a producer sends with this body. `more` are arguments of `make_header`."""
    raw = make_header(
        partition=partition, message_count=count, producer=producer, producer_epoch=epoch, base_sequence=sequence,
        first_timestamp_ms=0, last_timestamp_ms=0, body_length=len(body), body_crc=checksum(0, body), **more,
    )  # fmt: skip
    return parse_header(raw)


def placed(header: BatchHeader, index: int, previous: int, *, segment: int = 1, time_ms: int = 0) -> BatchHeader:
    """The header after one with the checksum `previous`."""
    return place(
        header, segment=segment, base_index=index, append_time_ms=time_ms, previous_checksum=previous, checksum=checksum
    )
