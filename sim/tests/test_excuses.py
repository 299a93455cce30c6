"""One page names each excuse of the judge, with its reason, and the judge still needs each excuse on that page."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from sim import checkers
from sim.excuses import Excuse

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "excuses.md"


def test_the_page_has_every_excuse_with_its_reason_and_no_other() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _, _ in rows] == [excuse.name for excuse in Excuse]
    assert all(what.strip() and why.strip() for _, what, why in rows)


def test_the_judge_uses_every_excuse() -> None:
    source = inspect.getsource(checkers)
    used = set(re.findall(r"self\.excuse\(Excuse\.([A-Z_]+)\)", source))
    assert used == {excuse.name for excuse in Excuse}
