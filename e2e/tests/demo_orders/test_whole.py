"""A user runs the demo of orders. And it finds consumers that break their promise."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from e2e.demo.live import View
from e2e.demo_orders.orders import OrdersOutcome, OrdersRun
from e2e.demo_orders.settings import OrderSettings
from e2e.workers import processes_that_name

DEADLINE_S = 240


def run(
    out: Path, planted: str = "", parked_max_s: float = 60.0, stalled_s: float = 10.0, lines: Console | None = None
) -> OrdersOutcome:
    """A short run, in which only processes with consumers fail. Two brokers are enough."""
    settings = OrderSettings(
        quick=True, seed=5, out=out, event_limit=4_000, hits_min=0, consumer_faults=2, rate=500.0, fault_s=5.0,
        parked_s=0.5, parked_max_s=parked_max_s, stalled_s=stalled_s, partition_count=2, group_count=1, process_count=2,
        planted=planted,
    )  # fmt: skip
    with View(lines or Console(file=io.StringIO())) as view:
        outcome = asyncio.run(OrdersRun(settings, view).outcome())
    assert isinstance(outcome, OrdersOutcome)
    return outcome


@pytest.mark.faults
@pytest.mark.timeout(DEADLINE_S)
def test_a_short_run(tmp_path: Path) -> None:
    text = io.StringIO()
    outcome = run(tmp_path, lines=Console(file=text))
    assert outcome.problems() == []
    assert "  4,000 of 4,000 finished" in text.getvalue().splitlines()[-1], "killed processes did not say their last"
    assert outcome.parked is not None
    assert outcome.parked.attempts == 5
    assert outcome.dead is not None
    assert outcome.dead.letters
    assert outcome.judgement.failed > 0
    copies = len(outcome.dead.letters)  # each replayed dead letter is a message of its own
    assert outcome.check.counts["delivered"] == 4_000 + copies
    assert not processes_that_name(str(tmp_path))
    assert not list(tmp_path.glob("cluster-*")), "no data is left"


@pytest.mark.faults
@pytest.mark.timeout(DEADLINE_S)
def test_consumers_that_acknowledge_before_they_have_worked_are_found(tmp_path: Path) -> None:
    outcome = run(tmp_path, "acks-early", 3.0, 5.0)
    assert outcome.judgement.taken < outcome.event_count, "what failed did not come again"
    assert outcome.differences
    assert "the rebuilt histories are not those of the file" in outcome.problems()


@pytest.mark.faults
@pytest.mark.timeout(DEADLINE_S)
def test_consumers_that_work_out_of_order_are_found(tmp_path: Path) -> None:
    outcome = run(tmp_path, "out-of-order", 3.0, 5.0)
    assert outcome.differences
    assert "the rebuilt histories are not those of the file" in outcome.problems()
