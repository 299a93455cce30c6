"""Which attributes a topic may have. Each refusal says what to do."""

from __future__ import annotations

import pytest
from seriatim_api.attributes import ATTRIBUTE_NAME_RULE, check_attribute_name, check_attributes
from seriatim_api.errors import BadRequestError


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"owner": "payments", "_x": "", "example.com/schema-url": "https://example.com/s?a=1"},
        {"text": "two\nlines, \u00fc\u4e16", "Seriatim.x": "7", "seriatim": "7", "7": "7"},
        {f"a{number}": "" for number in range(64)},
        {"a": "x" * 4095},
        {"a" * 249: "x" * (4096 - 249)},
        {"a": "\u00fc" * 2047},
    ],
)
def test_attributes_within_the_limits_are_taken(attributes: dict[str, str]) -> None:
    check_attributes(attributes)


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", "/a", "a b", "a=b", "\u00e4", "a\n", "a" * 250, "seriatim.x", None, 7]
)
def test_illegal_names_of_attributes_are_refused_with_the_rule(name: object) -> None:
    with pytest.raises(BadRequestError, match="cannot name an attribute") as refused:
        check_attribute_name(name)
    assert str(refused.value).endswith(ATTRIBUTE_NAME_RULE)
    with pytest.raises(BadRequestError, match="cannot name an attribute"):
        check_attributes({"owner": "payments", name: "x"})


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({f"a{number}": "" for number in range(65)}, "at most 64 attributes, not 65: remove some"),
        ({"a": "x" * 4096}, "at most 4,096 bytes together, not 4,097: shorten some"),
        ({"a": "\u00fc" * 2048}, "not 4,097: shorten some"),
        ({"a": 7}, "the attribute a is a text, not 7: write it as a string"),
        ({"a": b"x"}, "the attribute a is a text, not b'x'"),
        ({"a": None}, "the attribute a is a text, not None"),
        ({"a": "\ud800"}, "the attribute a is a text, not"),
        (["a"], "attributes is a map of names to texts, not"),
    ],
)
def test_attributes_beyond_the_limits_are_refused(attributes: object, text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        check_attributes(attributes)
