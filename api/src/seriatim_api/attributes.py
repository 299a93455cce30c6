"""Legal attributes of topics: texts by name, for tools of users. Brokers store them and read none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from seriatim_api.errors import BadRequestError

ATTRIBUTES_MAX: Final = 64
ATTRIBUTES_BYTES_MAX: Final = 4096
"""All names and values of a topic together, in UTF-8. They are in the topic's record, which every broker reads."""

ATTRIBUTE_NAME_LENGTH_MAX: Final = 249
ATTRIBUTE_NAME_PATTERN: Final = "[A-Za-z0-9_][A-Za-z0-9._/-]*"
ATTRIBUTE_NAMES_TAKEN: Final = "seriatim."

ATTRIBUTE_NAME_RULE: Final = (
    "the name of an attribute has letters, digits, '.', '_', '-' and '/', begins with a letter, a digit or '_', and "
    "has at most 249 characters; names that begin with seriatim. are taken"
)
_NAME: Final = re.compile(ATTRIBUTE_NAME_PATTERN)


def check_attribute_name(name: object) -> None:
    """Refuse an illegal name of an attribute: see `ATTRIBUTE_NAME_RULE`.

    Raises:
        BadRequestError: It is illegal.
    """
    is_legal = isinstance(name, str) and len(name) <= ATTRIBUTE_NAME_LENGTH_MAX and _NAME.fullmatch(name)
    if not is_legal or str(name).startswith(ATTRIBUTE_NAMES_TAKEN):
        shown = name[:40] if isinstance(name, str) else name
        raise BadRequestError(f"{shown!r} cannot name an attribute: {ATTRIBUTE_NAME_RULE}")


def check_attributes(attributes: object) -> None:
    """Refuse attributes that a topic cannot have. As in annotations of Kubernetes, a value is any text.

    Raises:
        BadRequestError: There are too many, they are too large together, a name is illegal, or a value is no text.
    """
    if not isinstance(attributes, Mapping):
        raise BadRequestError(f"attributes is a map of names to texts, not {attributes!r:.40}")
    size_bytes = 0
    for name, value in attributes.items():
        check_attribute_name(name)
        try:
            size_bytes += len(name) + len(value.encode())
        except (AttributeError, UnicodeEncodeError):
            raise BadRequestError(f"the attribute {name} is a text, not {value!r:.40}: write it as a string") from None
    if len(attributes) > ATTRIBUTES_MAX:
        raise BadRequestError(f"a topic has at most {ATTRIBUTES_MAX} attributes, not {len(attributes)}: remove some")
    if size_bytes > ATTRIBUTES_BYTES_MAX:
        raise BadRequestError(
            f"the names and values of a topic's attributes have at most {ATTRIBUTES_BYTES_MAX:,} bytes together, not "
            f"{size_bytes:,}: shorten some, or store the text elsewhere and its address here"
        )
