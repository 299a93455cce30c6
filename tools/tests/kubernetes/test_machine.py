"""A machine that cannot run the cluster says why, by an exit status too; a cluster that is not ours is safe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.kubernetes import __main__ as command
from tools.kubernetes import host, lifecycle
from tools.kubernetes.api import Cluster
from tools.kubernetes.errors import ClusterError, MachineError
from tools.kubernetes.layout import Layout
from tools.kubernetes.lifecycle import Lifecycle
from tools.kubernetes.node import Node


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "state", tmp_path / "cache")


def test_without_root_it_says_so_and_exits_with_three(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(command, "default_layout", lambda: layout)
    assert command.main(["up"]) == command.EXIT_CANNOT == 3
    assert "run as root, or use KUBECONFIG" in capsys.readouterr().out


def test_without_go_and_programs_it_names_what_is_to_be_built(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(host, "hierarchies", lambda _: [Path("/sys/fs/cgroup")])
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(MachineError, match=r"kubernetes, helm, coredns.*Go .* is needed"):
        host.check_machine(layout)


def test_a_container_without_rights_is_told_apart_from_a_machine(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(MachineError, match="not privileged"):
        host.check_machine(layout)


@pytest.mark.parametrize(("failing", "reason"), [("--mount -- true", "mount namespaces"), ("overlay", "no overlay")])
def test_what_a_container_may_not_do_is_tried_first(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: str, reason: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(host, "hierarchies", lambda _: [Path("/sys/fs/cgroup")])
    unshare = tmp_path / "unshare"
    unshare.write_text(f'#!/bin/sh\ncase "$*" in *"{failing}"*) exit 1;; esac\n')
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(MachineError, match=reason):
        host.check_machine(layout)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unshare"], "the trial leaves nothing"


def test_a_kernel_without_a_table_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    iptables = tmp_path / "iptables"
    iptables.write_text('#!/bin/sh\nfor word; do [ "$word" = raw ] && { echo "no table" >&2; exit 3; }; done; exit 0\n')
    iptables.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(MachineError, match="no raw table"):
        host.check_network()


def test_what_is_missing_is_named_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("ctr", "containerd", "ip") else name)
    monkeypatch.setattr(host, "CNI_DIRECTORIES", (Path("/nowhere"),))
    assert host.missing_packages() == ["containerd", "containernetworking-plugins", "iproute2"]


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lifecycle]:
    """The cluster of another checkout, which claimed this machine."""
    owner = tmp_path / "owner"
    monkeypatch.setattr(lifecycle, "OWNER", owner)
    monkeypatch.setattr(host, "check_network", lambda: None)
    found = Lifecycle(Layout(tmp_path / "other", tmp_path / "cache"), print)
    with found.locked():
        owner.write_text(str(tmp_path / "other"))
    yield found
    for name in found.processes.names():
        found.processes.end(name, grace_s=0)


def test_a_machine_that_another_checkout_uses_is_left_to_it(layout: Layout, other: Lifecycle) -> None:
    other.processes.start("etcd", ["sleep", "300"])
    prepare = next(step for step in Lifecycle(layout, print).steps() if step.title == "network")
    with pytest.raises(ClusterError, match=r"the cluster of .*/other uses this machine: run its `down` first"):
        prepare.act()
    assert other.processes.is_running("etcd")


def test_a_machine_on_which_another_checkout_just_starts_is_left_to_it(layout: Layout, other: Lifecycle) -> None:
    prepare = next(step for step in Lifecycle(layout, print).steps() if step.title == "network")
    with other.locked(), pytest.raises(ClusterError, match=r"the cluster of .*/other uses this machine"):
        prepare.act()


def test_down_where_nothing_is_up_does_nothing(layout: Layout) -> None:
    Lifecycle(layout, print).down()
    assert not layout.state.exists()


def test_an_error_of_one_node_does_not_keep_the_others_from_their_turn(layout: Layout) -> None:
    seen: list[str] = []

    def act(node: Node) -> None:
        seen.append(node.name)
        if node.name == "node1":
            raise ClusterError("broken")

    with pytest.raises(ClusterError, match="broken"):
        Lifecycle(layout, print).on_nodes(act)
    assert sorted(seen) == ["node1", "node2", "node3"]


def test_nodes_of_a_cluster_that_is_not_ours_cannot_be_struck(tmp_path: Path) -> None:
    cluster = Cluster.find({"KUBECONFIG": str(tmp_path / "theirs")})
    assert not cluster.is_ours
    for strike in (cluster.kill_node, cluster.start_node, cluster.delete_node):
        with pytest.raises(ClusterError, match="is not ours"):
            strike(1)


def test_there_is_no_fourth_node(layout: Layout) -> None:
    with pytest.raises(ClusterError, match="nodes are 1 to 3"):
        Cluster(layout).is_node_running(4)
