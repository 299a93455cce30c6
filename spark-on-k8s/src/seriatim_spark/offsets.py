"""Offsets, in the form of Spark's checkpoint and in the form that users write. Pure.

    {"v": 1, "t": {"orders": {"id": "<incarnation of the topic>", "p": {"0": "3:1200", "1": "3:77"}}}}

Each place is exclusive: it is the next message of the partition that is not in the micro-batch. Spark compares offsets
as strings, so keys always have the same order: topics by name, partitions by number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from seriatim_api.ids import OFFSET_MAX, format_offset, parse_offset

from seriatim_spark.errors import OffsetsError

VERSION: Final = 1
USER_OFFSETS_SIZE_MAX: Final = 1 << 20
"""The most characters of an option with offsets."""

Named = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class UserPlaces:
    """Places of a topic that a user wrote. `incarnation` is empty if the user did not name it."""

    incarnation: str
    places: dict[int, int | Named]


StartOrEnd = Named | datetime | dict[str, UserPlaces]
"""Where a query begins or ends: one place for all partitions, or places by topic."""


@dataclass(frozen=True, slots=True)
class TopicPlaces:
    """Places of one topic: the offset of the next message, by partition."""

    incarnation: str
    places: dict[int, int] = field(default_factory=dict)


Offsets = dict[str, TopicPlaces]
"""Places by topic."""


def to_json(offsets: Mapping[str, TopicPlaces]) -> dict[str, Any]:
    """Return the form for Spark. The order of keys is always the same."""
    return {
        "v": VERSION,
        "t": {
            topic: {
                "id": found.incarnation,
                "p": {str(number): format_offset(found.places[number]) for number in sorted(found.places)},
            }
            for topic, found in sorted(offsets.items())
        },
    }


def from_json(value: Any) -> Offsets:
    """Read the form that `to_json` gives.

    Raises:
        OffsetsError: The value has another form, or a newer version wrote it.
    """
    if isinstance(value, str):
        value = _loaded(value)
    if not isinstance(value, dict) or "v" not in value:
        raise OffsetsError("the checkpoint is not one of this source: its offsets have no version. Use a new one.")
    if value["v"] != VERSION:
        raise OffsetsError(f"the checkpoint is of version {value['v']!r} of this source, which is newer than this one")
    try:
        return {
            str(topic): TopicPlaces(
                str(found["id"]), {_number(n): parse_offset(text) for n, text in found["p"].items()}
            )
            for topic, found in value["t"].items()
        }
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise OffsetsError(f"the offsets in the checkpoint cannot be read: {exc}") from exc


def parse_user_offsets(text: str) -> StartOrEnd:
    """Read `earliest`, `latest`, or JSON: `{"orders": {"0": "3:1200", "1": "earliest"}}`, or a checkpoint's form.

    Raises:
        ValueError: The text has neither form.
    """
    text = text.strip()
    match text.lower():
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    wanted = 'earliest, latest, or JSON such as {"orders": {"0": "3:1200", "1": "earliest"}}'
    if len(text) > USER_OFFSETS_SIZE_MAX:
        raise ValueError(f"{wanted} of at most {USER_OFFSETS_SIZE_MAX} characters")
    try:
        value = _loaded(text)
        if isinstance(value, dict) and "v" in value and "t" in value:
            return {
                topic: UserPlaces(found.incarnation, dict(found.places)) for topic, found in from_json(value).items()
            }
        return {
            str(topic): UserPlaces("", {_number(number): _place(at) for number, at in places.items()})
            for topic, places in value.items()
        }
    except (OffsetsError, TypeError, AttributeError, ValueError) as exc:
        raise ValueError(f"{wanted} ({exc})") from exc


def _place(at: Any) -> int | Named:
    match at:
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case str():
            return parse_offset(at)
        case int() if not isinstance(at, bool) and 0 <= at <= OFFSET_MAX:
            return at  # a number as in the column `offset`
    raise ValueError(f"{at!r} is no offset: write segment:index, or the number in the column offset")


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise ValueError(f"{text!r} is no number of a partition")
    return int(text)


def _loaded(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError("a key stands twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError as exc:
        raise ValueError("too deep") from exc
