"""How much of what waits goes into a micro-batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Lag:
    """What waits in a partition: messages, and the bytes of one on average."""

    rows: int
    row_bytes: float


def admit(lags: Mapping[K, Lag], max_rows: int | None, max_bytes: int | None) -> dict[K, int]:
    """Rows for each partition.

    Both limits hold, the smaller wins. What is allowed is shared in proportion to what waits, and each partition that
    has something gets at least one row, so that a small one is not starved by large ones (with more partitions than
    rows allowed the limit is passed).

    Args:
        lags: What waits. Partitions with equal claims are served in its order.
        max_rows: Of all together; None: no limit.
        max_bytes: Likewise, measured by the average of each partition.
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
    """Give what rounding left, one row each, to those that lost most by it."""
    by_loss = sorted(waiting, key=lambda key: shares[key] - waiting[key].rows * factor)
    for key in by_loss[: max(rest, 0)]:
        if shares[key] < waiting[key].rows:
            shares[key] += 1
    return shares
