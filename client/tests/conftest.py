"""One event loop for all asynchronous tests of the client.

gRPC's asyncio has one queue of events for the whole process. An event for a loop that is closed by now (a watched
channel, a cancelled call) raises there, and keeps what came with it in the queue until something else happens. A later
test, in which nothing else happened, waited for ever for the news of a connection. Most programs have one loop, too.
"""

from __future__ import annotations

import os

import pytest
from pytest_asyncio import is_async_test

# As the command does, before gRPC starts. A gRPC thread prints when a connection of an earlier test ends, at any
# moment, and what it prints would be among the lines of the command that a test reads.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from .fake_broker import CARRIAGE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Asynchronous tests share the session's loop."""
    shared = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if is_async_test(item):
            item.add_marker(shared, append=False)


@pytest.fixture(params=["grpc", "tcp"])
def carriage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How streams go to the fake brokers that the test makes."""
    kind: str = request.param
    monkeypatch.setattr(CARRIAGE, "kind", kind)
    return kind
