"""A flipped bit is in a message of the case, at a place that a start cannot take for the torn end of a log."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from e2e.faults.kinds.damage import choose_byte, flip
from e2e.faults.kinds.fault import NotStruckError
from e2e.faults.traffic.client import marker_of, value_of

MARKER = marker_of("case-7")


def messages(count: int, topic: str = "case-7") -> bytes:
    return b"".join(value_of(number, topic, 60) for number in range(count))


def test_the_byte_is_one_of_the_first_half_of_this_cases_messages(tmp_path: Path) -> None:
    below = tmp_path / "log"
    below.mkdir()
    (below / "000001.sst").write_bytes(messages(10, "case-8") + messages(10))
    (below / "000002.log").write_bytes(messages(1000))
    found = {choose_byte(tmp_path, "*.sst", MARKER, Random(seed)) for seed in range(200)}
    assert {path.name for path, _ in found} == {"000001.sst"}
    content = (below / "000001.sst").read_bytes()
    assert {content[at : at + len(MARKER)] for _, at in found} == {MARKER}
    assert {at // 60 for _, at in found} == {10, 11, 12, 13, 14}


def test_where_there_is_no_message_nothing_is_struck(tmp_path: Path) -> None:
    (tmp_path / "000001.sst").write_bytes(messages(10, "case-8"))
    with pytest.raises(NotStruckError, match="case-7"):
        choose_byte(tmp_path, "*.sst", MARKER, Random(1))


def test_a_flip_changes_one_bit_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(16))
    flip(path, 7, 0x10)
    assert path.read_bytes() == bytes(7) + b"\x10" + bytes(8)
