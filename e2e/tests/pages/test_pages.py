"""Runs README and the pages about a cluster on one machine, word for word as a reader types them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from e2e.pages import Reader, runnable

READ: Final = (
    "README.md",
    "docs/operating/local.md",
    "docs/operating/balance.md",
    "docs/operating/tls.md",
    "docs/using/reading.md",
    "docs/using/publications.md",
    "docs/using/a-message-that-fails.md",
    "docs/using/by-key.md",
    "docs/using/modes.md",
    "docs/using/dead-letters.md",
    "docs/using/histories.md",
    "docs/using/delayed.md",
    "docs/using/nulls-and-headers.md",
)
"""The pages with blocks that are run."""


@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", READ)
def test_what_the_page_says_is_what_happens(page: str, tmp_path: Path) -> None:
    with Reader(tmp_path / "checkout") as reader:
        try:
            reader.read(runnable(page))
        finally:
            print("\n".join(reader.transcript))
