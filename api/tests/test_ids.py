"""Identifiers: which texts may name a topic's identity."""

from __future__ import annotations

import pytest
from seriatim_api.errors import BadRequestError, IllegalNameError
from seriatim_api.ids import NAME_RULE, TopicIncarnation, check_name, is_legal_broadcast_name, is_legal_name

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


@pytest.mark.parametrize("name", ["a", "7", "_schemas", "__consumer_offsets", "_stage2", "_", "a._-", "a" * 249])
def test_names_that_kafka_takes_are_legal(name: str) -> None:
    assert is_legal_name(name)
    check_name(name, "topic")


@pytest.mark.parametrize("name", ["", "_stage", "_seriatim", "_seriatim.x", ".a", "-a", "ä", "a/b", "a" * 250, None, 7])
def test_other_names_are_refused_with_the_rule(name: object) -> None:
    assert not is_legal_name(name)
    with pytest.raises(IllegalNameError, match="cannot name a topic") as refused:
        check_name(name, "topic")
    assert str(refused.value).endswith(NAME_RULE)
