"""What `traffic` says of counts."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

from seriatim_spark.pipelines.traffic import STEPS, GroupLag, KeyTraffic, as_text, picture, summed_up

FOUND = summed_up(
    "orders", 1_700_000_000.0, 10.0, [(0, 0, 300, 3000), (0, 59, 100, 1000), (2, 60, 200, 2 << 20)], 4,
    [KeyTraffic("'<a>'", 250, 10)], [GroupLag("billing", 40, 1)],
)  # fmt: skip


def test_counts_become_rates_and_shares() -> None:
    assert FOUND.rows == 600
    assert len(FOUND.rates) == STEPS
    assert (FOUND.rates[0], FOUND.rates[1], FOUND.rates[59]) == (30.0, 0.0, 30.0)
    assert [one.rows for one in FOUND.partitions] == [400, 0, 200, 0]
    assert FOUND.skew == 400 / 150
    text = as_text(FOUND)
    assert "1.0 a second on average, 30.0 at most" in text
    assert "2.67 times the mean" in text
    assert "40 at least" in text
    assert json.loads(json.dumps(FOUND.as_dict()))["rows"] == 600


def test_nothing_is_no_error() -> None:
    nothing = summed_up("orders", 0.0, 1.0, [], 2, [], [])
    assert nothing.skew == 1.0
    assert "0 messages" in as_text(nothing)
    ElementTree.fromstring(picture(nothing))


def test_the_picture_can_be_drawn_whatever_keys_hold() -> None:
    root = ElementTree.fromstring(picture(FOUND))
    texts = [element.text for element in root.iter() if element.text]
    assert "'<a>'" in texts
