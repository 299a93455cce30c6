"""One event loop for all asynchronous tests of the client.

gRPC's asyncio has one queue of events for the whole process. An event for a loop that is closed by now (a watched
channel, a cancelled call) raises there, and keeps what came with it in the queue until something else happens. A later
test, in which nothing else happened, waited for ever for the news of a connection. Most programs have one loop, too.
"""

from __future__ import annotations

import pytest
from pytest_asyncio import is_async_test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Asynchronous tests share the session's loop."""
    shared = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if is_async_test(item):
            item.add_marker(shared, append=False)
