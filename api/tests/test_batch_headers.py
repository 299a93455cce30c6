"""Which flags of a batch header are read: those whose effect this build knows."""

from __future__ import annotations

import pytest
from seriatim_api.batch import FLAG_NAMES, FLAGS_KNOWN, FLAGS_UNSERVED, HeaderError, make_header, parse_header
from seriatim_api.wire.frames import FrameError, read_delivery_frame, write_delivery_frame


def header_with(flags: int) -> bytes:
    return make_header(
        partition=1, message_count=1, producer=b"p" * 16, producer_epoch=0, base_sequence=0, first_timestamp_ms=0,
        last_timestamp_ms=0, body_length=0, body_crc=0, flags=flags,
    )  # fmt: skip


@pytest.mark.parametrize("bit", range(10, 13))
def test_a_header_with_a_flag_of_a_later_version_is_refused_by_its_name(bit: int) -> None:
    name = FLAG_NAMES[1 << bit]
    with pytest.raises(HeaderError, match=name):
        parse_header(header_with(1 << bit | 1))
    with pytest.raises(FrameError, match=name):  # what a client would take to be a message
        read_delivery_frame(write_delivery_frame([], [(header_with(1 << bit), b"")]))


def test_flags_without_a_name_are_refused_by_their_bits() -> None:
    with pytest.raises(HeaderError, match=r"HELD, LATE, 0x8000c000$"):
        parse_header(header_with(0x8000C000 | 1 << 10 | 1 << 12))


def test_a_header_with_all_known_flags_is_read() -> None:
    assert parse_header(header_with(FLAGS_KNOWN)).flags == FLAGS_KNOWN == 0x23FF
    assert FLAGS_UNSERVED & ~FLAGS_KNOWN == 0, "a master can refuse only the flags that it reads"
