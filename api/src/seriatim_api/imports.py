"""Leaving out what a library would take with it: every start of a server pays for what it imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_out(module: str) -> Iterator[None]:
    """Have imports in the block find `module` not installed. For a library that takes it if it is there, at a price.

    Only the block is concerned: whoever imports the module later gets it. What was imported before stays, and is found.
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # how Python is told that there is no such module
    try:
        yield
    finally:
        del sys.modules[module]
