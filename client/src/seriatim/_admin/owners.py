"""Owners of names: list and describe them, and take a name away."""

from __future__ import annotations

from collections.abc import AsyncIterator

from seriatim_api.v1 import owners_pb2, records_pb2

from seriatim._admin.group_operations import DEADLINE_S, GroupOperations
from seriatim._values.arguments import NUMBER_MAX, check_text, check_whole
from seriatim._values.conversion import value_of
from seriatim._values.owners import NameOwner, OwnerDescription


class OwnerAdmin(GroupOperations):
    """The part of `Admin` for names that one program at a time has."""

    async def owners(self, topic: str | None = None) -> AsyncIterator[NameOwner]:
        """The owners of names, in no order.

        Args:
            topic: Of this topic; None: of all topics.

        Raises:
            IllegalNameError: A topic cannot have that name.
            UnavailableError: No broker answered in time.
        """
        check_text("topic", topic, "for all topics")
        after = b""
        while True:
            request = owners_pb2.ListOwnersRequest(topic="" if topic is None else topic, after=after)
            page = await self._caller.owners("ListOwners", request, DEADLINE_S)
            for record in page.owners:
                yield _owner_of(record)
            after = page.next
            if not after:
                return

    async def describe_owner(self, topic: str, name: str) -> OwnerDescription:
        """The owner of a name, and which programs wait for it.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            IllegalNameError: The topic or the owner cannot have that name.
            PreconditionError: Not all brokers know owners.
            UnavailableError: No broker answered in time.
        """
        request = owners_pb2.DescribeOwnerRequest(topic=topic, name=name)
        answer = await self._caller.owners("DescribeOwner", request, DEADLINE_S)
        return OwnerDescription(
            _owner_of(answer.owner) if answer.HasField("owner") else None,
            answer.is_here,
            tuple(answer.waiting),
            tuple(answer.starting.partitions),
            answer.starting.reason,
        )

    async def release_owner(self, topic: str, name: str, epoch: int = 0) -> NameOwner:
        """Take a name away from its owner, whose producer ends. The next program that waits gets it.

        Args:
            topic: The topic.
            name: The name.
            epoch: Only if the owner has this epoch; 0: whichever it has.

        Returns:
            The owner after the call: the one that was released, or already the next one.

        Raises:
            PreconditionError: The owner has another epoch, or the name never had one; nothing was changed.
            UnknownTopicError: The cluster has no such topic.
            IllegalNameError: The topic or the owner cannot have that name.
            UnavailableError: No broker answered in time.
        """
        check_whole("epoch", epoch, 0, NUMBER_MAX)
        request = owners_pb2.ReleaseOwnerRequest(topic=topic, name=name, epoch=epoch)
        return _owner_of((await self._caller.owners("ReleaseOwner", request, DEADLINE_S)).owner)


def _owner_of(record: records_pb2.OwnerRecord) -> NameOwner:
    return value_of(NameOwner, record, owner=record.owner_text)
