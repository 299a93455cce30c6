"""Identifiers: which texts may name a topic's identity."""

from __future__ import annotations

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import TopicIncarnation, is_legal_broadcast_name, is_legal_name

PLAIN = "0123456789abcdef" * 2
HYPHENED = "01234567-89ab-cdef-0123-456789abcdef"


def test_an_incarnation_with_hyphens_names_the_same_topic() -> None:
    """Earlier versions rebuilt topics with such texts. Checkpoints of programs have them."""
    rebuilt = TopicIncarnation.of_record(HYPHENED)
    assert rebuilt == HYPHENED
    assert rebuilt.bytes == TopicIncarnation.of_record(PLAIN).bytes == bytes.fromhex(PLAIN)
    assert TopicIncarnation.of_bytes(rebuilt.bytes) == PLAIN


@pytest.mark.parametrize("text", ["", HYPHENED, PLAIN.upper(), PLAIN[1:], PLAIN + "\n", PLAIN + "0", "g" * 32])
def test_a_new_incarnation_has_32_digits(text: str) -> None:
    with pytest.raises(BadRequestError, match="32 hexadecimal digits"):
        TopicIncarnation(text)


@pytest.mark.parametrize("text", ["", "orders", HYPHENED + "\n", HYPHENED.upper(), PLAIN + "-"])
def test_an_incarnation_that_exists_is_a_uuid(text: str) -> None:
    with pytest.raises(BadRequestError, match="32 hexadecimal digits"):
        TopicIncarnation.of_record(text)


@pytest.mark.parametrize("name", ["orders\n", "1\n", "\norders", "or\nders", "orders\x00", "orders\r"])
def test_a_name_has_no_line_feed(name: str) -> None:
    """`open("topic").read()` of a mounted secret ends with one."""
    assert not is_legal_name(name)
    assert not is_legal_broadcast_name(f"g/{name}")
    assert not is_legal_broadcast_name(f"{name}/c")
