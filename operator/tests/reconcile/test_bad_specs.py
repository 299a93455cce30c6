"""Specs that the API server takes and that name what is not there: the cluster says so, and what to do.

What the API server refuses by itself is in `spec/test_bad_manifests.py`. What it refuses of the children, such as a
priority class, is in `test_refusals`.
"""

from __future__ import annotations

from typing import Any

import pytest

from .fake_cluster import storage_class
from .place import Place

FILES = {"ca.crt": "", "tls.crt": "", "tls.key": ""}


def etcd(secret: str) -> dict[str, object]:
    """The field `etcd` of a spec."""
    return {"endpoints": ["etcd-0.etcd.shop.svc:2379"], "tlsSecret": secret}


def put_secret(place: Place, **data: str) -> None:
    """Make the Secret for etcd, or give it other files."""
    place.kube.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "etcd-tls"}, "data": data})


async def degraded(place: Place, passes: int = 2) -> dict[str, str]:
    """What the cluster says after some passes."""
    reconciler, cache = place.operator()
    for _ in range(passes):
        await place.a_pass(reconciler, cache)
    return place.condition("Degraded")


@pytest.mark.parametrize(
    ("spec", "reason", "advice"),
    [
        (
            {"storage": {"storageClassName": "local-nmve", "size": "20Gi"}},
            "StorageClassUnknown",
            "there is no StorageClass local-nmve: make it, or name another one",
        ),
        (
            {"etcd": etcd("etcd-tls")},
            "EtcdSecretInvalid",
            "Secret etcd-tls for etcd is not there: give it ca.crt, tls.crt, tls.key, or name another Secret",
        ),
        ({"tls": {"enabled": True, "caSecret": "mine"}}, "CertificateInvalid", "mine"),
        ({"settings": {"heal_after": "300"}}, "SettingsInvalid", "heal_after"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
async def test_what_a_spec_names_and_is_not_there_is_told(spec: dict[str, Any], reason: str, advice: str) -> None:
    found = await degraded(Place(**spec))
    assert (found["status"], found["reason"]) == ("True", reason)
    assert advice in found["message"]


async def test_a_class_that_binds_at_once_is_told() -> None:
    place = Place()
    place.kube.put({**storage_class(), "volumeBindingMode": "Immediate"})
    found = await degraded(place)
    assert (found["status"], found["reason"]) == ("True", "StorageClassImmediate")


async def test_the_secret_for_etcd_is_looked_at_until_it_is_whole() -> None:
    place = Place(etcd=etcd("etcd-tls"))
    put_secret(place, **{"ca.crt": "", "tls.crt": ""})
    reconciler, cache = place.operator()

    async def told() -> str:
        await place.a_pass(reconciler, cache)
        return place.condition("Degraded")["message"]

    assert "has no tls.key" in await told()
    put_secret(place, **FILES)
    assert "etcd-tls" not in await told()
    asked: list[tuple[str, str]] = []
    place.kube.refuse = lambda call, kind: asked.append((call, kind.kind))  # type: ignore[func-returns-value]
    assert "etcd-tls" not in await told()
    assert ("get", "Secret") not in asked, "a complete one is not read in each pass"
