"""The whole operator on a real API server, in its own namespace: a watch reports a deletion, and the topic goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from seriatim_operator import handlers
from seriatim_operator.cluster.connection import connect
from seriatim_operator.cluster.kinds import Kind
from seriatim_operator.cluster.kube import Kube
from seriatim_operator.handlers import Operator
from seriatim_operator.settings import OperatorSettings

from ..api_server import ApiServer
from ..spec.objects import good
from ..topics.doubles import MemoryBrokers

HOME = "home"
ROOT = f"/apis/seriatim.dev/v1alpha1/namespaces/{HOME}"
TOPIC = f"{ROOT}/topics/events"
DEADLINE_S = 60.0


@pytest.fixture
def home(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """A namespace with a cluster, and the operator's calls going there."""
    api_server.kubectl("create", "namespace", HOME)
    cluster = good("BrokerCluster")
    cluster["spec"]["paused"] = False
    assert api_server.call("POST", f"{ROOT}/brokerclusters", cluster).complaint == ""
    configuration = connect(str(api_server.kubeconfig), None).configuration
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    monkeypatch.setattr(handlers, "Kube", partial(Kube, configuration=configuration))
    return api_server


class _Watched(Operator):
    """Remembers of which kinds the watches told: what happens before a watch has begun is reported by none."""

    def __init__(self, settings: OperatorSettings) -> None:
        super().__init__(settings)
        self.told: set[str] = set()

    def _take_event(self, kind: Kind, event_type: str | None, manifest: dict[str, Any]) -> None:
        self.told.add(kind.kind)
        super()._take_event(kind, event_type, manifest)


@asynccontextmanager
async def operator(brokers: MemoryBrokers) -> AsyncIterator[_Watched]:
    """One that lives there, and leads; its clusters' brokers are in memory."""
    settings = OperatorSettings(namespace=HOME, watch_namespaces=(HOME,), metrics_listen="127.0.0.1:0")
    made = _Watched(settings)
    made._topics._brokers_of = lambda _namespace, _name: brokers
    stop = asyncio.Event()
    running = asyncio.create_task(made.run(stop))
    try:
        yield made
    finally:
        stop.set()
        await running


async def until(_what: str, is_so: Callable[[], Any]) -> None:
    """Look again and again; what is asked of the API runs in a thread."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await asyncio.to_thread(is_so):
                return
            await asyncio.sleep(0.1)  # there is nothing to wait on but the API itself


def apply_topic(server: ApiServer) -> str:
    topic = good("Topic")
    topic["spec"]["deletionPolicy"] = "Delete"
    answer = server.call("POST", f"{ROOT}/topics", topic)
    assert answer.complaint == ""
    return str(answer.body["metadata"]["uid"])


def ready(server: ApiServer) -> str:
    """The incarnation that is reported ready, if it is."""
    status = server.call("GET", TOPIC).body.get("status", {})
    is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    return str(status["incarnation"]) if is_ready else ""


async def test_what_the_watch_tells_is_followed_and_what_it_missed_is_not(home: ApiServer) -> None:
    brokers = MemoryBrokers()
    async with operator(brokers) as made:
        await asyncio.to_thread(apply_topic, home)
        await until("the topic is made", lambda: ready(home))
        await until("the watch of topics has begun", lambda: "Topic" in made.told)
        assert "finalizers" not in home.call("GET", TOPIC).body["metadata"]
        first = ready(home)
        assert home.call("DELETE", TOPIC).complaint == ""
        apply_topic(home)
        await until("its namesake has another", lambda: ready(home) not in ("", first))
        assert brokers.calls.count("delete events") == 1
        assert home.call("DELETE", TOPIC).complaint == ""
        await until("it went with its object", lambda: not brokers.topics)
        apply_topic(home)
        await until("a third one is there", lambda: ready(home))
    assert home.call("DELETE", TOPIC).complaint == ""
    async with operator(brokers):

        def told() -> str:
            return home.kubectl("-n", HOME, "get", "events", "--field-selector", "reason=TopicUnclaimed", "-o", "name")

        await until("what was left is reported", told)
        assert list(brokers.topics) == ["events"]
