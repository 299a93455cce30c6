"""Administration of writers: list them, show what each has published, and delete one."""

from __future__ import annotations

from typing import Final

from seriatim_api.v1 import publications_pb2, records_pb2

from seriatim._admin.broker_groups import BrokerGroupAdmin
from seriatim._admin.descriptions import WriterDescription
from seriatim._values.arguments import check_text
from seriatim._values.conversion import value_of

DEADLINE_S: Final = 10.0

_STATES: Final = {
    records_pb2.WRITER_STATE_NEW: "NEW",
    records_pb2.WRITER_STATE_DECIDED: "DECIDED",
    records_pb2.WRITER_STATE_DONE: "DONE",
}


class WriterAdmin(BrokerGroupAdmin):
    """The part of `Admin` that is about writers."""

    async def list_writers(self, topic: str | None = None) -> list[WriterDescription]:
        """The writers of a topic, or of all topics if `topic` is None.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            UnavailableError: No broker answered in time.
            BadRequestError: `topic` is empty.
        """
        check_text("topic", topic, "to have the writers of all topics")
        found: list[WriterDescription] = []
        after = ""
        while True:
            request = publications_pb2.ListWritersRequest(topic=topic, after=after)
            page: publications_pb2.ListWritersResponse = await self._caller.publications(
                "ListWriters", request, DEADLINE_S
            )
            found += map(_described, page.writers)
            after = page.next_after
            if not after:
                return found

    async def describe_writer(self, topic: str, writer: str) -> WriterDescription:
        """A writer and its last publication.

        Raises:
            UnknownWriterError: The topic has no such writer.
            UnknownTopicError: The cluster has no such topic.
            UnavailableError: No broker answered in time.
        """
        request = publications_pb2.DescribeWriterRequest(topic=topic, writer=writer)
        return _described(await self._caller.publications("DescribeWriter", request, DEADLINE_S))

    async def delete_writer(self, topic: str, writer: str) -> None:
        """Delete the record of a writer. If a writer of the same name is opened later, it starts over, at any sequence.

        Brokers refuse a program that still publishes under the old record. Publications that are done stay.

        Raises:
            UnknownWriterError: The topic has no such writer.
            UnknownTopicError: The cluster has no such topic.
            PreconditionError: A publication of the writer is decided and not finished.
            UnavailableError: No broker answered in time.
        """
        request = publications_pb2.DeleteWriterRequest(topic=topic, writer=writer)
        await self._caller.publications("DeleteWriter", request, DEADLINE_S)


def _described(told: publications_pb2.WriterDescription) -> WriterDescription:
    record = told.record
    state = _STATES.get(record.state, "UNKNOWN")
    sequence = None if state == "NEW" else record.sequence
    return value_of(WriterDescription, record, topic=told.topic, writer=told.writer, state=state, sequence=sequence)
