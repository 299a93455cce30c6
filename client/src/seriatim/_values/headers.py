"""The headers of a message: names and values in their order.

A name may come several times, and the value of a header may be null. A program that needs neither uses a mapping. So
what a program gets is a mapping, which also knows the headers as they were sent if they do not fit into one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

BytesLike = bytes | bytearray | memoryview
"""The types of a value or a key. The call that takes them copies all but `bytes`."""

Headers = Mapping[str, BytesLike | None] | Sequence[tuple[str, BytesLike | None]]
"""Headers as a program passes them: a mapping, or pairs of name and value in their order. None: the value is null."""

HeaderList = Sequence[tuple[str, bytes | None]]
"""Headers in their order, as a body has them."""

NO_HEADERS: Final[Mapping[str, bytes]] = {}


class _Repeated(dict[str, bytes]):
    """Headers with repeated names or null values: the last value of each name, and `pairs`, which has all."""

    pairs: tuple[tuple[str, bytes | None], ...] = ()  # a copy that others made of the mapping has none


def headers_of(pairs: HeaderList | None) -> Mapping[str, bytes]:
    """The mapping of these headers. It has the last value of a repeated name, and `b""` for null."""
    if not pairs:
        return NO_HEADERS
    named = dict(pairs)
    if len(named) == len(pairs) and None not in named.values():
        return named  # type: ignore[return-value]  # no value is None
    found = _Repeated((name, value or b"") for name, value in pairs)
    found.pairs = tuple(pairs)
    return found


def pairs_of(headers: Mapping[str, bytes]) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a mapping in their order: all of them, if `headers_of` has made it."""
    return (headers.pairs if isinstance(headers, _Repeated) else ()) or tuple(headers.items())
