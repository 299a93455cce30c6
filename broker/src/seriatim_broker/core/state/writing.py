"""What a broker knows of batches that it is about to append: those of publications, and those that a planned switch
holds back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from seriatim_api import errors
from seriatim_api.publications import StagedBatches

from ..state.broker import BrokerState
from ..values.events import Append, CarryOut
from ..values.log import Batch
from ..values.states import NOTHING, State

FETCH_PAUSE_US = 50_000


class Wait(NamedTuple):
    """A request that waits for a publication, and its deadline."""

    request: int
    deadline_us: int


class Fetched(NamedTuple):
    """A staged batch in memory, and whether this member's disk has it."""

    batch: Batch
    is_here: bool


class Carrying(State):
    """A publication that this master carries out on one partition."""

    __slots__ = (
        "asked",
        "batches",
        "due_us",
        "fetched",
        "fetching",
        "first_offset",
        "gone",
        "held_bytes",
        "incarnation",
        "is_decided",
        "is_missing",
        "lost_rows",
        "manifest",
        "passed",
        "pause_us",
        "producer",
        "segment_no",
        "sequence",
        "uncommitted",
        "waits",
        "writer",
    )

    def __init__(self, event: CarryOut, segment_no: int) -> None:
        self.incarnation = event.incarnation
        self.writer = event.writer
        self.producer = event.producer
        self.sequence = event.sequence
        self.manifest = event.manifest
        self.batches: StagedBatches = event.batches
        self.segment_no = segment_no
        self.waits: tuple[Wait, ...] = ()
        self.asked = 0  # serial of the read of the writer's record that is under way; 0: none
        self.is_decided = False  # the writer's record said DECIDED when it was read
        self.is_missing = False  # no member gave the next batch
        self.pause_us = FETCH_PAUSE_US  # before the next try to get that batch
        self.due_us = 0  # time of that try
        self.held_bytes = 0  # of `fetched` and `uncommitted`, in memory
        self.uncommitted: tuple[tuple[int, int], ...] = ()  # (index after it, size) of each appended batch
        self.fetching: Mapping[int, int] = NOTHING  # serial -> batch
        self.fetched: Mapping[int, Fetched] = NOTHING  # by number of the batch
        self.gone: Mapping[int, bool] = NOTHING  # numbers of the batches that were declared lost
        self.passed = 0  # all batches with lower numbers were appended, or are lost
        self.lost_rows = 0
        self.first_offset: int | None = None

    @property
    def key(self) -> tuple[bytes, int]:
        """The name of the publication on its partition: producer id and sequence."""
        return self.producer, self.sequence

    @property
    def rows(self) -> Sequence[int]:
        """The number of the first row of each batch; the last entry is the number of all rows."""
        return self.batches.first_rows


@dataclass(slots=True, eq=False)
class Quiescence(State):
    """The master holds new batches back, in order, until a planned switch is done or given up."""

    asked_by: str
    switch: bytes
    deadline_us: int
    queued: list[Append] = field(default_factory=list)
    reported: bool = False

    def is_expected(self, broker: BrokerState) -> bool:
        """Whether the plan may still end in time, so that a batch is worth holding back after the fence.

        It is then refused with the new route. If it were refused at once, its producer would have to ask another broker
        for the route, and that broker would read the chain record first.
        """
        return broker.now.mono_us < self.deadline_us

    def hold(self, broker: BrokerState, event: Append) -> None:
        """Keep a batch until the plan is over.

        Above `queued_appends_max` the batch is kept as a refusal, in its place in the producer run.
        """
        if len(self.queued) >= broker.config.queued_appends_max:
            overload = errors.OverloadedError(
                "the partition is about to move, and too many batches wait for that: this one is not stored; send it "
                "again in 50 ms",
                retry_after_ms=50,
            )
            event = replace(event, body=b"", refuse=overload)
        self.queued.append(event)
