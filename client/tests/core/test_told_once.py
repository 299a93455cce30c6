"""An application is notified once of each message that is gone, whatever servers report."""

from __future__ import annotations

from typing import Literal

import pytest
from seriatim._core.consumer import PartitionConsumer
from seriatim._core.consumer_types import (
    Connected,
    ConsumerConfig,
    Dropped,
    GapDeclared,
    GapFound,
    Joined,
    Place,
    Resolved,
    SegmentEnded,
    Timer,
)
from seriatim._core.joining import DROPPED
from seriatim._core.keyed_consumer import KeyedPartitionConsumer
from seriatim_api.ids import make_offset as at

Core = PartitionConsumer | KeyedPartitionConsumer
LOST = "declared lost"


def join(core: Core, segment: int, epoch: int = 1, begun_by: Literal["rewind", "skip"] | None = None) -> None:
    """The server of a segment answers the join, and the consumer group is at its beginning."""
    core.step(Joined(core.subscription, True, segment, 0, 7, epoch, 3 + segment, begun_by=begun_by), 0)


def begun(kind: type[Core]) -> Core:
    core = kind(ConsumerConfig())
    core.step(Timer(), 0)
    core.step(Resolved(Place(2, "a:1", 5)), 0)
    core.step(Connected("a:1", 3), 0)
    join(core, 2)
    return core


def gaps(core: Core, *events: GapDeclared | Dropped) -> list[GapFound]:
    return [effect for event in events for effect in core.step(event, 0) if isinstance(effect, GapFound)]


def cross(core: Core) -> None:
    """The consumer group continues to segment 3, before a message is acknowledged."""
    core.step(SegmentEnded(core.subscription, 2, 0, 3, "b:1"), 0)
    core.step(Connected("b:1", 4), 0)
    join(core, 3)


both = pytest.mark.parametrize("kind", [PartitionConsumer, KeyedPartitionConsumer])


@both
def test_loss_that_the_next_server_tells_again_is_told_once(kind: type[Core]) -> None:
    """Rule `told-by-one-server`."""
    core = begun(kind)
    assert gaps(core, GapDeclared(1, 1, 4, LOST)) == [GapFound(1, 4, LOST)]
    cross(core)
    assert gaps(core, GapDeclared(2, 1, 4, LOST)) == []
    assert gaps(core, GapDeclared(2, 1, 2, LOST)) == [GapFound(1, 2, LOST, at(1, 4))], "it has grown"


@both
def test_drop_that_the_next_server_tells_again_is_told_once(kind: type[Core]) -> None:
    core = begun(kind)
    assert gaps(core, Dropped(1, at(1, 8), 2, 0, 27)) == [GapFound(1, 8, DROPPED, at(2, 0), 27)]
    cross(core)
    assert gaps(core, Dropped(2, at(1, 8), 3, 0, 45)) == [GapFound(2, 0, DROPPED, at(3, 0), 18)]


@both
def test_drop_without_a_number_is_told_around_what_was_told(kind: type[Core]) -> None:
    """The server does not know how many messages segment 1 had."""
    core = begun(kind)
    assert gaps(core, Dropped(1, at(2, 2), 2, 3, 1)) == [GapFound(2, 2, DROPPED, at(2, 3), 1)]
    assert gaps(core, Dropped(1, at(1, 37), 2, 3, 0)) == [GapFound(1, 37, DROPPED, at(2, 2))]


@both
def test_drop_around_a_loss_is_told_without_it(kind: type[Core]) -> None:
    core = begun(kind)
    cross(core)
    gaps(core, GapDeclared(2, 2, 0, LOST))
    assert gaps(core, Dropped(2, at(1, 8), 3, 5, 32)) == [
        GapFound(1, 8, DROPPED, at(2, 0), 27),
        GapFound(3, 0, DROPPED, at(3, 5), 5),
    ]


@both
@pytest.mark.parametrize(
    ("epoch", "begun_by", "told"),
    [(2, "rewind", 2), (2, None, 1), (3, None, 2)],
    ids=["rewound", "lost its place", "perhaps rewound in between"],
)
def test_gap_that_is_read_anew_is_told_anew(
    kind: type[Core], epoch: int, begun_by: Literal["rewind"] | None, told: int
) -> None:
    """The consumer group begins at 2:0 again. 1:4 is gone, and it is reported again if an administrator may have asked
    for it."""
    core = begun(kind)
    told_first = gaps(core, GapDeclared(1, 1, 4, LOST), Dropped(1, at(2, 0), 2, 5, 5))
    join(core, 2, epoch, begun_by)
    assert gaps(core, GapDeclared(1, 1, 4, LOST), Dropped(1, at(2, 0), 2, 5, 5)) == told_first[-told:]
