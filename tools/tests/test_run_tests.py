"""Which tests run beside which, and what a search that fails may take."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest
from hypothesis import Phase, settings

from tools import run_tests, searches

Started = list[tuple[str, bool]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Packages that `run_all` starts, and whether beside others."""
    found: Started = []

    def run(
        package: str, kind: str, extra: list[str], *, second_try: bool, beside: IO[str] | None = None
    ) -> dict[str, int]:
        found.append((package, beside is not None))
        if beside:
            beside.write("what the worlds say\n")
        return {"passed": 1, "failed": 0, "skipped": 0}

    monkeypatch.setattr(run_tests, "run", run)
    return found


def test_worlds_run_beside_the_others_and_are_shown_last(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    results = list(run_tests.run_all(["broker", "sim", "e2e"], "quick", [], second_try=False))
    assert sorted(started) == [("broker", False), ("e2e", False), ("sim", True)]
    assert len(results) == 3
    assert capsys.readouterr().out == "what the worlds say\n"


def test_alone_they_have_the_processors(started: Started) -> None:
    assert len(list(run_tests.run_all(["sim"], "slow", [], second_try=True))) == 1
    assert started == [("sim", False)]


def test_what_runs_beside_is_counted_and_written_elsewhere(tmp_path: Path) -> None:
    test = tmp_path / "test_two.py"
    test.write_text("def test_one():\n    pass\n\n\ndef test_two():\n    raise ValueError('seen')\n")
    with (tmp_path / "output").open("w+") as output:
        found = run_tests.run(str(test), "quick", [], beside=output)
        output.seek(0)
        text = output.read()
    assert found == {"passed": 1, "failed": 1, "skipped": 0}
    assert "ValueError: seen" in text
    assert f"{test}: 1 passed, 1 failed, 0 skipped in" in text


def test_a_search_of_minutes_makes_no_example_smaller() -> None:
    profile, usual = settings.get_profile(searches.SEARCH_PROFILE), settings.get_profile("ci")
    assert {*usual.phases} - {*profile.phases} >= {Phase.shrink, Phase.explain}
    assert Phase.generate in profile.phases
    assert profile.print_blob
    assert profile.derandomize
    assert profile.max_examples == usual.max_examples
