"""Leaving out what a library would take with it: every start of a server pays for what it imports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_out(module: str) -> Iterator[None]:
    """Have imports in the block find `module` not installed. For a library that takes it if it is there, at a price.

    Whoever imports the module later gets it; what was imported before stays, and is found. For the beginning of a
    process: other threads that import it meanwhile do not find it either.
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # how Python is told that there is no such module
    try:
        yield
    finally:
        sys.modules.pop(module, None)
