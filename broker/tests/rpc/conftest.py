"""One event loop for all asynchronous tests of this folder.

gRPC's asyncio has one queue of events for the whole process. An event for a loop that is closed by now (a cancelled
call, a channel that was not closed) raises "Event loop is closed" in the loop that runs then, and what came with it
stays in the queue until something else happens. So the end of a test's server may wait for ever.
A broker has one loop, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_asyncio import is_async_test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Asynchronous tests of this folder share the session's loop."""
    shared = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if Path(__file__).parent in item.path.parents and is_async_test(item):
            item.add_marker(shared, append=False)
