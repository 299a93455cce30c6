"""The headers of dead letters, replayed copies and resolutions."""

from __future__ import annotations

import pytest
from seriatim_api.batch import make_header, parse_header
from seriatim_api.dead_letters import (
    FOR_NO_GROUP,
    HISTORY_MAX,
    DeadLetterOrigin,
    dead_letter_headers,
    dead_letter_producer,
    group_hash,
    history_of,
    is_brokers_own,
    origin_of,
    replay_producer,
    replayed_headers,
    resolution_headers,
    resolution_value,
    resolved_by,
)

ORIGIN = DeadLetterOrigin("orders", 3, (2 << 40) + 7, "billing", 5, "no such account", 99)


def test_headers_say_where_a_dead_letter_comes_from() -> None:
    headers = dead_letter_headers([("n", b"h")], ORIGIN)
    assert headers[0] == ("n", b"h")
    assert origin_of(dict(headers)) == ORIGIN
    assert dict(headers)["seriatim-offset"] == b"2:7"
    assert origin_of({"n": b"h"}) is None
    assert origin_of({**dict(headers), "seriatim-offset": b"x"}) is None


def test_a_replayed_copy_is_as_the_message_was_and_remembers_its_dead_letters() -> None:
    headers = dead_letter_headers([("n", b"h")], ORIGIN)
    for _ in range(HISTORY_MAX + 2):
        copy = replayed_headers(headers)
        assert [name for name, _ in copy] == ["n", "seriatim-history"]
        headers = dead_letter_headers(copy, ORIGIN)
    history = history_of(dict(headers))
    assert len(history) == HISTORY_MAX
    assert history[-1] == {
        "offset": "2:7", "group": "billing", "attempts": 5, "reason": "no such account", "time_ms": 99,
    }  # fmt: skip
    assert history_of({"seriatim-history": b"not json"}) == []


def test_headers_of_a_dead_letter_keep_nulls_and_their_order() -> None:
    sent = [("n", None), ("", b""), ("n", b"2"), ("a", None), ("n", b"1")]
    letter = dead_letter_headers(sent, ORIGIN)
    assert letter[:5] == sent
    copy = replayed_headers(letter)
    assert copy[:-1] == sent
    assert len(history_of(dict(copy))) == 1
    assert replayed_headers(dead_letter_headers(copy, ORIGIN))[:-1] == sent


@pytest.mark.parametrize("name", [name for name, _ in ORIGIN.headers()] + ["seriatim-history"])
def test_a_null_among_added_headers_of_a_client_is_no_error(name: str) -> None:
    headers = [*ORIGIN.headers(), (name, None)]
    kept = [pair for pair in replayed_headers(headers) if pair[0] != "seriatim-history"]
    assert kept == []
    assert origin_of({key: value or b"" for key, value in dead_letter_headers(headers, ORIGIN)}) == ORIGIN


@pytest.mark.parametrize(
    "written", [b"[" * 100_000, b'{"a":' * 50_000, b'[{"reason": [[]]}]', b"[null]", b'{"offset": 7}', b"\xff\xfe[\x00"]
)
def test_a_history_that_a_client_wrote_is_left_out(written: bytes) -> None:
    assert not any(history_of({"seriatim-history": written}))


def test_a_history_is_written_whatever_a_client_wrote() -> None:
    before = {"seriatim-history": rb'[{"reason": "\ud800", "group": "g", "more": [1]}]'}
    assert history_of(before) == [{"reason": "\ud800", "group": "g"}]
    headers = [*ORIGIN.headers(), *before.items()]
    assert len(history_of(dict(replayed_headers(headers)))) == 2


@pytest.mark.parametrize(
    ("name", "written"),
    [("partition", b"-1"), ("partition", b"4294967296"), ("attempts", b"-1"), ("offset", b"9999999999:1")],
)
def test_an_origin_that_cannot_be_is_none(name: str, written: bytes) -> None:
    headers = {**dict(ORIGIN.headers()), f"seriatim-{name}": written}
    assert origin_of(headers) is None


def test_a_resolution_names_offsets() -> None:
    headers = dict(resolution_headers("dropped"))
    assert resolved_by(headers, resolution_value([1, 1 << 60])) == (1, 1 << 60)
    assert resolved_by({}, resolution_value([1])) is None
    assert resolved_by(headers, b"123") is None


def test_producer_ids_are_those_of_forwarders_and_differ() -> None:
    ids = {
        dead_letter_producer(1, "g", 1, 1), dead_letter_producer(1, "g", 2, 1), dead_letter_producer(2, "g", 1, 1),
        dead_letter_producer(1, "g", 1, 2), dead_letter_producer(1, "h", 1, 1), replay_producer(1, 1),
        replay_producer(1, 2),
    }  # fmt: skip
    assert len(ids) == 7
    assert all(len(id_) == 16 and is_brokers_own(id_) for id_ in ids)


def test_a_header_names_the_only_group_that_a_batch_is_for() -> None:
    raw = make_header(
        partition=1, message_count=1, producer=bytes(16), producer_epoch=0, base_sequence=0, first_timestamp_ms=0,
        last_timestamp_ms=0, body_length=0, body_crc=0, for_group=group_hash("g"), origin=(9, 1 << 50),
    )  # fmt: skip
    header = parse_header(raw)
    assert (header.for_group, header.origin) == (group_hash("g"), (9, 1 << 50))
    assert group_hash("g") not in (0, group_hash("h"), FOR_NO_GROUP)
