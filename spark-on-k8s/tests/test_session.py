"""Limits of micro-batches that a pipeline sets by itself."""

from __future__ import annotations

import pytest
from seriatim_spark.options import parse
from seriatim_spark.pipelines.session import limited

GIVEN = {"bootstrap": "h:1", "topic": "orders"}


def test_a_pipeline_limits_its_micro_batches() -> None:
    options = parse(limited(GIVEN))
    assert (options.max_rows, options.max_bytes) == (10_000_000, 1 << 30)


@pytest.mark.parametrize("name", ["maxRowsPerTrigger", "maxBytesPerTrigger", "maxrowspertrigger"])
def test_limits_that_were_given_are_the_only_ones(name: str) -> None:
    given = {**GIVEN, name: "70000"}
    assert limited(given) == given


def test_a_wanted_number_of_rows_may_be_above_the_limit() -> None:
    options = parse(limited({**GIVEN, "minRowsPerTrigger": "20000000"}))
    assert (options.min_rows, options.max_rows, options.max_bytes) == (20_000_000, None, 1 << 30)
