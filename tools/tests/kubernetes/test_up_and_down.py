"""A cluster of its own, up and down: afterwards the machine is as before, no matter how far `up` came."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.kubernetes.base_image import archive_path
from tools.kubernetes.cgroups import MOUNTS, hierarchies
from tools.kubernetes.errors import ClusterError, MachineError
from tools.kubernetes.kube import kubectl
from tools.kubernetes.layout import Layout, cache_directory
from tools.kubernetes.lifecycle import OWNER, Lifecycle
from tools.kubernetes.network import SYSCTLS
from tools.kubernetes.private_mounts import PRIVATE
from tools.kubernetes.processes import is_alive
from tools.kubernetes.programs import ALL, is_built

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]


@pytest.fixture
def lifecycle(tmp_path: Path) -> Iterator[Lifecycle]:
    layout = Layout(tmp_path / "state", cache_directory())
    found = Lifecycle(layout, print)
    try:
        found.check()
    except MachineError as error:
        pytest.skip(f"this machine cannot: {error}")
    if OWNER.exists() and not Lifecycle(Layout(Path(OWNER.read_text()), layout.cache), print).remove_if_dead():
        pytest.skip(f"the cluster of {OWNER.read_text()} is up on this machine")
    if not all(is_built(module, layout.bin) for module in ALL) or not archive_path(layout.cache).exists():
        pytest.skip("the cluster's programs are not built yet: `make e2e-cluster`")
    yield found
    found.down()


def traces() -> dict[str, object]:
    """Everything of the machine that a cluster changes."""

    def output(*argv: str) -> list[str]:
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return [line for line in text.splitlines() if not line.startswith(("#", ":"))]  # counters and dates

    mounts = (line.split()[1] for line in MOUNTS.read_text().splitlines())
    return {
        "interfaces": sorted(line.split(":")[1] for line in output("ip", "-o", "link")),
        "routes": output("ip", "route"),
        "rules": [line for line in output("iptables-save") if line.startswith("-A")],
        "mounts": sorted(path for path in mounts if "/containers/storage" not in path),  # buildah's own
        "cgroups": sorted(str(path) for mount in hierarchies(MOUNTS.read_text()) for path in mount.glob("seriatim*")),
        "settings": {name: (Path("/proc/sys") / name).read_text() for name in SYSCTLS},
        "directories": [path for path in PRIVATE if path.is_dir() and any(path.iterdir())],
        "owner": OWNER.exists(),
    }


def test_up_twice_and_down_leaves_nothing(lifecycle: Lifecycle) -> None:
    before = traces()
    lifecycle.up()
    records = list(lifecycle.processes.alive())
    lifecycle.up()
    assert list(lifecycle.processes.alive()) == records, "a second up starts nothing"
    assert all(len(node.cgroup.pids()) >= 3 for node in lifecycle.nodes)
    lifecycle.down()
    assert traces() == before
    assert [record.name for record in records if is_alive(record)] == []


def test_a_dead_node_and_a_dead_controller_come_back_with_the_next_up(lifecycle: Lifecycle) -> None:
    before = traces()
    lifecycle.up()
    lifecycle.node(2).kill()
    lifecycle.processes.end("scheduler")
    lifecycle.up()
    assert lifecycle.node(2).is_running
    assert lifecycle.processes.is_running("scheduler")
    lifecycle.down()
    assert traces() == before


@pytest.mark.parametrize("title", ["network", "certificates", "etcd and API server", "controllers, scheduler, DNS"])
def test_down_cleans_up_after_an_up_that_got_only_so_far(lifecycle: Lifecycle, title: str) -> None:
    before = traces()
    for step in lifecycle.steps():
        step.act()
        if step.title == title:
            break
    lifecycle.down()
    assert traces() == before


def test_down_cleans_up_when_a_node_did_not_start(lifecycle: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    before = traces()
    monkeypatch.setattr("tools.kubernetes.configs.kubelet_argv", lambda *_: ["false"])
    with pytest.raises(ClusterError, match="its kubelet or containerd ended"):
        lifecycle.up()
    monkeypatch.undo()
    lifecycle.down()
    assert traces() == before


def test_what_a_cluster_left_that_went_down_with_the_machine_is_removed(lifecycle: Lifecycle, tmp_path: Path) -> None:
    before = traces()
    lost = Lifecycle(Layout(tmp_path / "lost", cache_directory()), print)
    try:
        for step in lost.steps():
            step.act()
            if step.title == "nodes":
                break
        assert not lost.remove_if_dead()
        for node in lost.nodes:
            node.cgroup.kill()
        for record in lost.processes.alive():
            os.kill(record.pid, signal.SIGKILL)
        next(step for step in lifecycle.steps() if step.title == "network").act()
        assert not (tmp_path / "lost").exists()
        lifecycle.down()
        assert traces() == before
    finally:
        lost.down()


def test_who_is_nobody_may_do_nothing(lifecycle: Lifecycle, tmp_path: Path) -> None:
    for step in lifecycle.steps():
        step.act()
        if step.title == "etcd and API server":
            break
    layout = Layout(tmp_path / "state", cache_directory())
    assert kubectl(layout, "auth", "can-i", "*", "*").strip() == "yes"
    with pytest.raises(ClusterError, match=r"\nno$"):
        kubectl(layout, "auth", "can-i", "get", "secrets", "--as=somebody")
