"""The parts of the suite that need no cluster: the choice of cases, values of the chart, a container's processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.kubernetes import images
from e2e.kubernetes.cases import CASES, INSTALL, chosen
from e2e.kubernetes.machines import container_pids, kubelet_pid
from e2e.kubernetes.place import condition, is_true
from e2e.kubernetes.release import free_namespace, merged, topic_manifest
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import ROOT


def test_quick_is_a_choice_in_the_order_of_all() -> None:
    quick, everything = chosen([], quick=True), chosen([], quick=False)

    assert [case.name for case in everything] == [case.name for case in CASES]
    assert quick == [case for case in everything if case.quick]
    assert {"topic applied", "master pod deleted", "node lost", "settings rolled"} <= {case.name for case in quick}
    assert INSTALL not in everything, "it comes before them by itself"


def test_only_finds_cases_by_a_part_of_their_name_quick_or_not() -> None:
    assert [case.name for case in chosen(["drained"], quick=True)] == ["node drained"]


def test_only_that_finds_nothing_says_what_there_is() -> None:
    with pytest.raises(ValueError, match="no case is called moon") as error:
        chosen(["drained", "moon"], quick=False)
    assert "node lost" in str(error.value)


def test_case_names_are_distinct() -> None:
    names = [case.name for case in (INSTALL, *CASES)]
    assert len(names) == len(set(names))


def test_values_are_merged_name_by_name_and_lists_replaced() -> None:
    base = {"etcd": {"members": 3, "args": [1, 2]}, "keep": True}

    assert merged(base, {"etcd": {"args": []}, "new": 1}) == {
        "etcd": {"members": 3, "args": []},
        "keep": True,
        "new": 1,
    }
    assert base["etcd"] == {"members": 3, "args": [1, 2]}, "the base stays as it is"


def test_a_namespace_that_nobody_has() -> None:
    assert free_namespace(["default"]) == "e2e-1"
    assert free_namespace(["e2e-1", "e2e-3"]) == "e2e-2"


def test_a_condition_counts_only_for_the_newest_generation() -> None:
    topic = topic_manifest("shop", "payments", 4)
    topic["metadata"]["generation"] = 2
    topic["status"] = {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}

    assert not is_true(topic, "Ready")
    assert is_true(topic, "Ready", current=False)
    assert not is_true(topic, "Other")
    assert condition(None, "Ready") == {}


def pod_with(container: str) -> dict[str, Any]:
    statuses = [{"containerID": f"containerd://{container}"}] if container else []
    return {"metadata": {"name": "orders-g0-0-abcd"}, "status": {"containerStatuses": statuses}}


def test_a_container_is_found_by_its_id_in_the_cgroups_of_processes(tmp_path: Path) -> None:
    for pid, container in (("12", "a" * 64), ("7", "a" * 64), ("30", "b" * 64), ("self", "a" * 64)):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cgroup").write_text(f"4:memory:/kubelet/pod1/{container}\n")
    (tmp_path / "99").mkdir()  # a process that ended while the test's code read it

    assert container_pids(pod_with("a" * 64), tmp_path) == [7, 12]


def test_a_kubelet_is_found_by_its_kubeconfig(tmp_path: Path) -> None:
    for pid, words in (
        ("3", ["/bin/sh", "--kubeconfig=/state/node1.kubeconfig"]),
        ("5", ["/cache/bin/kubelet", "--v=1", "--kubeconfig=/state/node1.kubeconfig"]),
        ("8", ["/cache/bin/kubelet", "--kubeconfig=/other/node1.kubeconfig"]),
    ):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_text("\0".join(words) + "\0")
    (tmp_path / "9").mkdir()  # a process that ended while the test's code read it

    assert kubelet_pid("/state/node1.kubeconfig", tmp_path) == 5
    with pytest.raises(ClusterError, match="no kubelet runs with"):
        kubelet_pid("/state/node2.kubeconfig", tmp_path)


def test_a_container_that_does_not_run_is_not_struck() -> None:
    with pytest.raises(ClusterError, match="no process on this machine"):
        container_pids(pod_with("f" * 64))
    with pytest.raises(ClusterError, match="no container"):
        container_pids(pod_with(""))


def test_a_fingerprint_changes_with_a_source_and_not_with_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "api" / "src"
    source.mkdir(parents=True)
    (source / "a.py").write_text("one")
    monkeypatch.setattr(images, "ROOT", tmp_path)
    monkeypatch.setattr(images, "SOURCES", ("api/src",))
    before = images.fingerprint()

    (source / "a.pyc").write_text("cache")
    assert images.fingerprint() == before
    (source / "a.py").write_text("two")
    assert images.fingerprint() != before


def test_images_under_a_tag_without_a_chart_of_their_own_use_the_trees_chart() -> None:
    assert images.of_tag("nobody-made-this").chart == ROOT
