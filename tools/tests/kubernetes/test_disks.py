"""What the keeper of the disks does, and above all what it leaves alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.kubernetes.disks import Make, Offer, Volume, Wipe, Withdraw, manifest, plan, split_volume_name, volume_name
from tools.kubernetes.layout import DISKS_PER_NODE, STORAGE_CLASS, NodeLayout, default_layout

FULL = [f"disk-{index}" for index in range(DISKS_PER_NODE)]


def bound(node: str, *disks: str) -> list[Volume]:
    return [Volume(node, disk, "Bound", deletes=True) for disk in disks]


def test_a_new_node_gets_its_disks_and_offers_what_it_has() -> None:
    assert plan({"node1": []}, []) == [Make("node1")] * DISKS_PER_NODE
    assert plan({"node1": FULL}, []) == [Offer("node1", disk) for disk in FULL]


def test_what_is_offered_or_in_use_is_left_alone() -> None:
    assert plan({"node1": FULL}, bound("node1", *FULL)) == []
    assert plan({"node1": FULL}, [Volume("node1", disk, "Available", deletes=True) for disk in FULL]) == []


@pytest.mark.parametrize("phase", ["Released", "Failed"])
def test_a_disk_that_was_given_back_is_wiped(phase: str) -> None:
    volumes = [*bound("node1", *FULL[1:]), Volume("node1", FULL[0], phase, deletes=True)]
    assert plan({"node1": FULL}, volumes) == [Wipe("node1", FULL[0])]


def test_a_disk_that_is_to_be_retained_is_not_wiped() -> None:
    volumes = [*bound("node1", *FULL[1:]), Volume("node1", FULL[0], "Released", deletes=False)]
    assert plan({"node1": FULL}, volumes) == []


def test_a_node_without_power_is_left_alone() -> None:
    assert plan({}, [Volume("node1", disk, "Released", deletes=True) for disk in FULL]) == []


def test_the_volume_of_a_lost_disk_is_withdrawn_unless_somebody_holds_it() -> None:
    volumes = [
        *bound("node1", *FULL, "disk-lost-and-held"),
        Volume("node1", "disk-lost", "Available", deletes=True),
        Volume("node1", "disk-lost-and-released", "Released", deletes=False),
    ]
    assert plan({"node1": FULL}, volumes) == [
        Withdraw("node1", "disk-lost"),
        Withdraw("node1", "disk-lost-and-released"),
    ]


phases = st.sampled_from(["Available", "Bound", "Released", "Failed", "Pending"])
worlds = st.dictionaries(
    st.sampled_from(["node1", "node2"]),
    st.dictionaries(st.integers(0, 9).map(lambda index: f"disk-{index}"), phases, max_size=DISKS_PER_NODE),
    max_size=2,
)


@given(disks=worlds, volumes=worlds, deletes=st.booleans())
def test_it_comes_to_rest_and_never_touches_what_is_bound(
    disks: Mapping[str, Mapping[str, str]], volumes: Mapping[str, Mapping[str, str]], deletes: bool
) -> None:
    there = {node: list(names) for node, names in disks.items()}
    offered = {(node, disk): phase for node, names in volumes.items() for disk, phase in names.items()}
    held = {key for key, phase in offered.items() if phase == "Bound"}
    made = 0
    for _ in range(5):
        actions = plan(there, [Volume(*key, phase, deletes) for key, phase in offered.items()])
        for action in actions:
            match action:
                case Make(node):
                    there[node].append(f"disk-new-{made}")
                    made += 1
                case Offer(node, disk):
                    offered[node, disk] = "Available"
                case Wipe(node, disk):
                    assert (node, disk) not in held
                    there[node].remove(disk)
                    del offered[node, disk]
                case Withdraw(node, disk):
                    assert (node, disk) not in held
                    del offered[node, disk]
        if not actions:
            break
    assert not actions, "still not at rest"
    assert all(len(names) == DISKS_PER_NODE for names in there.values())
    assert all((node, disk) in offered for node, names in there.items() for disk in names)


def test_a_volume_is_bound_to_its_node_and_its_name_says_which_disk_it_is() -> None:
    node: NodeLayout = default_layout().node(2)
    volume = manifest(node, "disk-0a")
    name = volume["metadata"]["name"]  # type: ignore[index]
    assert split_volume_name(name) == ("node2", "disk-0a")
    assert name == volume_name("node2", "disk-0a")
    spec = volume["spec"]
    assert isinstance(spec, dict)
    assert spec["storageClassName"] == STORAGE_CLASS
    assert spec["local"] == {"path": str(node.disks / "disk-0a")}
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["node2"]
