"""Keeps a library from importing another one that we do not need, because each import makes a server start later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_out(module: str) -> Iterator[None]:
    """Let imports in the block find that `module` is not installed.

    Use it for a library that imports the module if it is installed, at a cost. After the block the module can be
    imported. If it was imported before the block, nothing changes. Use it only at the beginning of a process, because
    other threads cannot import the module during the block either.
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # how Python is told that there is no such module
    try:
        yield
    finally:
        sys.modules.pop(module, None)
