"""Admin calls to any broker that answers, while others are frozen or cut off.

A client of the library stays with the broker that answered last, and makes a call that changes something only once. The
suite breaks brokers all the time, and needs answers from the others. So it has a connection to each broker, and asks
the next broker if one does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from seriatim import (
    Admin,
    BrokerGroup,
    Chain,
    Client,
    Damage,
    DelayedStats,
    GroupDescription,
    RestartCheck,
    Route,
    TopicDescription,
    TopicSettings,
)
from seriatim_api.errors import DeadlineExceededError, SeriatimError, TopicExistsError, UnavailableError

LOOK_S: Final = 2.0
"""The deadline for one broker's description. The broker may have to wait for another broker that does not answer."""

LIST_S: Final = 10.0
"""The deadline for counting what is delayed. For each partition a broker waits half a second for segments that no
member serves, and it asks the servers of all others.
"""

SCRUB_S: Final = 30.0
"""The deadline for a scrub: a broker reads all that it holds, which is a few megabytes here."""

CHANGE_S: Final = 10.0
"""The deadline for a call that changes the cluster.

The call is made once, because it may be carried out although its answer is lost.
"""

T = TypeVar("T")

Intent = Literal["active", "cordoned", "draining"]


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """How many segments a scrub of one broker read, and the damage that it found."""

    segments: int
    damages: tuple[Damage, ...]


async def _scrub(admin: Admin, broker: str) -> Scrubbed:
    steps = [step async for step in admin.scrub(broker)]
    damages = tuple(damage for step in steps for damage in step.damages)
    return Scrubbed(sum(step.read_segments for step in steps), damages)


class Admins:
    """An `Admin` at each broker. Use it as an asynchronous context manager, and only in one task at a time.

    Args:
        bootstrap: The addresses of the brokers.
    """

    def __init__(self, bootstrap: tuple[str, ...]) -> None:
        self._bootstrap = bootstrap
        self._stack = AsyncExitStack()
        self._admins: list[Admin] = []
        self._by_address: dict[str, Admin] = {}

    async def __aenter__(self) -> Self:
        for address in self._bootstrap:
            client = await self._stack.enter_async_context(Client.connect(address, name="suite"))
            self._by_address[address] = client.admin()
            self._admins.append(self._by_address[address])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def describe_topic(self, name: str) -> TopicDescription:
        """Call `Admin.describe_topic` at the first broker that answers."""
        return await self._look(lambda admin: admin.describe_topic(name))

    async def delayed_stats(self, topic: str) -> list[DelayedStats]:
        """Call `Admin.delayed_stats` at the first broker that answers."""
        return await self._look(lambda admin: admin.delayed_stats(topic), LIST_S)

    async def describe_group(self, topic: str, group: str) -> GroupDescription:
        """Call `Admin.describe_group` at the first broker that answers."""
        return await self._look(lambda admin: admin.describe_group(topic, group))

    async def describe_chain(self, topic: str, partition: int) -> Chain:
        """Call `Admin.describe_chain` at the first broker that answers."""
        return await self._look(lambda admin: admin.describe_chain(topic, partition))

    async def runs_known_to(self, address: str) -> dict[str, int]:
        """Return the member run of each broker, as the broker at that address knows it.

        Raises:
            SeriatimError: The broker does not answer.
        """
        cluster = await self._within(LOOK_S, self._by_address[address].describe_cluster())
        return {broker.name: broker.run for broker in cluster.brokers}

    async def switch_partition(self, partition_id: int) -> Route:
        """Call `Admin.switch_partition` once, at the broker that answered last.

        Raises:
            SeriatimError: The switch failed, or its outcome is unknown.
        """
        return await self._within(CHANGE_S, self._admins[0].switch_partition(partition_id))

    async def list_broker_groups(self) -> list[BrokerGroup]:
        """Call `Admin.list_broker_groups` with counts, at the first broker that answers."""
        return await self._look(lambda admin: admin.list_broker_groups(with_counts=True))

    async def set_broker_group(self, name: str, intent: Intent) -> None:
        """Call `Admin.set_broker_group` at the first broker that takes it. A repeated call changes nothing."""
        await self._look(lambda admin: admin.set_broker_group(name, intent), CHANGE_S)

    async def check_restart(self, broker: str) -> RestartCheck:
        """Call `Admin.check_restart` at the first broker that answers."""
        return await self._look(lambda admin: admin.check_restart(broker), CHANGE_S)

    async def declare_dead_at(self, address: str, broker: str, run: int, issuer: str) -> None:
        """Call `Admin.declare_dead` once, at the broker at that address.

        Raises:
            SeriatimError: The broker refuses, or does not answer.
        """
        await self._within(CHANGE_S, self._by_address[address].declare_dead(broker, run, issuer))

    async def scrub(self, broker: str) -> Scrubbed:
        """Let a broker read all that it holds. If one broker does not pass the request on, ask the next one.

        Raises:
            SeriatimError: No scrub ended within `SCRUB_S` seconds.
        """
        return await self._look(lambda admin: _scrub(admin, broker), SCRUB_S)

    async def declare_gap(self, topic: str, partition: int, segment: int, issuer: str) -> None:
        """Call `Admin.declare_gap` at the first broker that takes it. A repeated call changes nothing.

        Raises:
            SeriatimError: No broker took it within `CHANGE_S` seconds.
        """
        await self._look(lambda admin: admin.declare_gap(topic, partition, segment, issuer), CHANGE_S)

    async def create_topic(self, name: str, partition_count: int, settings: TopicSettings) -> None:
        """Make a topic: ask one broker after another.

        If a broker made it and did not answer, the next one says that it exists.
        """
        error: SeriatimError = UnavailableError("there is no broker")
        for admin in list(self._admins):
            try:
                await self._within(CHANGE_S, admin.create_topic(name, partition_count, settings))
            except TopicExistsError:
                return
            except (UnavailableError, DeadlineExceededError) as exc:
                error = exc
            else:
                return
        raise error

    async def _look(self, ask: Callable[[Admin], Awaitable[T]], deadline_s: float = LOOK_S) -> T:
        error: SeriatimError = UnavailableError("there is no broker")
        for admin in list(self._admins):
            try:
                answer = await self._within(deadline_s, ask(admin))
            except SeriatimError as exc:
                error = exc
                self._admins.remove(admin)  # from now on this broker is asked last
                self._admins.append(admin)
            else:
                return answer
        raise error

    async def _within(self, deadline_s: float, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            raise DeadlineExceededError(f"no answer within {deadline_s:g} s") from None
