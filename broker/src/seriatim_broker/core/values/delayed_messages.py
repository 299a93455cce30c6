"""What the core asks for and learns about delayed messages: effects, and the events that answer them."""

from __future__ import annotations

from dataclasses import dataclass

from seriatim_api.batch import BatchHeader
from seriatim_api.delayed import CancelOutcome
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId

from .delayed import Amount, Span, VolleyRow
from .log import DueRow

# ---- effects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadDue:
    """Read the next rows of delayed batches of a segment, by due time and index; answered by `DueRead(serial)`.

    Attributes:
        serial: Comes back in the answer.
        partition: The partition.
        segment_no: The segment.
        after: Rows above this due time and index.
        count_max: Maximum number of rows.
    """

    serial: int
    partition: PartitionId
    segment_no: int
    after: tuple[int, int]
    count_max: int


@dataclass(frozen=True, slots=True)
class ReadPending:
    """Read rows of delayed batches of a segment by index, from one on; answered by `PendingRead(serial)`."""

    serial: int
    partition: PartitionId
    segment_no: int
    from_index: int
    count_max: int


@dataclass(frozen=True, slots=True)
class ReadVolley:
    """Read delayed messages, and make the body of a volley of them; answered by `VolleyRead(serial)`.

    `is_numbered`: the volley has a number, so all its messages are in one body. If not, they are as many as fit.
    """

    serial: int
    partition: PartitionId
    segment_no: int
    spans: tuple[Span, ...]
    is_numbered: bool = False


@dataclass(frozen=True, slots=True)
class FindDelayed:
    """Read the header of the delayed batch that has an index; answered by `DelayedFound(serial)`."""

    serial: int
    partition: PartitionId
    segment_no: int
    index: int


@dataclass(frozen=True, slots=True)
class FireVolleys:
    """Have the master of the partition append volleys, in this order; answered by `VolleysStored(serial)`.

    `batches`: the header and the body of each.
    """

    serial: int
    partition: PartitionId
    segment_no: int
    batches: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class ReadFired:
    """Read what was fired of a segment in the logs of the partition; answered by `FiredRead(serial)`.

    Attributes:
        serial: Comes back in the answer.
        partition: The partition.
        segment_no: The segment.
        epoch: The producer epoch of the fence that the server has stored.
        chain_epoch: The chain record that is read is of this epoch, or a later one.
    """

    serial: int
    partition: PartitionId
    segment_no: int
    epoch: int
    chain_epoch: int


@dataclass(frozen=True, slots=True)
class DelayedCancelled:
    """The answer to `CancelDelayed`.

    Attributes:
        request: The request.
        outcome: What became of the message; None: it is not known, and `error` says why.
        error: Why; None if the outcome is known.
        server: The broker that serves the segment of the message, and must be asked; empty: this one does, or none.
        offset: Where the message was stored earlier, and must be cancelled; 0: here.
        may_be_moved: The outcome holds only if the message was not moved to a later place. If it was, that is asked.
    """

    request: int
    outcome: CancelOutcome | None
    error: SeriatimError | None
    server: str = ""
    offset: int = 0
    may_be_moved: bool = False


@dataclass(frozen=True, slots=True)
class FiringListed:
    """The answer to `ListFiring`.

    Attributes:
        request: The request.
        segments: Those with delayed messages that are served here. All rows up to the due time and the index with each
            are done with.
        unserved: Those that are not served here now.
        cancelled_count: How many messages of the segments were cancelled.
    """

    request: int
    segments: tuple[tuple[int, tuple[int, int]], ...]
    unserved: tuple[int, ...]
    cancelled_count: int


@dataclass(frozen=True, slots=True)
class CompleteListed:
    """The answer to `ListComplete`: those of the segments of which this member has everything that is committed.

    `lengths`: their numbers, and the indexes below which all is committed.
    """

    request: int
    lengths: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DelayedFiltered:
    """The answer to `FilterDelayed`: rows with what is left of their messages, the first index of these, and how many.

    Attributes:
        request: The request.
        rows: The rows of which something is left.
        error: Why there are none; None: all are there.
    """

    request: int
    rows: tuple[DueRow, ...]
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class PendingFound:
    """The answer to `AskPending`: nothing below the index `first` is delayed any more, unless there is an `error`."""

    request: int
    first: int
    error: SeriatimError | None


# ---- events ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueRead:
    """The answer to `ReadDue`; `rows` is None if the read failed."""

    serial: int
    partition: PartitionId
    segment_no: int
    rows: tuple[DueRow, ...] | None


@dataclass(frozen=True, slots=True)
class PendingRead:
    """The answer to `ReadPending`; `rows` is None if the read failed."""

    serial: int
    partition: PartitionId
    segment_no: int
    rows: tuple[DueRow, ...] | None


@dataclass(frozen=True, slots=True)
class VolleyRead:
    """The answer to `ReadVolley`; `row` is None if the read failed."""

    serial: int
    partition: PartitionId
    segment_no: int
    row: VolleyRow | None
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class DelayedFound:
    """The answer to `FindDelayed`; `header` is None if the batch at this index is not a delayed one."""

    serial: int
    partition: PartitionId
    segment_no: int
    header: BatchHeader | None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class VolleysStored:
    """The answer to `FireVolleys`: the first `stored_count` batches are stored, as safely as acknowledged messages.

    `error`: why the next one is not known to be stored; None if there is none.
    """

    partition: PartitionId
    segment_no: int
    serial: int
    stored_count: int
    error: SeriatimError | None


@dataclass(frozen=True, slots=True)
class FiredRead:
    """The answer to `ReadFired`.

    Attributes:
        serial: That of the question.
        partition: The partition.
        segment_no: The segment.
        fired: The messages of the segment that are in volleys in the log.
        last_epoch: The highest producer epoch of these, and of fences of other servers; 0: there is none.
        error: Why it is not known; None: that is all.
        moved: Those of `fired` that were moved.
    """

    serial: int
    partition: PartitionId
    segment_no: int
    fired: tuple[Span, ...]
    last_epoch: int
    error: SeriatimError | None
    moved: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelDelayed:
    """A client cancels the delayed message that was stored first at this offset; answered by `DelayedCancelled`."""

    request: int
    partition: PartitionId
    offset: int


@dataclass(frozen=True, slots=True)
class ListFiring:
    """Which of these segments have delayed messages that are served here? Answered by `FiringListed`."""

    request: int
    partition: PartitionId
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListComplete:
    """Of which of these segments has this member everything that is committed? Answered by `CompleteListed`."""

    request: int
    partition: PartitionId
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FilterDelayed:
    """What is left of these rows of a segment that is served here? Answered by `DelayedFiltered`."""

    request: int
    partition: PartitionId
    segment_no: int
    rows: tuple[DueRow, ...]


@dataclass(frozen=True, slots=True)
class DelayedPending:
    """How much waits in a partition, as the master of its open segment has it from the servers of all segments."""

    partition: PartitionId
    segment_no: int
    amount: Amount


@dataclass(frozen=True, slots=True)
class AskPending:
    """Below which index is nothing delayed any more, in a segment that is served here? Answered by `PendingFound`.

    `move_below`: what is delayed below this index is to be moved; 0: nothing is.
    """

    request: int
    partition: PartitionId
    segment_no: int
    move_below: int = 0


DelayedEvent = (
    DueRead
    | PendingRead
    | AskPending
    | VolleyRead
    | DelayedFound
    | VolleysStored
    | FiredRead
    | CancelDelayed
    | ListFiring
    | ListComplete
    | FilterDelayed
    | DelayedPending
)
