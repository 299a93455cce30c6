"""Definitions of another version are noticed, on a real API server, and looked for only from time to time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from seriatim_operator.cluster.kube import Kube, KubeError
from seriatim_operator.reconcile.definitions import LOOK_S, REASON, Definitions
from seriatim_operator.spec.crd.definition import SCHEMA_HASH

from ..api_server import ROOT, ApiServer
from ..memory_kube import MemoryKube


@pytest.fixture
def other_topics(api_server: ApiServer) -> Iterator[None]:
    """The definition of Topics is another version's."""
    api_server.kubectl("annotate", "--overwrite", "crd/topics.seriatim.dev", f"{SCHEMA_HASH}=older")
    yield
    api_server.kubectl("apply", "-f", str(ROOT / "crds"))


async def test_the_committed_definitions_are_the_operators(kube: Kube) -> None:
    assert await Definitions(kube).problems() == []


@pytest.mark.usefixtures("other_topics")
async def test_another_version_is_told_with_the_remedy(kube: Kube) -> None:
    ((reason, message),) = await Definitions(kube).problems()
    assert reason == REASON
    assert "Topic" in message
    assert "BrokerCluster" not in message
    assert "kubectl apply --server-side" in message


async def test_who_may_not_look_says_nothing_and_does_not_ask_all_the_time() -> None:
    now_s, api = [0.0], MemoryKube(refuse=lambda _call, _kind: KubeError(403, "Forbidden", "not yours"))
    definitions = Definitions(api, lambda: now_s[0])  # type: ignore[arg-type]
    assert await definitions.problems() == []
    assert await definitions.problems() == []
    assert api.calls == ["get"]
    now_s[0] = LOOK_S
    assert await definitions.problems() == []
    assert api.calls == ["get", "get"]
