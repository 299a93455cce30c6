"""The interfaces of pods on the host, which must not outlive what is known of their addresses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.kubernetes import network
from tools.kubernetes.cgroups import Cgroup
from tools.kubernetes.errors import ClusterError
from tools.kubernetes.layout import Layout
from tools.kubernetes.node import Node
from tools.kubernetes.processes import Processes


class Host:
    """The interfaces of a host. The kernel removes those in `vanishing` while they are deleted; `stuck` ones stay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *interfaces: str) -> None:
        self.interfaces = set(interfaces)
        self.vanishing: set[str] = set()
        self.stuck: set[str] = set()
        monkeypatch.setattr(network, "run", self._run)
        monkeypatch.setattr(network, "succeeds", self._succeeds)
        monkeypatch.setattr(Cgroup, "pids", lambda _cgroup: set())  # a cluster may run on this machine

    def _run(self, argv: Sequence[str]) -> str:
        assert argv == ["ip", "-json", "route", "show", "root", "10.88.2.0/24"]
        return json.dumps([{"dst": f"10.88.2.1{place}", "dev": name} for place, name in enumerate(self.interfaces)])

    def _succeeds(self, argv: Sequence[str]) -> bool:
        assert argv[:2] == ["ip", "link"]
        action, name = argv[2:]
        is_there = name in self.interfaces
        if action == "delete":
            self.interfaces -= {name} - self.stuck
            return is_there and name not in self.vanishing | self.stuck
        return is_there


def node(tmp_path: Path) -> Node:
    layout = Layout(tmp_path, tmp_path)
    return Node(layout, 2, Processes(layout))


def test_routes_of_pods_when_their_node_loses_its_disks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = Host(monkeypatch, "veth1", "veth2", "seri2")
    host.vanishing = {"veth2"}
    node(tmp_path).wipe()
    assert host.interfaces == {"seri2"}


def test_an_interface_that_cannot_be_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = Host(monkeypatch, "veth1")
    host.stuck = {"veth1"}
    with pytest.raises(ClusterError, match="veth1 cannot be removed"):
        node(tmp_path).wipe()
