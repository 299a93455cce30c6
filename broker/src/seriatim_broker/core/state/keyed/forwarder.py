"""The forwarder: messages on their way to the dead-letter topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...values.keyed import DeadLetterRow
from ...values.producers import WINDOW_BATCHES
from ..numbered_sending import Item, Limits

LIMITS: Final = Limits(items_max=WINDOW_BATCHES, pause_us=100_000, pause_us_max=5_000_000, held_up_us=800_000)


@dataclass(slots=True, eq=False)
class Forward(Item):
    """The first message of a key on its way to the dead-letter topic. Its name is the key's name.

    Attributes:
        row: The dead letter, once it is made.
        offset: The offset of the message; 0: not known before its key was read.
    """

    row: DeadLetterRow | None = None
    offset: int = 0
