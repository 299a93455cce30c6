"""The stage topic: its incarnation and settings, for the controller that makes it and for the rebuild."""

from __future__ import annotations

from typing import Final

from seriatim_api.ids import TopicIncarnation
from seriatim_api.v1 import records_pb2

from ...core.values.placement import CHAIN_WIDTH_DEFAULT

STAGE_INCARNATION: Final = TopicIncarnation("0" * 32)
"""The incarnation of the stage topic. It is the same topic, whichever broker makes it."""

STAGE_TTL_MS: Final = 24 * 3600 * 1000
"""How long staged data stays. A program that does not publish within that time must stage its rows again."""

STAGED_BYTES_MAX: Final = 1 << 20
"""Largest body of a staged batch."""


def stage_settings() -> records_pb2.TopicSettings:
    """The settings of the stage topic."""
    return records_pb2.TopicSettings(
        flush=True,
        chain_width=CHAIN_WIDTH_DEFAULT,
        batch_size_bytes_max=STAGED_BYTES_MAX,
        message_size_bytes_max=STAGED_BYTES_MAX,
        retention_ms=STAGE_TTL_MS,
    )
