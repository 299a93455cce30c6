"""The error catalogue: what can go wrong, by number.

Number and class are part of the contract; a text may be improved any day. `retriable` means that the same call may
succeed later without anybody changing anything. The mapping to gRPC is in `seriatim_api.status`, as data taken from
here.

    SeriatimError
    ├── RequestError            the peer's mistake: not retriable, nothing stored
    │   ├── BadRequestError 100, UnsupportedVersionError 101, IllegalNameError 102
    │   ├── MessageTooLargeError 110, BatchMismatchError 111, ChecksumMismatchError 112, IllegalMessageError 113
    │   └── UnknownTopicError 120, TopicExistsError 121, PartitionOutOfRangeError 122, UnknownGroupError 123, …
    ├── ProducerError           the producer's standing with a partition
    │   ├── ProducerFencedError 200, SequenceGapError 201, SequenceTooOldError 202, RunRefusedError 203, …
    │   └── WriterFencedError 210, WriterOwnedError 211, PublicationDiffersError 212, SequencePassedError 213, …
    ├── ClientFailureError 206  a bug inside the client: the producer or the consumer has ended
    ├── RoutingError            ask somewhere else: retriable
    │   └── NotServingError 300, SegmentMovedError 301, SegmentTruncatedError 302, OutcomeUnknownError 303, …
    ├── CapacityError           come back later: retriable
    │   └── OverloadedError 400, DiskFullError 401, TooManyStreamsError 402
    ├── ConsumerError           the consumer's standing with its group
    │   └── StaleTokenError 500, NotActiveError 501, StaleGroupEpochError 502, OrderViolationError 503,
    │       PositionUnknownError 504
    ├── UnavailableError        600 a peer or the coordinator did not answer in time: retriable
    │   └── CoordinatorUnavailableError 601, DeadlineExceededError 602, TlsHandshakeError 603
    ├── CoordinatorRefusedError 604  (a PreconditionError) the coordinator answers, and does not take writes
    ├── CoordinatorBehindError 605   (a PreconditionError) the coordinator has lost what was decided
    ├── CompactedError 610, LeaseNotFoundError 611   what was asked of the coordinator is gone for good
    └── StorageError            the disk: the process does not go on
        └── ForeignDiskError 700, NewerFormatError 701, OldDiskError 702, WipedDiskError 703, CorruptionError 704, …
"""

from __future__ import annotations

from typing import ClassVar


class SeriatimError(Exception):
    """Base of everything that Seriatim raises on purpose.

    Attributes:
        number: Which error it is, in every language and version.
        retriable: Whether the same call may succeed later.
        grpc_status: Name of the gRPC status code that carries it.
        outcome_known: For a send: True if nothing of the attempt was stored or ever will be.
        retry_after_ms: How long to wait before a retry, where the broker can tell; else None.
        details: What a program may want to read, as strings.
    """

    number: ClassVar[int] = 0
    retriable: ClassVar[bool] = False
    grpc_status: ClassVar[str] = "UNKNOWN"
    outcome_known: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_ms: int | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.details = {name: str(value) for name, value in details.items()}

    def __str__(self) -> str:
        return f"[{self.number}] {self.message}"


class RequestError(SeriatimError):
    """The peer sent what no state of the cluster would make right."""

    grpc_status = "INVALID_ARGUMENT"


class BadRequestError(RequestError):
    """The bytes are not a request of this protocol, or a field has no legal value."""

    number = 100


class UnsupportedVersionError(RequestError):
    """Protocol or header version that this broker does not speak."""

    number = 101
    grpc_status = "FAILED_PRECONDITION"


class IllegalNameError(RequestError):
    """A topic, group or cluster name that `ids.is_legal_name` refuses."""

    number = 102


class MessageTooLargeError(RequestError):
    """A batch or message over the limit of the topic or the broker."""

    number = 110


class BatchMismatchError(RequestError):
    """The header's count or length does not match the body."""

    number = 111


class ChecksumMismatchError(RequestError):
    """The body is not the one its checksum was made from."""

    number = 112
    grpc_status = "DATA_LOSS"


class IllegalMessageError(RequestError, TypeError, ValueError):
    """A part of a message has a type or a value that a message cannot hold; the client took nothing.

    It is a `TypeError` and a `ValueError` too, which earlier versions raised in its place.
    """

    number = 113


class UnknownTopicError(RequestError):
    """No topic of that name (or no partition of that id)."""

    number = 120
    grpc_status = "NOT_FOUND"


class TopicExistsError(RequestError):
    """A topic of that name is there already."""

    number = 121
    grpc_status = "ALREADY_EXISTS"


class PartitionOutOfRangeError(RequestError):
    """The topic has fewer partitions."""

    number = 122
    grpc_status = "OUT_OF_RANGE"


class UnknownGroupError(RequestError):
    """No consumer group of that name on that topic."""

    number = 123
    grpc_status = "NOT_FOUND"


class UnsupportedModeError(RequestError):
    """A consumer mode that this version does not serve."""

    number = 124
    grpc_status = "UNIMPLEMENTED"


class OffsetOutOfRangeError(RequestError):
    """The offset is not, or no longer, in the partition."""

    number = 125
    grpc_status = "OUT_OF_RANGE"


class MessagesGoneError(RequestError):
    """Messages of a range were declared lost, or dropped by retention. The details say from where to where.

    A reader that is told what to do with such a range (`on_loss`) goes on behind it instead.
    """

    number = 126
    grpc_status = "DATA_LOSS"


class PreconditionError(RequestError):
    """The state of the cluster forbids it until somebody acts; the message says who and how."""

    number = 130
    grpc_status = "FAILED_PRECONDITION"


class CoordinatorRefusedError(PreconditionError):
    """The coordinator answers reads and refuses to write: it has no space left, or this broker has no right to write.

    Messages are safe, and open segments go on accepting. No switch, crossing or administration ends before the
    coordinator takes writes again. It is not known whether this write was carried out: etcd gives the same answer to
    the write that fills its quota, and keeps that write.
    """

    number = 604
    outcome_known = False


class CoordinatorBehindError(PreconditionError):
    """The coordinator has lost decisions that a broker knows of: it was restored from an older copy, or emptied.

    Acknowledged messages are on the brokers' disks. Brokers that notice accept no messages and open no segments.
    Remedy: change nothing else, and run `seriatim coordinator rebuild`.
    """

    number = 605


class StaleOperatorError(RequestError):
    """A newer operator is in charge; the older one changes nothing any more, and should end."""

    number = 131
    grpc_status = "FAILED_PRECONDITION"


class ProducerError(SeriatimError):
    """The producer may not append this, now or ever."""

    grpc_status = "FAILED_PRECONDITION"


class ProducerFencedError(ProducerError):
    """A newer epoch of this producer id is known."""

    number = 200


class SequenceGapError(ProducerError):
    """The sequence is not the one after the producer's last."""

    number = 201


class SequenceTooOldError(ProducerError):
    """A repeat from before the window of batches whose offsets are kept: stored, at an offset no longer known."""

    number = 202
    outcome_known = False


class RunRefusedError(ProducerError):
    """An earlier batch of this run was refused, so this one is: start a new run with the oldest unacknowledged."""

    number = 203
    retriable = True


class TooManyProducersError(ProducerError):
    """The partition remembers its maximum of producers, and all sent within the last hour: a new one must wait."""

    number = 205
    retriable = True
    grpc_status = "RESOURCE_EXHAUSTED"


class WriterFencedError(ProducerError):
    """The writer was opened again since: only who opened it last may publish."""

    number = 210


class WriterOwnedError(ProducerError):
    """Another owner publishes under this writer: two programs, or two queries, were given one name."""

    number = 211


class PublicationDiffersError(ProducerError):
    """This sequence was published already, with other rows. What was published first stands."""

    number = 212


class SequencePassedError(ProducerError):
    """A later sequence was published already: whether this one ever was, nobody knows any more."""

    number = 213


class StagedDataGoneError(ProducerError):
    """A part of what was staged is gone, or no broker that has it answers. Nothing was published: stage anew."""

    number = 214


class PublishedWithLossError(ProducerError):
    """The publication was decided, but the disks of some of its staged rows were declared lost before all were
    carried out. All other rows are published.
    """

    number = 215
    grpc_status = "DATA_LOSS"


class UnknownWriterError(ProducerError):
    """No writer of that name was opened on the topic, or it was deleted since it was opened."""

    number = 216
    grpc_status = "NOT_FOUND"


class ClientFailureError(SeriatimError):
    """The client's own code failed, which is a bug: this producer or consumer has ended. Make a new one.

    All messages that the producer had taken and that were not settled are settled as unknown. A consumer acknowledges
    nothing more; what it did not acknowledge comes again.
    """

    number = 206
    grpc_status = "INTERNAL"
    outcome_known = False


class RoutingError(SeriatimError):
    """Another broker, or this one a little later, is the place to ask."""

    retriable = True
    grpc_status = "UNAVAILABLE"


class NotServingError(RoutingError):
    """This broker does not hold the open segment (for a producer) or the serving right (for a consumer)."""

    number = 300


class SegmentMovedError(RoutingError):
    """The segment is being, or has been, sealed; nothing of this attempt was stored."""

    number = 301


class SegmentTruncatedError(RoutingError):
    """This attempt lay above the sealed length and is gone; an earlier attempt may still be sealed in."""

    number = 302


class OutcomeUnknownError(RoutingError):
    """Nobody can say yet what became of this attempt."""

    number = 303
    outcome_known = False


class GroupHeadElsewhereError(RoutingError):
    """The consumer group's head is another segment, on another broker; `details` name both."""

    number = 304


class CapacityError(SeriatimError):
    """There is no room now."""

    retriable = True
    grpc_status = "RESOURCE_EXHAUSTED"


class OverloadedError(CapacityError):
    """Over the credits of the partition or the stream; `retry_after_ms` says when to try again."""

    number = 400


class DiskFullError(CapacityError):
    """The disk's reserve is reached."""

    number = 401


class TooManyStreamsError(CapacityError):
    """The broker's limit of streams is reached."""

    number = 402


class ConsumerError(SeriatimError):
    """The consumer has lost, or never had, what it speaks of."""

    grpc_status = "FAILED_PRECONDITION"


class StaleTokenError(ConsumerError):
    """The token belongs to an older grant; the ack changed nothing."""

    number = 500


class NotActiveError(ConsumerError):
    """Another consumer of the group is the active one."""

    number = 501


class StaleGroupEpochError(ConsumerError):
    """The group's position was moved by an operation after this consumer joined."""

    number = 502


class OrderViolationError(ConsumerError):
    """What was delivered does not follow what was delivered before; the consumer stops rather than pass it on."""

    number = 503
    grpc_status = "DATA_LOSS"


class PositionUnknownError(ConsumerError):
    """No broker knows the group's position at this moment. Nothing is lost: ask again."""

    number = 504
    retriable = True


class UnavailableError(SeriatimError):
    """Somebody did not answer in time; for a write the outcome is not known."""

    number = 600
    retriable = True
    grpc_status = "UNAVAILABLE"
    outcome_known = False


class CoordinatorUnavailableError(UnavailableError):
    """The coordinator did not answer in time."""

    number = 601


class DeadlineExceededError(UnavailableError):
    """The deadline passed first."""

    number = 602
    grpc_status = "DEADLINE_EXCEEDED"


class TlsHandshakeError(UnavailableError):
    """Nobody was reached, for the two sides could not agree on TLS; the message says whose certificate it is."""

    number = 603


class CompactedError(SeriatimError):
    """The coordinator's history from the revision asked for has been compacted away: list again.

    Attributes:
        compact_revision: The oldest revision still kept; 0 if the coordinator did not say.
    """

    number = 610
    grpc_status = "OUT_OF_RANGE"

    def __init__(self, message: str, *, compact_revision: int = 0, retry_after_ms: int | None = None) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms, compact_revision=compact_revision)
        self.compact_revision = int(compact_revision)


class LeaseNotFoundError(SeriatimError):
    """The coordinator's lease has ended, or never was; nothing was written."""

    number = 611
    grpc_status = "NOT_FOUND"


class StorageError(SeriatimError):
    """The data directory cannot be used; the message says what to do."""

    number = 710
    grpc_status = "DATA_LOSS"


class ForeignDiskError(StorageError):
    """The directory belongs to another cluster or member."""

    number = 700


class NewerFormatError(StorageError):
    """The directory was written by a newer version."""

    number = 701


class OldDiskError(StorageError):
    """The directory is an older copy: its run number is below the one the cluster knows."""

    number = 702


class WipedDiskError(StorageError):
    """The slot is taken by a disk that this empty directory is not."""

    number = 703


class LostDiskError(StorageError):
    """The disk was declared lost: what stood on it alone is a gap now, and it must not come back."""

    number = 705


class RunOverError(StorageError):
    """This run must end, because a death certificate names it, or its data directory is gone or was replaced.

    The process ends with exit status 77 and hands nothing over, because what it acknowledged is on other members too.
    """

    number = 706


class DirectoryInUseError(StorageError):
    """Another process runs, or starts, with this data directory or a copy of it. That one goes on unchanged.

    End one of the two. A copy of a directory must never be started beside the original.
    """

    number = 708


class RunAliveError(RequestError):
    """A death certificate was requested for a run that still answers. Nothing was written. End the process first."""

    number = 707
    grpc_status = "FAILED_PRECONDITION"


class CorruptionError(StorageError):
    """What was read is not what was written."""

    number = 704


def _catalogue(base: type[SeriatimError]) -> dict[int, type[SeriatimError]]:
    found = {base.number: base} if base.number else {}
    for kind in base.__subclasses__():
        for number, member in _catalogue(kind).items():
            assert number not in found, f"error number {number} is used twice"
            found[number] = member
    return found


CATALOGUE: dict[int, type[SeriatimError]] = dict(sorted(_catalogue(SeriatimError).items()))
"""Every error that has a number, by number."""


def make_error(
    number: int, message: str, *, retry_after_ms: int | None = None, details: dict[str, str] | None = None
) -> SeriatimError:
    """The exception for an error that came over the wire.

    A number that this build does not know (a newer peer's) becomes a plain `SeriatimError` with that number in its
    details: not retriable, outcome unknown to be safe.
    """
    kind = CATALOGUE.get(number)
    if kind is None:
        return _UnknownError(message, retry_after_ms=retry_after_ms, **{**(details or {}), "number": str(number)})
    return kind(message, retry_after_ms=retry_after_ms, **(details or {}))


class _UnknownError(SeriatimError):
    """An error of a newer peer."""

    outcome_known = False
