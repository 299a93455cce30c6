"""Which cgroup hierarchies a machine has."""

from __future__ import annotations

from pathlib import Path

from tools.kubernetes.cgroups import hierarchies

V1 = """\
tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
V2 = """\
proc /proc proc rw 0 0
cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime 0 0
"""


def test_version_one_has_a_hierarchy_for_each_controller() -> None:
    assert hierarchies(V1) == [Path("/sys/fs/cgroup") / name for name in ("cpu", "freezer", "unified")]


def test_version_two_has_one() -> None:
    assert hierarchies(V2) == [Path("/sys/fs/cgroup")]


def test_a_machine_may_have_none() -> None:
    assert hierarchies("proc /proc proc rw 0 0\n") == []
