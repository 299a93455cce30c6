"""How a micro-batch is shared among partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from seriatim_spark.reading.admission import Lag, admit


def test_without_limits_everything_goes() -> None:
    assert admit({"a": Lag(5, 10), "b": Lag(0, 10)}, None, None) == {"a": 5}


def test_rows_are_shared_by_what_waits() -> None:
    assert admit({"a": Lag(900, 10), "b": Lag(100, 10)}, 100, None) == {"a": 90, "b": 10}


def test_the_smaller_limit_wins() -> None:
    lags = {"a": Lag(1000, 100)}
    assert admit(lags, 500, 10_000) == {"a": 100}
    assert admit(lags, 50, 10_000) == {"a": 50}


def test_a_small_partition_is_not_starved() -> None:
    shares = admit({"large": Lag(1_000_000, 10), "small": Lag(1, 10)}, 100, None)
    assert shares["small"] == 1


def test_rows_of_small_partitions_count_against_the_limit() -> None:
    assert admit({"a": Lag(1, 1), "b": Lag(1, 1), "c": Lag(4, 1)}, 3, None) == {"a": 1, "b": 1, "c": 1}


@given(
    st.dictionaries(st.integers(0, 20), st.builds(Lag, st.integers(0, 10_000), st.floats(1, 1000)), max_size=12),
    st.none() | st.integers(1, 20_000),
    st.none() | st.integers(1, 1_000_000),
)
def test_limits_hold_and_everything_comes_to_an_end(
    lags: dict[int, Lag], max_rows: int | None, max_bytes: int | None
) -> None:
    shares = admit(lags, max_rows, max_bytes)
    waiting = {key for key, lag in lags.items() if lag.rows}
    assert set(shares) == waiting
    assert all(1 <= shares[key] <= lags[key].rows for key in shares)
    if max_rows is not None:
        assert sum(shares.values()) <= max(max_rows, len(waiting))
    if max_bytes is not None:
        one_each = sum(lags[key].row_bytes for key in waiting)
        rounding = sum(lags[key].row_bytes for key in waiting)
        assert sum(shares[key] * lags[key].row_bytes for key in shares) <= max_bytes + one_each + rounding
