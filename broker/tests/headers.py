"""Headers of batches as producers send them."""

from __future__ import annotations

from typing import Any

from seriatim_api.batch import make_header
from seriatim_broker.adapters.crc import crc32c


def header_of(body: bytes = b"", **fields: Any) -> bytes:
    """The header of this body. What `fields` does not say: one message in partition 1, with nothing but zeros."""
    given = {
        "partition": 1, "message_count": 1, "producer": bytes(16), "producer_epoch": 0, "base_sequence": 0,
        "first_timestamp_ms": 0, "last_timestamp_ms": 0, "body_length": len(body), "body_crc": crc32c(0, body),
    }  # fmt: skip
    return make_header(**(given | fields))
