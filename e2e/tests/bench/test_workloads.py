"""The workloads as data, and what is made of their measurements."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from e2e.bench.compare import CompareError, checkout, compare_table, ratio, run_to_its_end
from e2e.bench.first_message import start_ms
from e2e.bench.load.measurement import Measured
from e2e.bench.measures.curves import draw
from e2e.bench.measures.figures import Figure
from e2e.bench.measures.latency import Latency
from e2e.bench.measures.usage import UsageClock, Used
from e2e.bench.program import NotMeasuredError, Progress
from e2e.bench.run import figures_of, try_workload, usage_table, workload_table
from e2e.bench.workloads import Workload, WorkloadError, choose, read_workloads

GOOD = """
- name: slow
  text: a slow one
  load: {kind: paced, rate: 10, seconds: 8, is_read: true}
  measures: {published_p50_ms: 2.0, end_to_end_p99_ms: null}
"""


def written(directory: Path, text: str) -> Path:
    file = directory / "workloads.yaml"
    file.write_text(text)
    return file


def test_the_projects_workloads_are_read() -> None:
    found = {workload.name: workload for workload in read_workloads()}
    assert found["one_partition"].load.kind == "batches"
    assert [name for name, workload in found.items() if workload.smoke] == [
        "one_in_flight",
        "one_partition",
        "many_partitions",
        "kill_gap",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("rate: 10", "rate: 0"), "greater than 0"),
        (("rate: 10", "rate: 10, rates: 3"), "rates"),
        (("kind: paced", "kind: hasty"), "hasty"),
        (("published_p50_ms", "wakeups_per_s"), "wakeups_per_s: this load gives"),
        ((", is_read: true", ""), "end_to_end_p99_ms: this load gives"),
        (("text: a slow one", "text: ["), "workloads.yaml"),
    ],
)
def test_a_wrong_word_in_a_workload_is_an_error_that_names_it(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    with pytest.raises(WorkloadError, match=said):
        read_workloads(written(tmp_path, GOOD.replace(*change)))


def test_two_workloads_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="same name"):
        read_workloads(written(tmp_path, GOOD + GOOD))


def test_workloads_are_chosen_by_name(tmp_path: Path) -> None:
    found = read_workloads(written(tmp_path, GOOD + GOOD.replace("slow", "slower")))
    assert [workload.name for workload in choose(found, ["slower"])] == ["slower"]
    assert choose(found, []) == found
    nightly = [found[0].model_copy(update={"night": True}), found[1]]
    assert (choose(nightly, []), choose(nightly, ["slow"])) == (nightly[1:], nightly[:1])
    with pytest.raises(WorkloadError, match="choose from slow, slower"):
        choose(found, ["fast"])


def slow(tmp_path: Path) -> Workload:
    return read_workloads(written(tmp_path, GOOD))[0]


def test_a_quick_run_is_a_quarter_as_long(tmp_path: Path) -> None:
    load = slow(tmp_path).quick().load
    assert load.kind == "paced"
    assert (load.rate, load.seconds) == (10, 2.0)
    quick = {workload.name: workload.quick().load.model_dump() for workload in read_workloads()}
    assert (quick["due_kill"]["times"], quick["pending"]["messages"]) == (1, 250_000)


def measured() -> Measured:
    published = Latency()
    for number in range(1, 1001):
        published.add(number / 1e6)
    return Measured(
        values={"published_p50_ms": 0.5, "end_to_end_p99_ms": 9.0},
        latencies={"published": published},
        used={"client": Used(0.5, 2000, 0, 100.0), "brokers": Used(1.0, 4000, 1_024_000, 300.0)},
        messages=1000,
        seconds=2.0,
    )


async def test_a_workload_that_fails_does_not_cost_the_figures_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = read_workloads(written(tmp_path, GOOD + GOOD.replace("slow", "slower")))

    async def run_workload(workload: Workload, _directory: Path, _progress: Progress) -> list[Figure]:
        if workload == second:
            raise ExceptionGroup("tasks", [NotMeasuredError("no\nservers")])
        return figures_of(workload, measured())

    monkeypatch.setattr("e2e.bench.run.run_workload", run_workload)
    figures = [
        figure
        for workload in (first, second, first)
        for figure in await try_workload(workload, tmp_path, lambda _doing: None)
    ]
    assert [figure.value for figure in figures] == [0.5, 9.0, None, None, 0.5, 9.0]
    assert [figure.name for figure in figures[2:4]] == ["slower.published_p50_ms", "slower.end_to_end_p99_ms"]
    assert {figure.problem for figure in figures[2:4]} == {"FAILED: no servers"}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(workload_table(figures, "title"))
    assert console.export_text().count("FAILED: no servers") == 1


async def test_a_program_that_cannot_start_is_one_error_with_its_last_words() -> None:
    with pytest.raises(NotMeasuredError, match=r"ended with status 1: .*nowhere"):
        await start_ms("topic", ["nowhere"])


def test_each_measure_is_a_figure_and_the_first_has_the_rest(tmp_path: Path) -> None:
    first, second = figures_of(slow(tmp_path), measured())
    assert (first.name, first.value, first.aim, first.unit) == ("slow.published_p50_ms", 0.5, 2.0, "ms")
    assert (second.name, second.value, second.aim) == ("slow.end_to_end_p99_ms", 9.0, None)
    assert second.details == {}
    histograms = first.details["histograms"]
    assert isinstance(histograms, dict)
    assert Latency.decode(histograms["published"]).ms(50) == pytest.approx(0.5, rel=0.01)


def test_the_report_of_all_workloads_is_printed_and_drawn(tmp_path: Path) -> None:
    figures = []
    for workload in read_workloads():
        found = measured()
        found.values = dict.fromkeys(workload.measures, 123_456.0)
        figures += figures_of(workload, found)
    failed = measured()
    failed.problem = "3 messages [of 9] were not acknowledged"
    figures += figures_of(slow(tmp_path), failed)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(workload_table(figures, "title"))
    console.print(usage_table(figures))
    compared = {figure.name: asdict(figure) for figure in figures}
    console.print(compare_table([(side, compared) for side in "ABAB"])[0])
    text = console.export_text()
    assert "…" not in text, "it fits into 80 columns"
    assert "3 messages [of 9] were not acknowledged" in " ".join(text.split())
    assert "0.50 ms" not in text, "a figure that was not verified"
    assert draw(figures, tmp_path / "a.svg")
    assert not draw([], tmp_path / "b.svg")


def test_latencies_beyond_the_limits_count_as_the_limits() -> None:
    latency = Latency()
    latency.add(0.0)
    latency.add(1000.0)
    assert latency.count == 2
    assert latency.max_ms == pytest.approx(120_000, rel=0.001)


def test_the_usage_of_a_process_grows_with_its_work() -> None:
    clock = UsageClock({"me": [os.getpid()]})
    until = os.times().user + 0.05
    while os.times().user < until:
        pass
    used = clock.used()["me"]
    assert used.cpu_s >= 0.03
    assert used.memory_mib > 1


def test_a_ratio_above_one_is_better_whatever_is_measured() -> None:
    assert ratio([100.0, 110.0], [200.0, 220.0], higher_is_better=True) == pytest.approx(2.0)
    assert ratio([2.0, 2.0], [1.0, 1.0], higher_is_better=False) == pytest.approx(2.0)


ENVIRONMENT = r"""#!/bin/sh -e
mkdir -p $1/bin
ln -sf $2 $1/bin/python
printf '#!/bin/sh\necho "$@" > "$(dirname "$0")/../../asked"\n' > $1/bin/uv
chmod +x $1/bin/uv
"""


def test_a_commit_gets_a_checkout_that_is_whole_again_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    root.mkdir()
    out.mkdir()
    (root / "tools").mkdir()
    (root / "tools" / "environment.sh").write_text(ENVIRONMENT)
    (root / "tools" / "environment.sh").chmod(0o755)
    (root / "speed.py").write_text("fast = False\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    (root / "speed.py").write_text("fast = True\n")
    monkeypatch.setattr("e2e.bench.compare.ROOT", root)
    place = checkout("HEAD", out)
    assert (place / "speed.py").read_text() == "fast = False\n"
    assert "hdrhistogram==" in (place / "asked").read_text(), "an older commit does not have it"
    (place / "speed.py").unlink()
    assert checkout("HEAD", out) == place
    assert (place / "speed.py").exists()
    monkeypatch.setattr(sys, "version", "2.7")
    with pytest.raises(CompareError, match="and this checkout 2"):
        checkout("HEAD", out)
    with pytest.raises(CompareError, match="rev-parse"):
        checkout("no-such-commit", out)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts this process, also if it runs in the background of a shell, which ignores SIGINT there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_comparison_waits_until_the_benchmark_has_cleared_up(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
try:
    print("-" * 200_000, flush=True)  # more than a pipe takes, so by now the other side reads
    os.kill({os.getpid()}, signal.SIGINT)
    signal.pause()
finally:
    open({str(tmp_path / "cleared")!r}, "w").close()
"""
    with pytest.raises(KeyboardInterrupt):
        run_to_its_end([sys.executable, "-c", program], os.environ)
    assert (tmp_path / "cleared").exists()


def test_a_program_of_a_comparison_says_its_errors() -> None:
    assert run_to_its_end([sys.executable, "-c", "print('done')"], os.environ) == "done\n"
    assert "no brokers" in run_to_its_end([sys.executable, "-c", "raise SystemExit('no brokers')"], os.environ)


def test_a_figure_that_one_run_did_not_verify_has_no_ratio() -> None:
    def figure(value: float, problem: str = "") -> dict[str, object]:
        return {"text": "rate", "value": value, "unit": "msg/s", "higher_is_better": True, "problem": problem}

    runs = [("A", {"rate": figure(100)}), ("B", {"rate": figure(150)})]
    assert compare_table(runs)[1] == {"rate": 1.5}
    runs[1] = ("B", {"rate": figure(150, "not acknowledged")})
    drawn, ratios = compare_table(runs)
    assert ratios == {}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(drawn)
    text = console.export_text()
    assert "150" not in text
    assert "B: rate: not acknowledged" in text
