"""What a broker knows of batches that it is about to append: publications, and a planned switch that is near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from seriatim_api import errors
from seriatim_api.publications import StagedBatches

from ..state.broker import BrokerState
from ..values.events import Append, CarryOut
from ..values.log import Batch
from ..values.states import NOTHING, State

FETCH_PAUSE_US = 50_000


class Wait(NamedTuple):
    """Who asked, and until when they wait."""

    request: int
    deadline_us: int


class Fetched(NamedTuple):
    """A staged batch in memory, and whether this member's disk has it."""

    batch: Batch
    is_here: bool


class Carrying(State):
    """A publication that is carried out on one partition."""

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
        self.asked = 0  # the serial of the question to the coordinator that is under way
        self.is_decided = False  # as the record said when it was read
        self.is_missing = False  # no member gave the batch that is next
        self.pause_us = FETCH_PAUSE_US  # before it is asked for again
        self.due_us = 0  # when
        self.held_bytes = 0  # in memory: of `fetched` and `uncommitted`
        self.uncommitted: tuple[tuple[int, int], ...] = ()  # index behind each batch that was appended, and its size
        self.fetching: Mapping[int, int] = NOTHING  # serial -> batch
        self.fetched: Mapping[int, Fetched] = NOTHING  # by number
        self.gone: Mapping[int, bool] = NOTHING  # numbers of batches that were declared lost
        self.passed = 0  # all batches below were appended, or were lost
        self.lost_rows = 0
        self.first_offset: int | None = None

    @property
    def key(self) -> tuple[bytes, int]:
        """What it is called on its partition."""
        return self.producer, self.sequence

    @property
    def rows(self) -> Sequence[int]:
        """The number of the first row of each batch, and last the number of rows."""
        return self.batches.first_rows


class Quiescence(State):
    """A planned switch is near: new batches wait, in order, until it has happened or is given up."""

    __slots__ = ("asked_by", "deadline_us", "queued", "reported", "switch")

    def __init__(self, asked_by: str, switch_id: bytes, deadline_us: int) -> None:
        self.asked_by = asked_by
        self.switch = switch_id
        self.deadline_us = deadline_us
        self.queued: list[Append] = []
        self.reported = False

    def hold(self, broker: BrokerState, event: Append) -> None:
        """Keep a batch until the plan is over; one too many is kept as a refusal, in its place in the run."""
        if len(self.queued) >= broker.config.queued_appends_max:
            overload = errors.OverloadedError("a planned switch is near", retry_after_ms=50)
            event = replace(event, body=b"", refuse=overload)
        self.queued.append(event)
