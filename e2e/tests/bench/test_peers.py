"""What is made of the answers of Kafka's and NATS's clients."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from e2e.bench.measures.figures import Figure
from e2e.bench.peers import delayed
from e2e.bench.peers.kafka import Kafka, KafkaCluster
from e2e.bench.peers.nats import Nats
from e2e.bench.peers.peer import ask
from e2e.bench.peers.run import REFERENCE, ROWS, checked_drain, judge, measure_peer, our_drain, side_by_side
from e2e.bench.peers.servers import ServerError, end
from e2e.bench.workloads import Due, DueAtOnce


def client(program: str) -> list[str]:
    return [sys.executable, "-c", program]


async def test_an_answer_is_the_first_json_object_that_a_client_prints() -> None:
    assert await ask(client("print('a word before'); print('{\"leader\": \"1\"}')")) == {"leader": "1"}


async def test_a_client_that_ends_without_an_answer_is_an_error_with_its_last_words() -> None:
    with pytest.raises(ServerError, match="no servers"):
        await ask(client("import sys; sys.exit('no servers')"))


class Watched:
    """A process that has just ended, and whose exit status asyncio has not taken yet."""

    returncode = None

    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen(client(program))
        self.pid = self._process.pid
        self.terminate = self._process.terminate
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    async def wait(self) -> None:
        self.is_left = self._process.returncode is None
        self._process.wait()


async def test_the_status_of_a_client_that_has_just_ended_is_left_to_asyncio() -> None:
    watched = Watched("")
    await end(watched)  # type: ignore[arg-type]
    assert watched.is_left, "or asyncio would find no such process, and say so on stderr"


async def test_a_peer_that_fails_keeps_the_figures_before_it(tmp_path: Path) -> None:
    class Broken(Kafka):
        @asynccontextmanager
        async def cluster(self, directory: Path, servers: int, *, flush: bool) -> AsyncIterator[KafkaCluster]:
            raise ServerError("no Java")
            yield

    figures = await measure_peer(Broken(), tmp_path, 1, 1, lambda _doing: None)
    assert [(figure.name, figure.problem) for figure in figures] == [("Kafka.failed", "FAILED: no Java")]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(side_by_side(figures, "title"))
    assert "Kafka: FAILED: no Java" in console.export_text()


def test_a_peer_that_is_far_slower_than_on_a_quiet_machine_makes_the_run_void() -> None:
    figures = [
        Figure("NATS.bulk", "bulk", 79.0, "msg/s", None, higher_is_better=True),
        Figure("NATS.single.p50_ms", "single", 1.0, "ms"),
        Figure("Kafka.bulk", "bulk", 81.0, "msg/s", None, higher_is_better=True),
        Figure("Seriatim.bulk", "bulk", 1.0, "msg/s", None, higher_is_better=True),
    ]
    judged = judge(figures, {"NATS.bulk": 100.0, "NATS.single.p50_ms": 0.7, "Kafka.bulk": 100.0})
    assert judge([Figure("Kafka.bulk", "bulk", 0.0, "msg/s", None, higher_is_better=True)], {"Kafka.bulk": 1})[
        0
    ].problem
    assert judge([Figure("Kafka.single", "single", 0.0, "ms")], {"Kafka.single": 1})[0].problem
    assert [bool(figure.problem) for figure in judged] == [True, True, False, False]
    assert "0.79 of what a quiet machine gives" in judged[0].problem


@pytest.mark.parametrize("unit", ["msg/s", "ms"])
def test_a_peer_that_did_nothing_makes_the_run_void(unit: str) -> None:
    figure = Figure("Kafka.bulk", "bulk", 0.0, unit, higher_is_better=unit == "msg/s")
    assert "only 0.00" in judge([figure], {"Kafka.bulk": 1.0})[0].problem


def test_a_peer_that_reads_back_less_than_it_acknowledged_has_a_problem() -> None:
    drain = Figure("NATS.drain", "drain", 5.0, "msg/s", None, True, {"messages": 1_000})
    assert checked_drain(drain, 1_000) == drain
    assert checked_drain(drain, 1_001).problem == "1,000 messages were read, but 1,001 were acknowledged"


def test_our_own_reading_back_has_the_problem_that_the_sending_has() -> None:
    bulk = Figure("Seriatim.bulk_flushed", "bulk", 9.0, "msg/s", None, True, {"read_back_per_s": 7})
    assert (our_drain(bulk).value, our_drain(bulk).problem) == (7.0, "")
    missing = our_drain(replace(bulk, details={}, problem="3 messages did not come back"))
    assert (missing.value, missing.problem) == (None, "3 messages did not come back")


def test_each_reference_is_a_measured_figure_of_a_peer() -> None:
    peers = (Kafka().name, Nats().name)
    for name, quiet in yaml.safe_load(REFERENCE.read_text()).items():
        peer, _, measure = name.partition(".")
        assert peer in peers
        assert measure in ROWS
        assert quiet > 0


def test_brokers_stand_beside_one_another_and_problems_below() -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    figures = [
        Figure("Seriatim.bulk", "ours", 200_000.0, "msg/s"),
        Figure("NATS.bulk", "NATS's", 75_000.0, "msg/s", problem="3 failed"),
    ]
    console.print(side_by_side(figures, "title"))
    text = console.export_text()
    row = next(line for line in text.splitlines() if ROWS["bulk"] in line and "flushed" not in line)
    assert "200,000 msg/s" in row
    assert "75,000 msg/s (!)" in row
    assert "NATS's: 3 failed" in text


@pytest.mark.parametrize(
    ("answers", "problems"),
    [
        ({"failed": 0, "stored_before_s": 1.0}, ["", "", ""]),
        ({"failed": 3, "stored_before_s": 1.0}, ["3 messages did not come"] * 3),
        ({"failed": 0, "stored_before_s": -2.0}, ["", "", "the last one was stored 2.0 s after it was due"]),
    ],
)
async def test_delayed_messages_of_a_peer_that_did_not_come(
    tmp_path: Path, answers: dict[str, float], problems: list[str]
) -> None:
    answer = {"late_ms": [2.0, 4.0], "messages": 1_000, "seconds": 0.5, **answers}

    @asynccontextmanager
    async def cluster(_directory: Path) -> AsyncIterator[list[str]]:
        yield client(f"import json; print(json.dumps({answer!r}))")

    due = Due(kind="due", rate=1, within_ms=1, seconds=1)
    loads = DueAtOnce(kind="due_at_once", messages=1, rate=1), 4
    figures = await delayed.measure_peer("NATS", cluster, tmp_path, due, loads, lambda _doing: None)
    assert [figure.name for figure in figures] == [f"NATS.{row}" for row in delayed.ROWS]
    assert [figure.problem for figure in figures] == problems
    assert figures[2].value == 2_000
