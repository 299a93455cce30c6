"""An etcd that never got a volume is removed, and one that may have data is not."""

from __future__ import annotations

import pytest
from seriatim_operator.etcd.stranded import HasVolumesError, StillThereError, remove_stranded

from ..memory_kube import MemoryKube

NAME = "seriatim-etcd"


def etcd(*volumes: str) -> MemoryKube:
    """An API with an etcd whose members have these volumes; empty: none."""
    kube = MemoryKube("shop")
    kube.put({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": NAME}})
    for number, volume in enumerate(volumes):
        spec = {"volumeName": volume} if volume else {}
        name = f"data-{NAME}-{number}"
        kube.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})
    return kube


async def test_without_volumes_all_is_removed() -> None:
    kube = etcd("", "", "")
    await remove_stranded(kube, "shop", NAME, 3)
    assert kube.objects == {}
    await remove_stranded(kube, "shop", NAME, 3)  # a second try of the hook


async def test_one_volume_keeps_all() -> None:
    kube = etcd("", "pv-1", "")
    with pytest.raises(HasVolumesError, match="data-seriatim-etcd-1 has a volume"):
        await remove_stranded(kube, "shop", NAME, 3)
    assert len(kube.objects) == 4
    assert kube.writes == []


async def test_a_claim_that_stays_is_told() -> None:
    kube = etcd("", "")
    kube.objects["PersistentVolumeClaim", "shop", f"data-{NAME}-0"]["metadata"]["finalizers"] = ["protection"]
    with pytest.raises(StillThereError, match="data-seriatim-etcd-0 is still there"):
        await remove_stranded(kube, "shop", NAME, 2, gone_s=0.0, look_s=0.0)
