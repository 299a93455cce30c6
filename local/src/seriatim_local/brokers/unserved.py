"""Counts the partitions on which messages wait and no consumer reads, for the status of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from seriatim_api.errors import SeriatimError
from seriatim_api.lag import lag_messages
from seriatim_api.network.tls import TlsFiles

if TYPE_CHECKING:
    from seriatim_api.v1 import broker_pb2
    from seriatim_broker.rpc.calls.command_channel import AskedBroker

DEADLINE_S: Final = 2.0
"""Time for all questions together. An administrator waits for the status, and what is known by then is of use."""

GROUPS_MAX: Final = 500
"""The most consumer groups that are asked for. Each costs a question to the brokers."""

ASKED_AT_ONCE: Final = 16


@dataclass(slots=True)
class Unserved:
    """Partitions with messages that are not acknowledged, and without a consumer.

    Attributes:
        partitions: How many they are, over all consumer groups.
        messages: How many messages wait there.
        groups: The consumer groups, as `TOPIC GROUP`.
        is_at_least: Not all consumer groups could be asked for, so there may be more.
    """

    partitions: int = 0
    messages: int = 0
    groups: list[str] = field(default_factory=list)
    is_at_least: bool = False

    @property
    def line(self) -> str:
        """For humans; empty if there is nothing to report."""
        if not self.partitions:
            return ""
        named = ", ".join(self.groups[:3]) + f" and {len(self.groups) - 3} more" * (len(self.groups) > 3)
        return (
            f"no consumer reads {self.partitions:,}{'+' * self.is_at_least} partition{'s' * (self.partitions > 1)} on "
            f"which messages wait ({self.messages:,}): {named}. See seriatim group describe TOPIC GROUP"
        )


async def count_unserved(addresses: Sequence[str], tls: TlsFiles | None) -> Unserved | None:
    """Ask the first broker that answers; None if none does.

    Args:
        addresses: Addresses of brokers.
        tls: The certificate files of a client; None: plain text.
    """
    from seriatim_broker.rpc.calls.command_channel import AskedBroker, transport_of  # imports gRPC

    transport = transport_of(tls)
    until = asyncio.get_running_loop().time() + DEADLINE_S
    for address in addresses:
        async with AskedBroker(address, transport) as broker:
            try:
                topics = await broker.list_topics(deadline_s=DEADLINE_S / 4)
            except SeriatimError:
                continue
            found = Unserved()
            try:
                async with asyncio.timeout_at(until):
                    await _count(broker, topics, found)
            except TimeoutError:
                found.is_at_least = True
            return found
    return None


async def _count(broker: AskedBroker, topics: Iterable[str], found: Unserved) -> None:
    room = asyncio.Semaphore(ASKED_AT_ONCE)
    asked = 0

    async def ask(question: Callable[..., Awaitable[list[Any]]], *names: str) -> list[Any]:
        async with room:
            try:
                return await question(*names, deadline_s=DEADLINE_S)
            except SeriatimError:  # it was deleted meanwhile, or its brokers do not answer
                found.is_at_least = True
                return []

    async def look(topic: str) -> None:
        nonlocal asked
        for group in await ask(broker.list_groups, topic):
            if "/" in group:  # a consumer of a broadcast group that is gone is not waited for
                continue
            asked += 1
            if asked > GROUPS_MAX:
                found.is_at_least = True
                return
            lags = [lag for row in await ask(broker.describe_group, topic, group) if (lag := lag_without_consumer(row))]
            if lags:
                found.partitions += len(lags)
                found.messages += sum(lags)
                found.groups.append(f"{topic} {group}")

    await asyncio.gather(*map(look, topics))
    found.groups.sort()


def lag_without_consumer(row: broker_pb2.GroupPartition) -> int:
    """The lag of a partition that no consumer of the group reads; 0 if one does, if there is no lag, or if unknown.

    A group that is `external` has no consumers. Its program says how far it is.
    """
    if row.HasField("error") or not row.has_cursor or row.external or row.active_consumer or row.consumers:
        return 0
    return lag_messages(row.end_position - row.position, row.passed_messages, row.aside_messages)
