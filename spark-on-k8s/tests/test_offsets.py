"""Offsets in checkpoints: one form, and what is not of it."""

from __future__ import annotations

import json

import pytest
from seriatim_api.ids import make_offset
from seriatim_spark.errors import OffsetsError
from seriatim_spark.offsets import TopicPlaces, UserPlaces, from_json, parse_user_offsets, to_json


def test_the_same_offsets_are_the_same_string() -> None:
    """The order in which they were found does not matter, because Spark compares strings."""
    one = {"b": TopicPlaces("x", {10: 5, 9: 7}), "a": TopicPlaces("y", {0: make_offset(3, 1200)})}
    other = {"a": TopicPlaces("y", {0: make_offset(3, 1200)}), "b": TopicPlaces("x", {9: 7, 10: 5})}
    text = json.dumps(to_json(one))
    assert text == json.dumps(to_json(other))
    assert (
        text
        == '{"v": 1, "t": {"a": {"id": "y", "p": {"0": "3:1200"}}, "b": {"id": "x", "p": {"9": "0:7", "10": "0:5"}}}}'
    )
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"orders": {"0": 5}},  # of Spark's Kafka source
        {"v": 2, "t": {}},
        {"v": 1},
        {"v": 1, "t": {"a": {"p": {}}}},
        {"v": 1, "t": {"a": {"id": "x", "p": {"0": "5"}}}},
        {"v": 1, "t": {"a": {"id": "x", "p": {"x": "1:5"}}}},
        [],
    ],
)
def test_another_sources_offsets_are_refused(value: object) -> None:
    with pytest.raises(OffsetsError):
        from_json(value)


def test_users_write_places_or_copy_them_from_a_checkpoint() -> None:
    assert parse_user_offsets(" Earliest ") == "earliest"
    wanted = {0: make_offset(1, 5), 1: "earliest", 2: make_offset(2, 0)}
    text = json.dumps({"a": {"0": "1:5", "1": "earliest", "2": make_offset(2, 0)}})
    assert parse_user_offsets(text) == {"a": UserPlaces("", wanted)}
    copied = json.dumps(to_json({"a": TopicPlaces("x", {0: make_offset(1, 5)})}))
    assert parse_user_offsets(copied) == {"a": UserPlaces("x", {0: make_offset(1, 5)})}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 5}', '{"a": {"0": true}}', '{"a": {"0": "1"}}', "[" * 100_000])
def test_what_users_cannot_mean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="earliest, latest, or JSON"):
        parse_user_offsets(text)
