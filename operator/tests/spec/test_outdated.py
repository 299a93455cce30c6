"""Definitions of another version are noticed, on a real API server, and looked for only from time to time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from seriatim_operator.cluster.kube import Kube, KubeError
from seriatim_operator.reconcile.definitions import AGAIN_S, LOOK_S, REASON, Definitions
from seriatim_operator.spec.crd.definition import SCHEMA_HASH, schema_hash
from seriatim_operator.spec.topic import Topic

from ..api_server import ROOT, ApiServer
from ..memory_kube import Manifest, MemoryKube
from ..reconcile.place import started


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


def definition(hash_: str) -> Manifest:
    """The definition of Topics with this hash of its schema."""
    metadata = {"name": "topics.seriatim.dev", "annotations": {SCHEMA_HASH: hash_}}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata}


async def test_definitions_that_were_applied_are_noticed_soon() -> None:
    now_s, api = [0.0], MemoryKube()
    api.put(definition("older"))
    definitions = Definitions(api, lambda: now_s[0])  # type: ignore[arg-type]
    assert [reason for reason, _ in await definitions.problems()] == [REASON]
    api.put(definition(schema_hash(Topic)))
    now_s[0] = AGAIN_S
    assert await definitions.problems() == []
    assert AGAIN_S <= 10.0


async def test_a_pass_comes_soon_while_a_definition_is_of_another_version() -> None:
    place = await started()
    place.kube.put(definition("older"))
    reconciler, cache = place.operator()
    for _ in range(3):
        again_s = await place.a_pass(reconciler, cache)
    assert place.condition("Degraded")["reason"] == REASON
    assert again_s == AGAIN_S
