"""What goes wrong for a user of the data source, each with a text that says what to do.

Spark shows an error of a Python data source with its traceback; the last line is one of these.

    SourceError
    ├── OptionError            an option that is unknown, missing, or not of its form
    ├── SchemaMismatchError    a schema that the source does not give
    ├── OffsetsError           offsets or a checkpoint that do not belong to this query
    ├── TopicReplacedError     the topic was deleted, or deleted and made again
    ├── DataLossError          messages that the query needs are gone
    ├── ReadOrderError         rows that do not follow one another: nothing of the task is used
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
    """A schema was asked for that the source does not give."""


class OffsetsError(SourceError):
    """Offsets, or a checkpoint, that do not belong to this query or to these topics."""


class TopicReplacedError(SourceError):
    """The topic that the query reads was deleted; maybe another one has its name."""


class DataLossError(SourceError):
    """Messages that the query needs were dropped by retention or declared lost."""


class ReadOrderError(SourceError):
    """Rows came that do not follow those before, or the range did not end where it was planned to."""


class ClusterError(SourceError):
    """No broker answers in time, or the connection is refused."""


@contextmanager
def translated(topic: str, bootstrap: str) -> Iterator[None]:
    """Turn the client's errors into those above.

    Args:
        topic: What is asked about.
        bootstrap: Addresses that were tried, for the text.
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
            f"{exc.message.split(';')[0]}. Nothing of this task was used. Set failOnDataLoss=false to go on behind "
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
        raise ReadOrderError(f"{exc.message}. Nothing of this task was used.") from exc
    except errors.UnavailableError as exc:
        raise ClusterError(
            f"{topic!r} could not be read: {exc.message}. Is {bootstrap} right, and does the cluster run? "
            "The option readTimeout says how long it is tried."
        ) from exc
    except errors.SeriatimError as exc:
        raise SourceError(f"{topic!r}: {exc.message}") from exc


def replaced(topic: str, why: str) -> TopicReplacedError:
    """The error of a checkpoint whose topic is another one now."""
    return TopicReplacedError(
        f"topic {topic!r} is not the one that this query has read: {why}. Its offsets mean nothing in the new one. "
        "Start the query with a new checkpoint."
    )
