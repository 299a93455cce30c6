"""The errors that a user of the data source sees. The text of each says what to do.

Spark shows the traceback of an error of a Python data source. Its last line is one of these errors.

    SourceError
    ├── OptionError            an option that is unknown, missing, or not of its form
    ├── SchemaMismatchError    a schema that the source does not give, or columns that no message has
    ├── OffsetsError           offsets or a checkpoint that do not belong to this query
    ├── TopicReplacedError     the topic was deleted, or deleted and made again
    ├── DataLossError          messages that the query needs are gone
    ├── UnsettledError         messages that the query needs cannot be read before brokers are back
    ├── ReadOrderError         rows that do not follow one another: Spark uses no row of the task
    ├── RowError               a row that cannot be a message of the topic
    ├── WriterConflictError    another program has opened the writer, or has published later rows with it
    ├── ReplayDiffersError     a micro-batch was published already, and now has other rows
    ├── SinkError              rows were not published, for another reason
    └── ClusterError           no broker answers, or certificates are refused
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seriatim_api import errors


class SourceError(Exception):
    """The base of all errors of the data source."""


class OptionError(SourceError):
    """An option is unknown, missing, or not of its form."""


class SchemaMismatchError(SourceError):
    """The query asks for a schema that the source does not give, or writes columns that no message has."""


class OffsetsError(SourceError):
    """The offsets or the checkpoint do not belong to this query or to these topics."""


class TopicReplacedError(SourceError):
    """The topic that the query reads was deleted. Perhaps another topic has its name now."""


class DataLossError(SourceError):
    """Messages that the query needs were dropped by retention or declared lost."""


class UnsettledError(SourceError):
    """No member of a segment answers. The query can read its messages, and those that follow, when one member is
    back."""


class ReadOrderError(SourceError):
    """A row does not follow the row before it, or the range did not end at its planned end."""


class RowError(SourceError):
    """A row cannot be a message: it has no value, lacks a key that it needs, is too large, or names no partition."""


class WriterConflictError(SourceError):
    """The writer was opened by another program, belongs to another query, or has published later rows."""


class ReplayDiffersError(SourceError):
    """A publication that is repeated has other rows than the first time. The topic keeps the rows of the first time."""


class SinkError(SourceError):
    """Rows were not published, for a reason that the text gives."""


class ClusterError(SourceError):
    """No broker answers in time, or the connection is refused."""


@contextmanager
def translated(topic: str, bootstrap: str) -> Iterator[None]:
    """Turn the client's errors of reading into those above.

    Args:
        topic: The topic that is read.
        bootstrap: The addresses that the client tried, to name in the text.
    """
    try:
        yield
    except errors.UnknownTopicError as exc:
        raise TopicReplacedError(
            f"there is no topic {topic!r} at {bootstrap}. Was it deleted? Check the options topic and bootstrap; a "
            "query that read it before needs a new checkpoint."
        ) from exc
    except errors.MessagesGoneError as exc:
        raise DataLossError(
            f"{exc.message.split(';')[0]}. Spark used no row of this task. Set failOnDataLoss=false to continue after "
            "them (each such gap is logged and counted), or keep messages for longer."
        ) from exc
    except errors.TlsHandshakeError as exc:
        raise ClusterError(
            f"{bootstrap} refuses the connection: {exc.message}. Check the files of tlsCa, tlsCert and tlsKey."
        ) from exc
    except errors.PreconditionError as exc:
        raise replaced(topic, exc.message) from exc
    except errors.PartitionOutOfRangeError as exc:
        raise OffsetsError(f"{exc.message}. Check the partitions in the options or in the checkpoint.") from exc
    except errors.OffsetOutOfRangeError as exc:
        raise OffsetsError(f"{exc.message}. Check startingOffsets and endingOffsets.") from exc
    except errors.OrderViolationError as exc:
        raise ReadOrderError(f"{exc.message}. Spark used no row of this task.") from exc
    except (errors.UnavailableError, errors.PositionUnknownError) as exc:
        raise ClusterError(
            f"{topic!r} could not be read: {exc.message}. Is {bootstrap} right, and does the cluster run? "
            "The option readTimeout sets how long the source tries."
        ) from exc
    except errors.SeriatimError as exc:
        raise SourceError(f"{topic!r}: {exc.message}") from exc


@contextmanager
def written(topic: str, bootstrap: str) -> Iterator[None]:
    """Turn the client's errors of writing into those above.

    Args:
        topic: The topic that is written.
        bootstrap: The addresses that the client tried, to name in the text.
    """
    try:
        yield
    except errors.UnknownTopicError as exc:
        raise TopicReplacedError(
            f"there is no topic {topic!r} at {bootstrap} to write to. Was it deleted? Create it, or check the options "
            "topic and bootstrap."
        ) from exc
    except (errors.IllegalMessageError, errors.MessageTooLargeError, errors.PartitionOutOfRangeError) as exc:
        raise RowError(f"a row cannot be a message of {topic!r}: {exc.message}. Nothing was published.") from exc
    except errors.WriterFencedError as exc:
        raise WriterConflictError(
            f"{exc.message}. This query has published nothing since then. If no other program uses the writer, call "
            "open_writer and start the query again."
        ) from exc
    except errors.UnknownWriterError as exc:
        raise WriterConflictError(f"{exc.message}. Call open_writer before start().") from exc
    except errors.WriterOwnedError as exc:
        raise WriterConflictError(
            f"{exc.message}. An owner is the id of a query, which its checkpoint keeps. So two queries use one writer, "
            "or one query with a new checkpoint. Nothing was published. Use another writer."
        ) from exc
    except errors.SequencePassedError as exc:
        raise WriterConflictError(
            f"{exc.message}. The writer has published later rows than the checkpoint knows: the checkpoint was "
            "restored, or belongs to another query. Nothing was published. Use a new writer and a new checkpoint."
        ) from exc
    except errors.PublicationDiffersError as exc:
        raise ReplayDiffersError(
            f"{exc.message}. Either a plan that is not deterministic (a random number, the time of day, a shuffle of "
            "equal rows) was run again after a failure, or the checkpoint was restored or belongs to another writer. "
            "The rows of the first time are in the topic, once. After a restored checkpoint use a new writer and a "
            "new checkpoint. Only if both times the same rows were read: onReplayMismatch=accept keeps the first ones "
            "and continues."
        ) from exc
    except errors.PublishedWithLossError as exc:
        raise DataLossError(f"{exc.message}. All other rows are published.") from exc
    except errors.StagedDataGoneError as exc:
        raise SinkError(f"{exc.message}. Nothing was published: run the job or start the query again.") from exc
    except errors.TlsHandshakeError as exc:
        raise ClusterError(
            f"{bootstrap} refuses the connection: {exc.message}. Check the files of tlsCa, tlsCert and tlsKey."
        ) from exc
    except errors.DeadlineExceededError as exc:
        raise ClusterError(
            f"{topic!r}: {exc.message}. If the publication was decided, brokers finish it in any case. Start the query "
            "again: it repeats the micro-batch, which is published once. The option writeTimeout sets how long the "
            "sink tries."
        ) from exc
    except errors.UnavailableError as exc:
        raise ClusterError(
            f"{topic!r} could not be written: {exc.message}. Is {bootstrap} right, and does the cluster run? "
            "The option writeTimeout sets how long the sink tries."
        ) from exc
    except errors.SeriatimError as exc:
        raise SinkError(f"{topic!r}: {exc.message}") from exc


def replaced(topic: str, why: str) -> TopicReplacedError:
    """Return the error for a checkpoint of a topic whose name now belongs to another topic."""
    return TopicReplacedError(
        f"topic {topic!r} is not the one that this query has read: {why}. Offsets of the old topic mean nothing in the "
        "new one. Start the query with a new checkpoint."
    )
