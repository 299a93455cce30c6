"""Definitions of another version are noticed, on a real API server, and looked for only from time to time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from seriatim_operator.cluster.kinds import Kind
from seriatim_operator.cluster.kube import Kube, KubeError
from seriatim_operator.reconcile.definitions import LOOK_S, REASON, Definitions
from seriatim_operator.spec.crd.definition import SCHEMA_HASH

from ..api_server import ROOT, ApiServer


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


class Forbidding:
    """An API that refuses every look."""

    def __init__(self) -> None:
        self.calls = 0

    async def get(self, _kind: Kind, _namespace: str | None, _name: str) -> None:
        self.calls += 1
        raise KubeError(403, "Forbidden", "not yours")


async def test_who_may_not_look_says_nothing_and_does_not_ask_all_the_time() -> None:
    now_s, api = [0.0], Forbidding()
    definitions = Definitions(api, lambda: now_s[0])  # type: ignore[arg-type]
    assert await definitions.problems() == []
    assert await definitions.problems() == []
    assert api.calls == 1
    now_s[0] = LOOK_S
    assert await definitions.problems() == []
    assert api.calls == 2
