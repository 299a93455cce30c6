"""One page names each excuse of the judge, with its reason, and the judge still needs each excuse on that page."""

from __future__ import annotations

import re
from pathlib import Path

from sim.judge.excuses import Excuse

JUDGE = Path(__file__).parents[1] / "judge"
PAGE = Path(__file__).parents[2] / "docs" / "internals" / "excuses.md"


def test_the_page_has_every_excuse_with_its_reason_and_no_other() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _, _ in rows] == [excuse.name for excuse in Excuse]
    assert all(what.strip() and why.strip() for _, what, why in rows)


def test_the_judge_uses_every_excuse() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in JUDGE.glob("*.py"))
    used = set(re.findall(r"\.excuse\(Excuse\.([A-Z_]+)\)", source))
    assert used == {excuse.name for excuse in Excuse}
