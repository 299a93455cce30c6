"""How many of the waiting messages go into a micro-batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Lag:
    """The messages that wait in a partition, and the average bytes of one."""

    rows: int
    row_bytes: float


def admit(lags: Mapping[K, Lag], max_rows: int | None, max_bytes: int | None) -> dict[K, int]:
    """The number of rows that the micro-batch takes from each partition.

    Both limits hold. Partitions share the allowed rows in proportion to their waiting messages. Each partition with
    waiting messages gets at least one row, so that large partitions do not starve a small one. If more partitions wait
    than rows are allowed, the micro-batch is therefore over the limit.

    Args:
        lags: The waiting messages. Of partitions with equal claims, the earlier one is served first.
        max_rows: The most rows of all partitions together; None: no limit.
        max_bytes: The most bytes of all partitions together, by the average of each partition; None: no limit.
    """
    waiting = {key: lag for key, lag in lags.items() if lag.rows > 0}
    factor = 1.0
    rows = sum(lag.rows for lag in waiting.values())
    size = sum(lag.rows * lag.row_bytes for lag in waiting.values())
    if max_rows is not None and rows > max_rows:
        factor = max_rows / rows
    if max_bytes is not None and size * factor > max_bytes:
        factor = max_bytes / size
    if factor == 1.0:
        return {key: lag.rows for key, lag in waiting.items()}
    shares = {key: max(1, min(lag.rows, int(lag.rows * factor))) for key, lag in waiting.items()}
    return _spread_rest(waiting, shares, int(rows * factor) - sum(shares.values()), factor)


def _spread_rest(waiting: Mapping[K, Lag], shares: dict[K, int], rest: int, factor: float) -> dict[K, int]:
    """Give the rows that rounding left, one each, to the partitions that lost most by rounding.

    If small partitions got more than their part, because each gets a row, the largest ones give the difference.
    """
    for key in sorted(shares, key=lambda key: -shares[key]):
        given = min(max(-rest, 0), shares[key] - 1)
        shares[key] -= given
        rest += given
    by_loss = sorted(waiting, key=lambda key: shares[key] - waiting[key].rows * factor)
    for key in by_loss[: max(rest, 0)]:
        if shares[key] < waiting[key].rows:
            shares[key] += 1
    return shares
