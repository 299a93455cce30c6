"""The page of broken promises: each promise has a story, and the page names each rule that a planted bug breaks."""

from __future__ import annotations

import re
from pathlib import Path

from sim.mutants.catalogue import MUTATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "broken-promises.md").read_text(encoding="utf-8")


def test_each_promise_has_a_story_and_each_broken_rule_a_place() -> None:
    told = re.findall(r"(?m)^## (I\d+): ", PAGE)
    assert told == [f"I{number}" for number in range(1, 15) if number != 4]  # I4 comes with delivery by key
    assert PAGE.count("```mermaid") == len(told)
    bugs = re.findall(r"\*Left out:\* [^(]*\(`([a-z0-9-]+)`\)", PAGE)
    assert len(bugs) >= len(told)
    assert set(bugs) <= set(MUTATIONS)
    rules = {rule for mutation in MUTATIONS.values() for rule in mutation.breaks}
    assert {rule for rule in rules if rule not in told and f"`{rule}`" not in PAGE} == set()
