"""A batch of one message is encoded from a template, into the bytes that Arrow gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seriatim._bodies.arrow import decode, encode, encode_record_batch, record_batch
from seriatim._bodies.templates import template
from seriatim_api.batch import FLAG_KEYED

BYTES = st.binary(max_size=70) | st.integers(0, 5_000).map(lambda length: bytes([length % 256]) * length)
TIMES = st.integers(-(2**63), 2**63 - 1)


def by_arrow(value: bytes, key: bytes | None, timestamp_ms: int) -> bytes:
    batch = record_batch([value], None if key is None else [key], [timestamp_ms])
    return encode_record_batch(batch, timestamp_ms, timestamp_ms, key is not None).data


MADE = {is_keyed: template(by_arrow, is_keyed=is_keyed) for is_keyed in (True, False)}


@given(BYTES, st.none() | BYTES, TIMES)
def test_a_message_has_the_bytes_that_arrow_gives(value: bytes, key: bytes | None, timestamp_ms: int) -> None:
    made = MADE[key is not None]
    assert made is not None
    assert made.fill(value, key, timestamp_ms) == by_arrow(value, key, timestamp_ms)


@given(BYTES, st.none() | BYTES, TIMES)
def test_a_batch_of_one_is_read_back(value: bytes, key: bytes | None, timestamp_ms: int) -> None:
    body = encode([value], None if key is None else [key], [timestamp_ms])
    assert (body.message_count, body.first_timestamp_ms, body.last_timestamp_ms) == (1, timestamp_ms, timestamp_ms)
    assert body.flags == (0 if key is None else FLAG_KEYED)
    row = decode(body.data, 1, body.crc).to_pylist()[0]
    assert (row["value"], row["key"], row["timestamp"]) == (value, key, timestamp_ms)


@pytest.mark.parametrize("is_keyed", [True, False])
def test_a_template_that_differs_from_arrow_is_not_used(is_keyed: bool) -> None:
    def longer(value: bytes, key: bytes | None, timestamp_ms: int) -> bytes:
        return by_arrow(value, key, timestamp_ms) + bytes(8 * (len(value) == 5))

    assert template(longer, is_keyed=is_keyed) is None
    assert template(lambda value, key, timestamp_ms: by_arrow(b"", key, timestamp_ms), is_keyed=is_keyed) is None


def test_a_batch_of_one_message_whose_key_is_none_is_encoded_by_arrow() -> None:
    body = encode([b"v"], [None], [1])
    assert body.flags == FLAG_KEYED
    assert decode(body.data, 1, body.crc).to_pylist()[0]["key"] is None
