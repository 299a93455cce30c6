"""The rules that code names, the planted bugs, and the page about them are one set of names."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from sim.mutants.catalogue import MODULES, MUTATIONS, OVERLAPPING

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "internals" / "planted-bugs.md").read_text(encoding="utf-8")
NAMED = re.compile(r"[Rr]ules? ((?:`[a-z0-9-]+`(?: \([^)]*\))?(?:,| and|\s|#)*)+)")
PLANTED = {*MUTATIONS, *OVERLAPPING}


def _named_in_code() -> set[str]:
    """The names after the word rule in the sources of all packages."""
    sources = [
        path
        for package in ("api", "broker", "client", "local", "operator")
        for path in (ROOT / package / "src").rglob("*.py")
    ]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    return {
        name for text in texts for found in NAMED.finditer(text) for name in re.findall(r"`([a-z0-9-]+)`", found[1])
    }


def _without_a_bug() -> set[str]:
    """The names in the page's table of rules that no planted bug leaves out."""
    table = PAGE.split("## Rules that no planted bug leaves out")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE))


def test_each_planted_bug_is_named_at_the_line_that_keeps_its_rule() -> None:
    assert not set(MUTATIONS) - _named_in_code()


def test_each_rule_in_code_has_a_planted_bug_or_is_on_the_page() -> None:
    assert _named_in_code() - PLANTED == _without_a_bug()


def test_names_of_planted_bugs_are_unique() -> None:
    """Otherwise one bug hides the other one, which is never looked for."""
    names = Counter([*OVERLAPPING, *(name for module in MODULES for name in module.MUTATIONS)])
    assert not [name for name, count in names.items() if count > 1]


def test_each_planted_bug_has_one_row_on_the_page() -> None:
    rows = re.findall(r"(?m)^\| `([a-z0-9-]+)` \| (?:core|client|runtime|storage) \|", PAGE)
    assert Counter(rows) == Counter(list(MUTATIONS))
