"""Partitions are called topic/number in log lines and in texts. An inner number without a name is called an id."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import seriatim_broker
from seriatim_broker.process import logs

SOURCES = Path(seriatim_broker.__file__).parent
INNER_NUMBER = re.compile(r"partition \{(?:[a-z_.]*\.)?(?:partition|partition_id|partition\.id)\}")
NUMBER_IN_TOPIC = ("row.partition", "request.partition")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    known = {3: "shop/2"}
    monkeypatch.setattr(logs, "_name_of", [])
    logs.name_partitions(lambda _: None)  # another broker of the process, which does not know it
    logs.name_partitions(known.get)
    return known


@pytest.mark.parametrize("field", ["partition", "stage_partition"])
def test_a_line_names_the_partition(names: dict[int, str], field: str) -> None:
    assert logs.named(None, "info", {"event": "switched", field: 3}) == {"event": "switched", field: "shop/2"}


def test_the_id_of_an_unknown_partition_is_called_an_id(names: dict[int, str]) -> None:
    assert logs.named(None, "info", {"partition": 7}) == {"partition_id": 7}


def test_a_name_stays(names: dict[int, str]) -> None:
    assert logs.named(None, "info", {"partition": "shop/0"}) == {"partition": "shop/0"}


def test_texts_have_no_inner_numbers() -> None:
    """A text says `topic/number`, or `partition id 3`."""
    found = [
        f"{path.relative_to(SOURCES)}: {text}"
        for path in SOURCES.rglob("*.py")
        for text in INNER_NUMBER.findall(path.read_text(encoding="utf-8"))
        if not any(each in text for each in NUMBER_IN_TOPIC) and "testing" not in path.parts
    ]
    assert found == []
