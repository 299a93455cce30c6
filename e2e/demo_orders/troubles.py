"""The two aircraft that fail: one is parked and released, the other is dead-lettered and replayed, all through `Admin`.

park         the consumer group parks a key after its last attempt; the demo sees that, and waits for some seconds
release      the consumers are mended, and the demo releases the key: its messages continue in their order
dead-letter  the demo changes the policy; the consumers give up each event of the other aircraft
replay       when all others are done, the consumers are mended, and the demo replays its dead letters
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from seriatim import Admin, DeadLetter, GroupKey, GroupSettings, RetryPolicy
from seriatim_api.errors import SeriatimError
from seriatim_api.retry import dead_letter_topic_of

from e2e.demo.run import GROUP, TOPIC
from e2e.demo_orders.crew import Crew
from e2e.demo_orders.fates import Poison
from e2e.demo_orders.judging import DeadLettered, Parked

TOLD_S: Final = 1.0
"""The time in which all processes hear what is reported to them. None of them is frozen by then."""

POLL_S: Final = 0.25
"""The time between two looks at the keys."""

REPLAY_MAX_S: Final = 30.0
"""The replay is asked for again for this long, in seconds, if a segment's members are slow or are being replaced."""

PARKING: Final = RetryPolicy(
    attempts_max=5, back_off="list", delays_ms=(200, 400, 800), exhausted="park_key", grant_ms=10_000
)
"""With this policy the consumer group begins. Chance fails two attempts at most, and kills cut off one or two more."""

SETTINGS: Final = GroupSettings(mode="key_ordered", retry=PARKING)

DEAD_LETTERING: Final = replace(PARKING, exhausted="dead_letter")
"""The policy from the release of the parked aircraft on."""


@dataclass(eq=False)
class Troubles:
    """Brings about what happens to the two aircraft, and notes it.

    Attributes:
        admin: The `Admin` of the cluster.
        crew: The processes with consumers, which are told who is poison.
        poison: The aircraft that is parked, and the one whose events are dead-lettered.
        on_change: Called when `states` has changed.
        parked: What happened to the parked aircraft; None: not yet over.
        dead: What happened to the dead-lettered aircraft; None: not yet over.
        states: By aircraft: what is happening to it, for humans.
    """

    admin: Admin
    crew: Crew
    poison: tuple[Poison, Poison]
    on_change: Callable[[], None]
    parked: Parked | None = None
    dead: DeadLettered | None = None
    states: dict[str, str] = field(default_factory=dict)
    _dead_from: float = 0.0

    async def park_and_release(self, parked_s: float, parked_max_s: float) -> None:
        """Wait until the first aircraft is parked, leave it so for some seconds, mend the consumers and release it.

        If it is not parked in time, `parked` stays None.

        Args:
            parked_s: For how long it is left, in seconds.
            parked_max_s: How long to wait until it is parked, in seconds.

        Raises:
            SeriatimError: The release was refused.
        """
        key = self.poison[0].key
        try:
            async with asyncio.timeout(parked_max_s):
                await self._wait_parked()
        except TimeoutError:
            self.crew.tell_poison(None)
            return
        parked_at = time.monotonic()
        self._is(key, "is parked")
        await asyncio.sleep(parked_s)  # for this long it waits for an administrator
        keys = await self._wait_parked()
        own = next(found for found in keys if found.key == key.encode())
        self.crew.tell_poison(None)
        released_at = time.monotonic()  # the key continues before the answer is here
        for result in await self.admin.release_keys(TOPIC, GROUP, keys):
            if result.error is not None:
                raise SeriatimError(f"{result.key.shown} was not released: {result.error}")
        self._is(key, f"was released after {own.attempts} attempts")
        self.parked = Parked(
            key=key,
            attempts=own.attempts,
            waiting=own.messages,
            parked_at=parked_at,
            released_at=released_at,
            others=tuple(found.shown for found in keys if found is not own),
        )

    async def _wait_parked(self) -> list[GroupKey]:
        """Look until the aircraft is parked. Return all parked keys."""
        wanted = self.poison[0].key.encode()
        while True:
            keys = await self._parked_keys()
            if any(key.key == wanted for key in keys):
                return keys
            await asyncio.sleep(POLL_S)

    async def _parked_keys(self) -> list[GroupKey]:
        try:
            return [key async for key in self.admin.group_keys(TOPIC, GROUP, states=["parked"])]
        except SeriatimError:  # a server is being replaced: the next look reports
            return []

    async def dead_letter(self) -> None:
        """From now on, failed messages go to the dead-letter topic, and the consumers give up the second aircraft.

        Raises:
            SeriatimError: The policy was refused.
        """
        done = await self.admin.configure_group(TOPIC, GROUP, retry=DEAD_LETTERING)
        for partition in done:
            if partition.error is not None:
                raise SeriatimError(f"the policy was refused on partition {partition.partition}: {partition.error}")
        # Its events are sent when this call has returned. Without that: 1. One process is notified, and gives up an
        # event.
        # 2. Another process works on the next one of the key, because it has not been notified yet.
        self.crew.tell_poison(self.poison[1])
        await asyncio.sleep(TOLD_S)
        self._dead_from = time.monotonic()
        self._is(self.poison[1].key, "is given up, event by event")

    async def letters(self) -> list[DeadLetter]:
        """The dead letters that were not replayed; empty if no broker reports them now."""
        topic = dead_letter_topic_of(TOPIC, GROUP)
        try:
            return [letter async for letter in self.admin.dead_letters(topic, GROUP)]
        except SeriatimError:  # a server is being replaced, or the asked broker has not heard of the new topic yet
            return []

    async def replay(self, patience_s: float) -> None:
        """Mend the consumers, and replay all dead letters.

        Args:
            patience_s: How long to wait for the first dead letter, in seconds.

        Raises:
            SeriatimError: The replay failed.
        """
        key = self.poison[1].key.encode()
        until = time.monotonic() + patience_s
        while True:
            letters = await self.letters()
            if letters or time.monotonic() > until:
                break
            await asyncio.sleep(POLL_S)
        self.crew.tell_poison(None)
        replayed_at = time.monotonic()
        if letters:
            await self._replay(letters)
        self._is(self.poison[1].key, f"had {len(letters)} dead letters, which are replayed")
        self.dead = DeadLettered(
            key=self.poison[1].key,
            letters=tuple(letter.origin_offset for letter in letters if letter.key == key),
            begun_at=self._dead_from,
            replayed_at=replayed_at,
            others=sum(letter.key != key for letter in letters),
        )

    async def _replay(self, letters: list[DeadLetter]) -> None:
        """Replay the dead letters. A call that is repeated replays each of them once."""
        until = time.monotonic() + REPLAY_MAX_S
        while True:
            try:
                await self.admin.replay_dead_letters(letters[0].topic, letters)
            except SeriatimError as error:
                if not error.retriable or time.monotonic() > until:
                    raise
            else:
                return
            await asyncio.sleep(POLL_S)

    def _is(self, key: str, state: str) -> None:
        self.states[key] = state
        self.on_change()
