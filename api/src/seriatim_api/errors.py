"""The error catalogue: every error of Seriatim, by number.

Number and class are part of the contract. A text may be improved in any release. `retriable` means that the same call
may succeed later although no administrator or program changes anything. `seriatim_api.status` maps the errors to gRPC,
and takes the data from here.

    SeriatimError
    ├── RequestError            a mistake in the request: not retriable, nothing stored
    │   ├── BadRequestError 100, UnsupportedVersionError 101, IllegalNameError 102
    │   ├── MessageTooLargeError 110, BatchMismatchError 111, ChecksumMismatchError 112, IllegalMessageError 113
    │   ├── UnreadableBodyError 114  (a BadRequestError)
    │   └── UnknownTopicError 120, TopicExistsError 121, PartitionOutOfRangeError 122, UnknownGroupError 123, …
    ├── ProducerError           a producer or writer may not append or publish this
    │   ├── ProducerFencedError 200, SequenceGapError 201, SequenceTooOldError 202, RunRefusedError 203, …
    │   └── WriterFencedError 210, WriterOwnedError 211, PublicationDiffersError 212, SequencePassedError 213, …
    ├── ClientFailureError 206  a bug inside the client: the producer or the consumer has ended
    ├── RoutingError            ask another broker: retriable
    │   └── NotServingError 300, SegmentMovedError 301, SegmentTruncatedError 302, OutcomeUnknownError 303, …
    ├── CapacityError           come back later: retriable
    │   └── OverloadedError 400, DiskFullError 401, TooManyStreamsError 402
    ├── ConsumerError           the consumer is not, or no longer, at this place in its consumer group
    │   └── StaleTokenError 500, NotActiveError 501, StaleGroupEpochError 502, OrderViolationError 503,
    │       PositionUnknownError 504
    ├── UnavailableError        600 no broker answered in time (601: the coordinator did not): retriable
    │   └── CoordinatorUnavailableError 601, DeadlineExceededError 602, TlsHandshakeError 603
    ├── CoordinatorRefusedError 604  (a PreconditionError) the coordinator answers, and refuses to write
    ├── CoordinatorBehindError 605   (a PreconditionError) the coordinator has lost decisions
    ├── CompactedError 610, LeaseNotFoundError 611   the coordinator no longer has the revision or the lease
    └── StorageError            the disk cannot be used: the broker's process ends
        └── ForeignDiskError 700, NewerFormatError 701, OldDiskError 702, WipedDiskError 703, CorruptionError 704, …
"""

from __future__ import annotations

from typing import ClassVar


class SeriatimError(Exception):
    """Base of every error that Seriatim raises on purpose.

    Attributes:
        number: The error's number, the same in every language and version.
        retriable: Whether the same call may succeed later, although no administrator or program changes anything.
        grpc_status: The name of the gRPC status code that carries it.
        outcome_known: For a send attempt: True if nothing of it was stored or ever will be.
        retry_after_ms: How long to wait before a retry, in ms, if the broker can tell; else None.
        details: Names and values for programs, as strings.
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
    """The request is wrong, or the state of the cluster forbids it: a retry gets the same answer. Nothing is stored."""

    grpc_status = "INVALID_ARGUMENT"


class BadRequestError(RequestError):
    """The bytes are not a request of this protocol, or a field has no legal value."""

    number = 100


class UnsupportedVersionError(RequestError):
    """The peer does not speak this version of the protocol or of the batch header."""

    number = 101
    grpc_status = "FAILED_PRECONDITION"


class IllegalNameError(RequestError):
    """The text cannot name a topic, group or cluster. A name is at most 249 letters, digits, `.`, `_` and `-`."""

    number = 102


class MessageTooLargeError(RequestError):
    """The message or batch is over the size limit of the topic or the broker."""

    number = 110


class BatchMismatchError(RequestError):
    """The count or the length in the batch header does not match the body, or the batch begins with messages that were
    stored before as part of another batch."""

    number = 111


class ChecksumMismatchError(RequestError):
    """The body does not match its checksum, so its bytes have changed on the way or on a disk."""

    number = 112
    grpc_status = "DATA_LOSS"


class IllegalMessageError(RequestError, TypeError, ValueError):
    """A part of a message has a type or a value that a message cannot hold; the client took nothing.

    It is a `TypeError` and a `ValueError` too.
    """

    number = 113


class UnreadableBodyError(BadRequestError):
    """The body of a batch is not a complete record batch with the columns of a message, or it unpacks to too much: no
    reader could take it apart. A client that follows the protocol never sends such a batch."""

    number = 114


class UnknownTopicError(RequestError):
    """The cluster has no topic of that name (or no partition of that id)."""

    number = 120
    grpc_status = "NOT_FOUND"


class TopicExistsError(RequestError):
    """The cluster has a topic of that name already."""

    number = 121
    grpc_status = "ALREADY_EXISTS"


class PartitionOutOfRangeError(RequestError):
    """The topic has fewer partitions than the number asks for."""

    number = 122
    grpc_status = "OUT_OF_RANGE"


class UnknownGroupError(RequestError):
    """The topic has no consumer group of that name."""

    number = 123
    grpc_status = "NOT_FOUND"


class UnsupportedModeError(RequestError):
    """This version does not serve the consumer mode."""

    number = 124
    grpc_status = "UNIMPLEMENTED"


class OffsetOutOfRangeError(RequestError):
    """The offset is not in the partition, or no longer."""

    number = 125
    grpc_status = "OUT_OF_RANGE"


class MessagesGoneError(RequestError):
    """Messages of a range were declared lost, or retention dropped them. `details` has their range, `start` and `end`.

    A reader with an `on_loss` function calls it instead, and continues after these messages.
    """

    number = 126
    grpc_status = "DATA_LOSS"


class PreconditionError(RequestError):
    """The state of the cluster forbids the request until an administrator or a program acts. The message says how."""

    number = 130
    grpc_status = "FAILED_PRECONDITION"


class CoordinatorRefusedError(PreconditionError):
    """The coordinator answers reads and refuses to write: it has no space left, or this broker has no right to write.

    Messages are safe, and open segments keep accepting. No switch, crossing or administration can end until the
    coordinator takes writes again. It is not known whether this write was carried out: when a write fills etcd's
    quota, etcd keeps the write and gives the same answer.
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
    """A newer operator is in charge. The older operator changes nothing any more, and should end."""

    number = 131
    grpc_status = "FAILED_PRECONDITION"


class ProducerError(SeriatimError):
    """The producer or writer may not append or publish this."""

    grpc_status = "FAILED_PRECONDITION"


class ProducerFencedError(ProducerError):
    """The broker knows a newer producer epoch of this producer id, so it refuses the older one.

    Of a producer with an owner: another program has the name now, and this producer has ended.
    """

    number = 200

    @property
    def name(self) -> str:
        """The name that the program has lost; empty: the producer had no owner."""
        return self.details.get("name", "")

    @property
    def epoch(self) -> int:
        """The newest epoch; 0: it is not known."""
        return int(self.details.get("epoch", "0"))

    @property
    def owner(self) -> str:
        """What the program calls itself that has the name now; empty: it is not known."""
        return self.details.get("owner", "")


class SequenceGapError(ProducerError):
    """The batch's sequence does not follow the last sequence of this producer that the broker knows."""

    number = 201


class SequenceTooOldError(ProducerError):
    """The batch is an old repeat. It is stored, but the producer table no longer has its offset."""

    number = 202
    outcome_known = False


class RunRefusedError(ProducerError):
    """The broker refused an earlier batch of this producer run, and so this one. Start a new producer run with the
    oldest unacknowledged batch.
    """

    number = 203
    retriable = True


class TooManyProducersError(ProducerError):
    """The partition's producer table is full, and all its producers were heard lately. A new one must wait."""

    number = 205
    retriable = True
    grpc_status = "RESOURCE_EXHAUSTED"


class WriterFencedError(ProducerError):
    """Another program has opened the writer since. Only the program that opened it last may publish."""

    number = 210


class WriterOwnedError(ProducerError):
    """Another owner publishes under this writer, because two programs, or two queries, use one name."""

    number = 211


class PublicationDiffersError(ProducerError):
    """This sequence was published already, with other rows. The first publication stays; nothing was added."""

    number = 212


class SequencePassedError(ProducerError):
    """A later sequence was published already. The cluster no longer knows whether this one was."""

    number = 213


class StagedDataGoneError(ProducerError):
    """Some staged rows are gone, or no broker that has them answers; or they repeat a publication that was decided for
    another number of partitions while they were staged. Nothing was published: stage all rows again.
    """

    number = 214


class PublishedWithLossError(ProducerError):
    """The publication is decided, but some of its staged rows are lost: their disks were declared lost before the
    brokers stored these rows. All other rows are published.
    """

    number = 215
    grpc_status = "DATA_LOSS"


class UnknownWriterError(ProducerError):
    """The topic has no writer of that name, because it was never opened, or was deleted since."""

    number = 216
    grpc_status = "NOT_FOUND"


class ClientFailureError(SeriatimError):
    """The client's own code failed, which is a bug: this producer or consumer has ended. Make a new one.

    A producer settles as unknown all messages that it had taken and that were not settled. A consumer acknowledges
    nothing more, and the messages that it did not acknowledge come again.
    """

    number = 206
    grpc_status = "INTERNAL"
    outcome_known = False


class RoutingError(SeriatimError):
    """Another broker can answer, or this one a little later."""

    retriable = True
    grpc_status = "UNAVAILABLE"


class NotServingError(RoutingError):
    """This broker is not the master of the open segment (for a producer), or does not have the serving right (for a
    consumer).
    """

    number = 300


class SegmentMovedError(RoutingError):
    """A switch seals the segment, or has sealed it. Nothing of this send attempt was stored."""

    number = 301


class SegmentTruncatedError(RoutingError):
    """This send attempt was above the sealed length and is gone. An earlier send attempt may still be sealed in."""

    number = 302


class OutcomeUnknownError(RoutingError):
    """The broker cannot say yet whether this send attempt is stored."""

    number = 303
    outcome_known = False


class GroupHeadElsewhereError(RoutingError):
    """The consumer group's cursor segment is another one, or another broker serves it. `details` says which."""

    number = 304


class CapacityError(SeriatimError):
    """The broker or the client has no room now. Try again later."""

    retriable = True
    grpc_status = "RESOURCE_EXHAUSTED"


class OverloadedError(CapacityError):
    """Too many requests or bytes wait already: of the producer, the partition, the stream, the broker or the client's
    buffer. `retry_after_ms` says when to try again, if the broker can tell.
    """

    number = 400


class DiskFullError(CapacityError):
    """The broker's disk has reached its reserve, so it takes no new messages. Nothing is lost."""

    number = 401


class TooManyStreamsError(CapacityError):
    """The broker has as many streams as its limit allows."""

    number = 402


class ConsumerError(SeriatimError):
    """The consumer has lost, or never had, the grant or the place that its request names."""

    grpc_status = "FAILED_PRECONDITION"


class StaleTokenError(ConsumerError):
    """The token belongs to an older grant. The acknowledgement changed nothing."""

    number = 500


class NotActiveError(ConsumerError):
    """Another consumer of the consumer group is the active one."""

    number = 501


class StaleGroupEpochError(ConsumerError):
    """An operation moved the consumer group after this consumer joined, or after the plan was made."""

    number = 502


class OrderViolationError(ConsumerError):
    """A delivery does not follow the one before it. The consumer stops, and does not pass it to the application."""

    number = 503
    grpc_status = "DATA_LOSS"


class PositionUnknownError(ConsumerError):
    """No broker can report the place in the partition, or the consumer group's, at this moment. Nothing is lost: ask
    again.
    """

    number = 504
    retriable = True


class UnavailableError(SeriatimError):
    """No broker that was asked answered in time. For a write the outcome is not known."""

    number = 600
    retriable = True
    grpc_status = "UNAVAILABLE"
    outcome_known = False


class CoordinatorUnavailableError(UnavailableError):
    """The coordinator did not answer in time."""

    number = 601


class DeadlineExceededError(UnavailableError):
    """The deadline passed before the answer came. For a write the outcome is not known."""

    number = 602
    grpc_status = "DEADLINE_EXCEEDED"


class TlsHandshakeError(UnavailableError):
    """No broker was reached, because the two sides could not agree on TLS. The message says whose certificate is the
    cause.
    """

    number = 603


class CompactedError(SeriatimError):
    """The coordinator has compacted its history and no longer has the revision that was asked for: list again.

    Attributes:
        compact_revision: The oldest revision still kept; 0 if the coordinator did not say.
    """

    number = 610
    grpc_status = "OUT_OF_RANGE"

    def __init__(self, message: str, *, compact_revision: int = 0, retry_after_ms: int | None = None) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms, compact_revision=compact_revision)
        self.compact_revision = int(compact_revision)


class LeaseNotFoundError(SeriatimError):
    """The coordinator's lease has ended or never existed. Nothing was written."""

    number = 611
    grpc_status = "NOT_FOUND"


class StorageError(SeriatimError):
    """The broker cannot use its data directory. The message says what to do."""

    number = 710
    grpc_status = "DATA_LOSS"


class ForeignDiskError(StorageError):
    """The data directory belongs to another cluster or member."""

    number = 700


class NewerFormatError(StorageError):
    """A newer version wrote the data directory, and this version cannot read it."""

    number = 701


class OlderFormatError(StorageError):
    """An older version wrote the data directory or the cluster's records, and this version does not read them."""

    number = 709


class OldDiskError(StorageError):
    """The data directory is an older copy: its member run, or the end of its log, is below what the cluster knows."""

    number = 702


class WipedDiskError(StorageError):
    """The data directory is empty, but the slot of this broker belongs to another disk."""

    number = 703


class LostDiskError(StorageError):
    """The disk was declared lost. Messages that only it had are a declared gap now, so the disk must not come back."""

    number = 705


class RunOverError(StorageError):
    """This member run must end, because a death certificate names it, or its data directory is gone or was replaced.

    The process ends with exit status 77 and hands nothing over. The messages that it acknowledged are on other members
    too.
    """

    number = 706


class DirectoryInUseError(StorageError):
    """Another process runs, or starts, with this data directory or a copy of it. The other process continues unchanged.

    End one of the two. Never start a copy of a data directory beside the original.
    """

    number = 708


class RunAliveError(RequestError):
    """A death certificate was requested for a member run that still answers. Nothing was written. End the process
    first.
    """

    number = 707
    grpc_status = "FAILED_PRECONDITION"


class CorruptionError(StorageError):
    """A read from the disk returned other bytes than those that were written."""

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

    A number that this build does not know comes from a newer peer. It becomes a plain `SeriatimError` with the number
    in its `details`. It counts as not retriable, with an unknown outcome, to be safe.
    """
    kind = CATALOGUE.get(number)
    if kind is None:
        return _UnknownError(message, retry_after_ms=retry_after_ms, **{**(details or {}), "number": str(number)})
    return kind(message, retry_after_ms=retry_after_ms, **(details or {}))


class _UnknownError(SeriatimError):
    """An error of a newer peer, with a number that this build does not know."""

    outcome_known = False
