"""Limits of micro-batches that a pipeline sets by itself, and the life of its query."""

from __future__ import annotations

from typing import Any

import pytest
from seriatim_spark.options import parse
from seriatim_spark.pipelines.session import limited, wait

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


class Writer:
    """Queries that end at once, the first of them with an error."""

    def __init__(self, error: str) -> None:
        self.error = error
        self.triggers: list[str] = []

    def trigger(self, **trigger: Any) -> Writer:
        self.triggers += trigger
        return self

    def start(self) -> Writer:
        return self

    def awaitTermination(self, _timeout_s: float) -> bool:  # noqa: N802 - Spark's name
        if self.triggers == ["availableNow"]:
            raise RuntimeError(self.error)
        return True


def test_a_query_that_goes_on_begins_although_a_segment_is_not_settled() -> None:
    """A query that is to end with what is there refuses, because no broker can say what that is."""
    unsettled = "PYTHON_ERROR\nseriatim_spark.errors.UnsettledError: 1 partitions end for now"
    spark: Any = None
    writer: Any = Writer(unsettled)
    wait(spark, writer, GIVEN, None, "1 second")
    assert writer.triggers == ["availableNow", "processingTime"]
    for error, every in ((unsettled, None), ("DataLossError", "1 second")):
        other: Any = Writer(error)
        with pytest.raises(RuntimeError):
            wait(spark, other, GIVEN, None, every)
