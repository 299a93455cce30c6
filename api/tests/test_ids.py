"""Identifiers: which texts may name a topic's identity."""

from __future__ import annotations

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import TopicIncarnation, is_legal_broadcast_name, is_legal_name

PLAIN = "0123456789abcdef" * 2
HYPHENED = "01234567-89ab-cdef-0123-456789abcdef"


def test_an_incarnation_is_32_digits_or_16_bytes() -> None:
    known = TopicIncarnation(PLAIN)
    assert known.bytes == bytes.fromhex(PLAIN)
    assert TopicIncarnation.of_bytes(known.bytes) == known


@pytest.mark.parametrize("text", ["", HYPHENED, PLAIN.upper(), PLAIN[1:], PLAIN + "\n", PLAIN + "0", "g" * 32])
def test_an_incarnation_with_other_text_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="32 hexadecimal digits"):
        TopicIncarnation(text)


@pytest.mark.parametrize("name", ["orders\n", "1\n", "\norders", "or\nders", "orders\x00", "orders\r"])
def test_a_name_has_no_line_feed(name: str) -> None:
    """`open("topic").read()` of a mounted secret ends with one."""
    assert not is_legal_name(name)
    assert not is_legal_broadcast_name(f"g/{name}")
    assert not is_legal_broadcast_name(f"{name}/c")
