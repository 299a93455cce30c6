"""The program compares Maven's answers with their checksums before anything runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.kafka import fetch


def test_sums_name_the_jars_of_both_parts_each_once() -> None:
    wanted = fetch.expected()
    assert {path.partition("/")[0] for path in wanted} == set(fetch.PARTS)
    assert all(len(digest) == 64 and path.endswith(".jar") for path, digest in wanted.items())
    assert sum("spark-sql-kafka-0-10" in path for path in wanted) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"broker/a.jar": b"other", "connector/b.jar": b"b"}, "a.jar: its SHA-256 is "),
        ({"broker/a.jar": b"a"}, "b.jar: its SHA-256 is none, because it is missing"),
        ({"broker/a.jar": b"a", "connector/b.jar": b"b", "broker/c.jar": b"c"}, "must be none, because no such file"),
    ],
)
def test_a_file_that_is_another_or_missing_or_unknown_is_refused(
    tmp_path: Path, given: dict[str, bytes], said: str
) -> None:
    for path, content in {"wanted/broker/a.jar": b"a", "wanted/connector/b.jar": b"b"}.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(content)
    for path, content in given.items():
        (tmp_path / "given" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "given" / path).write_bytes(content)
    wanted = fetch.sums_of(tmp_path / "wanted")
    fetch.check(wanted, wanted)
    with pytest.raises(fetch.FetchError, match=said):
        fetch.check(fetch.sums_of(tmp_path / "given"), wanted)
