"""Keys on the command line, in the notation that commands show (`seriatim_api.key_names`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from seriatim_api.key_names import NO_KEY, key_from_text, key_to_text, name_from_text

from seriatim.cli._options.written import WrittenType

NAMED_MAX: Final = 20
"""Maximum number of keys that a question names."""

KEY: Final = WrittenType("key", bytes, key_from_text)
"""A key; commands get its bytes."""

KEY_NAME: Final = WrittenType("key", bytes, name_from_text)
"""A key that waits, or a message without a key, or a long key; commands get its name among brokers."""


def shown_key(key: bytes | None) -> str:
    """A key in a table or a line; a hyphen if there is none."""
    return NO_KEY if key is None else key_to_text(key)


def listed(texts: Sequence[str]) -> str:
    """Keys as the end of a question: each one once, at most `NAMED_MAX`, and how many more there are."""
    once = list(dict.fromkeys(texts))
    more = f" and {len(once) - NAMED_MAX:,} more" if len(once) > NAMED_MAX else ""
    return ", ".join(once[:NAMED_MAX]) + more
