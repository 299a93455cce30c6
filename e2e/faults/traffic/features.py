"""Features beside the load of a case (FEATURES=1): an administrator uses them on a topic of its own while the fault
lasts.

The topic has one producer and three consumer groups: one reads in order, one by key, and one by key with dead letters.
What these clients and the administrator do is in a history of its own, which the history checker judges. Histories do
not have range reads, and do not say which messages a rewind must bring again. So this module judges these.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from seriatim import (
    Admin,
    Client,
    Consumer,
    DeadLetter,
    GroupSettings,
    LostRange,
    Message,
    OperatedPartition,
    RetryPolicy,
    SendError,
    TopicSettings,
    Writer,
)
from seriatim.history import HistoryWriter, Report, check, render
from seriatim_api.errors import (
    DeadlineExceededError,
    OffsetOutOfRangeError,
    PublishedWithLossError,
    SeriatimError,
    TopicExistsError,
    UnknownTopicError,
)
from seriatim_api.ids import make_offset
from seriatim_api.retry import dead_letter_topic_of

from e2e.faults.traffic.client import number_of, opened, recorded_client, value_of
from e2e.faults.traffic.keyed_consumers import what_waits
from e2e.faults.traffic.load import DRAIN_DEADLINE_S

IN_ORDER: Final = "features-in-order"
BY_KEY: Final = "features-by-key"
LETTERS: Final = "features-letters"
GROUPS: Final = (IN_ORDER, BY_KEY, LETTERS)
PARTITIONS: Final = 2
KEYS: Final = 20
SIZE_BYTES: Final = 60
PAUSE_S: Final = 0.01
"""The time between two messages."""

FIRST: Final = 1 << 40
PUBLISHED: Final = 1 << 41
"""The numbers of the first message that is sent, and of the first row that is published. The load of a case has lower
ones.
"""

START: Final = make_offset(1, 0)
"""Where partitions begin. A reader that begins there is told what retention has dropped."""

ROWS: Final = 40
"""The rows of the publication."""

WRITER: Final = "features"

TRY_S: Final = 10.0
RETRY_S: Final = 0.3
LOOK_S: Final = 0.1
ACT_DEADLINE_S: Final = 60.0
"""The deadline for one act. Faults are healed long before it."""

FEATURES: Final = (
    "absence", "dead-letter topic", "growth", "mode", "pause", "policy", "publication", "range", "retention", "rewind",
    "skip",
)  # fmt: skip
ACTS: Final = (1, 3)
"""A case has this many of the features."""

DECLARED_LOSS: Final = "declared loss"
"""A feature that is not drawn: the administrator declares lost what a fault has destroyed of the topic."""

AFTER_S: Final = (0.0, 0.3)
LASTS_S: Final = (0.3, 1.0)
HELD_BACK_S: Final = 0.2
"""The time for which a consumer acknowledges nothing before the mode of its group changes."""

RETENTION_MS: Final = 1_000
POLICIES: Final = (
    RetryPolicy(attempts_max=6, back_off="list", delays_ms=(40, 120), exhausted="park_key", grant_ms=10_000),
    RetryPolicy(attempts_max=9, back_off="list", delays_ms=(200,), exhausted="park_key", grant_ms=10_000),
)
DEAD_LETTERING: Final = RetryPolicy(
    attempts_max=2, back_off="list", delays_ms=(40,), exhausted="dead_letter", grant_ms=10_000
)
FAILING_SHARE: Final = 20
"""One message in this number fails: at its first attempt, or at each attempt in the group with dead letters."""


@dataclass(frozen=True, slots=True)
class Act:
    """One use of a feature.

    Attributes:
        feature: One of `FEATURES`.
        group: The consumer group. It has a meaning only for absence, pause, rewind, skip and declared loss.
        after_s: How long the administrator waits before it, in seconds.
        lasts_s: How long a pause, an absence, another mode, or the absence of the dead-letter topic lasts, in seconds.
    """

    feature: str
    group: str
    after_s: float
    lasts_s: float


def draw(dice: random.Random) -> list[Act]:
    """Draw the acts of a case, in their order."""
    return [
        Act(feature, dice.choice(GROUPS), dice.uniform(*AFTER_S), dice.uniform(*LASTS_S))
        for feature in dice.sample(FEATURES, dice.randint(*ACTS))
    ]


def wrong_range(
    found: Sequence[tuple[int, int]], acknowledged: Mapping[int, int], lost: Sequence[tuple[int, int]]
) -> str:
    """Say what is wrong with a partition that was read from its start; empty if nothing is.

    Args:
        found: The (offset, number) of each message that was read, in the order in which they came.
        acknowledged: The offset of each number that had been acknowledged before the read began.
        lost: The ranges of offsets, [start, end), of which the reader said that their messages are gone.
    """
    read = {number for _, number in found}
    missing = [
        number
        for number, offset in acknowledged.items()
        if number not in read and not any(start <= offset < end for start, end in lost)
    ]
    if missing:
        return f"a range read lacks {len(missing)} acknowledged messages, the first is {min(missing)}"
    if len(read) < len(found):
        return f"a range read has {len(found) - len(read)} messages twice"
    sent = [number for _, number in found if number < PUBLISHED]
    rows = [number for _, number in found if number >= PUBLISHED]
    if sent != sorted(sent) or rows != sorted(rows):
        return "a range read has messages in another order than they were sent"
    if [offset for offset, _ in found] != sorted(offset for offset, _ in found):
        return "the offsets of a range read do not grow"
    return ""


class Features:
    """The features of one case. The caller must `end` it.

    Args:
        bootstrap: The addresses of the cluster.
        case: The number of the case.
        dice: Dice of its own, because the number of draws depends on the time that things take.
        directory: A directory for the history, which is made.
        loses: Whether the fault destroys messages for good. Then it calls `declare_lost`.
        forgets: Whether the coordinator is rebuilt from the disks.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        case: int,
        dice: random.Random,
        directory: Path,
        *,
        loses: bool = False,
        forgets: bool = False,
    ) -> None:
        self.topic = f"case-{case}-features"
        self.acts = draw(dice)
        self.done: list[str] = []  # the features that were used
        self.problems: list[str] = []
        self.has_gaps = loses or any(act.feature == "retention" for act in self.acts)
        self._loses = loses
        # An administrator who rewinds wants the messages without a flag. The rebuild does not know what was given in a
        # mode after whose end no consumer came.
        self._flags_repeats = not forgets and not any(
            (act.feature, act.group) == ("rewind", IN_ORDER) for act in self.acts
        )
        self._directory = directory
        self._bootstrap = list(bootstrap)
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._history: HistoryWriter | None = None
        self._writer: Writer | None = None
        self._partitions = PARTITIONS
        self._acknowledged: dict[int, dict[int, int]] = {}  # partition → number → offset
        self._seen: dict[str, set[int]] = {group: set() for group in GROUPS}  # since the last rewind
        self._holds_back = False  # whether the group in order acknowledges nothing
        self._given: set[int] = set()  # to the group in order, before its mode changed
        self._is_by_key = {IN_ORDER: False, BY_KEY: True, LETTERS: True}
        self._skipped: dict[str, int] = {}  # the group need not see lower numbers than this
        self._is_published = False
        self._gone: set[tuple[int, int, int]] = set()  # (partition, start, end): what range reads heard of
        self._number = FIRST
        self._is_over = asyncio.Event()
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._acting: asyncio.Task[None] | None = None
        self._tries = 0
        self._waited_s = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether there is a history to judge."""
        return self._history is not None

    @property
    def summary(self) -> str:
        """What was done, for humans."""
        count = sum(map(len, self._acknowledged.values()))
        gone = f"; {len(self._gone)} ranges gone" if self._gone else ""
        return (
            f"features: {', '.join(self.done) or 'none'}; {count} messages{gone}; "
            f"{self._tries} tries, waited {self._waited_s:.1f} s for them at the end"
        )

    @property
    def _admin(self) -> Admin:
        assert self._client is not None
        return self._client.admin()

    async def begin(self) -> None:
        """Make the topic and its groups, and let messages flow. Then the administrator acts.

        Raises:
            SeriatimError: The topic or a group could not be made, or a client did not begin.
        """
        self._directory.mkdir()
        begin = {
            "name": "features", "tls": None, "history": str(self._directory / "features.jsonl"),
            "bootstrap": self._bootstrap,
        }  # fmt: skip
        client, self._history = await self._stack.enter_async_context(recorded_client(begin))
        self._client = client
        settings = {
            IN_ORDER: GroupSettings(),
            BY_KEY: GroupSettings("key_ordered", POLICIES[0]),
            LETTERS: GroupSettings("key_ordered", DEAD_LETTERING),
        }
        await self._admin.create_topic(self.topic, PARTITIONS, TopicSettings(flush=True))
        for group in GROUPS:
            await self._admin.create_group(self.topic, group, settings=settings[group])
            self._come(group)
        self._sending = asyncio.create_task(self._send(client), name="messages beside features")
        self._acting = asyncio.create_task(self._act(), name="administrator who uses features")

    async def finish(self) -> list[str]:
        """Wait until all acts are done and the groups have read everything. Return what is wrong.

        Raises:
            SeriatimError: An act was refused to the end, or a group has not read everything in time.
        """
        if self._acting is None or self._sending is None or self._history is None:
            return []  # `begin` failed and said so
        began = time.monotonic()
        try:
            await self._acting
        finally:
            self._is_over.set()
        async with asyncio.timeout(DRAIN_DEADLINE_S):
            await self._sending
        try:
            for group in GROUPS:
                await self._wait_until_done(group)
        finally:
            letters = await self._letters()  # also if a group is not done: the checker must know them
        for group in GROUPS:
            self._history.end(group, topic=self.topic)
            self._judge_seen(group)
        await self._read_ranges(is_last=True)
        self._waited_s = time.monotonic() - began
        if not letters and not self.has_gaps and "dead-letter topic" not in self.done:
            self.problems.append(f"{LETTERS} has no dead letter")
        return self.problems

    async def end(self) -> None:
        """End all tasks, and close the history."""
        tasks = [task for task in (self._acting, self._sending, *self._readers.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()

    def judgement(self) -> Report:
        """Let the checker judge the history. Call it after `end`."""
        report = check([self._directory / "features.jsonl"])
        (self._directory / "judgement.txt").write_text(render(report) + "\n")
        return report

    # ---- the clients ----

    async def _send(self, client: Client) -> None:
        """Send until all acts are done, and then until each partition got a message."""
        producer = await opened(lambda: client.producer(self.topic, delivery_timeout_ms=120_000))
        async with asyncio.TaskGroup() as settling:
            until = time.monotonic() + ACT_DEADLINE_S
            while True:
                if not self._is_over.is_set():
                    until = time.monotonic() + ACT_DEADLINE_S
                elif len(self._acknowledged) == self._partitions:
                    return
                elif time.monotonic() > until:
                    self.problems.append(f"only the partitions {sorted(self._acknowledged)} got messages after growth")
                    return
                value = value_of(self._number, self.topic, SIZE_BYTES)
                delivery = await producer.send(value, key=_key_of(self._number))
                settling.create_task(self._settle(delivery, self._number))
                self._number += 1
                await asyncio.sleep(PAUSE_S)

    async def _settle(self, delivery: Any, number: int) -> None:
        try:
            receipt = await delivery
        except SendError:
            return  # the history has the outcome
        self._acknowledged.setdefault(receipt.partition, {})[number] = receipt.offset

    def _come(self, group: str) -> None:
        read = self._read_by_key if self._is_by_key[group] else self._read
        self._readers[group] = asyncio.create_task(read(group), name=f"consumer of {group}")

    async def _leave(self, group: str) -> None:
        task = self._readers[group]
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()  # it failed

    async def _read(self, group: str) -> None:
        assert self._client is not None
        client = self._client
        consumer: Consumer = await opened(lambda: client.consumer(self.topic, group))
        async with consumer:
            while True:
                for message in await consumer.fetch(500, timeout_s=0.2):
                    self._take(group, message)
                    if not self._holds_back:
                        await consumer.ack(message)

    async def _read_by_key(self, group: str) -> None:
        assert self._client is not None
        client = self._client

        async def handle(message: Message) -> None:
            number = self._take(group, message)
            if group == IN_ORDER and self._holds_back:
                await asyncio.Event().wait()  # until the consumer leaves
            if number % FAILING_SHARE == 0 and self._fails(group, message.attempt):
                raise ValueError("not valid")

        consumer = await opened(
            lambda: client.consumer(self.topic, group, mode="key_ordered", session_ms=2_000, in_flight_max=64)
        )
        async with consumer:
            await consumer.run(handle, 8)

    def _take(self, group: str, message: Message) -> int:
        """A message came. Returns its number."""
        number = number_of(message.value)
        if group == IN_ORDER and number in self._given and not message.maybe_repeated and self._flags_repeats:
            self._given.clear()  # the first one is enough
            self.problems.append(f"{group} got message {number} again without a flag, after its mode had changed")
        self._seen[group].add(number)
        return number

    def _fails(self, group: str, attempt: int) -> bool:
        """Whether the group fails on this attempt at one of the messages that fail."""
        if group == IN_ORDER:
            return False  # its mode changes, and that is refused while messages are set aside
        if group == LETTERS:
            return not self._loses  # a dead letter may be lost too, and then nothing lists it
        return attempt == 1

    # ---- the administrator ----

    async def _act(self) -> None:
        for act in self.acts:
            await asyncio.sleep(act.after_s)
            await self._do(act)
            self.done.append(act.feature)

    async def _do(self, act: Act) -> None:
        if act.feature == "absence":
            await self._leave(act.group)
            await asyncio.sleep(act.lasts_s)
            self._come(act.group)
        elif act.feature == "pause":
            await self._until_done(act, "pause", lambda: self._operated(self._admin.pause_group, act.group))
            await asyncio.sleep(act.lasts_s)
            await self._until_done(act, "resume", lambda: self._operated(self._admin.resume_group, act.group))
        elif act.feature == "dead-letter topic":
            await self._without_dead_letter_topic(act)
        elif act.feature == "mode":
            await self._change_mode(act)
        else:
            doing: dict[str, Callable[[], Any]] = {
                "growth": self._grow,
                "policy": self._change_policy,
                "publication": self._publish,
                "range": self._read_ranges,
                "retention": self._keep_briefly,
                "rewind": lambda: self._rewind(act.group),
                "skip": lambda: self._skip(act.group),
            }
            await self._until_done(act, act.feature, doing[act.feature])

    async def _until_done(self, act: Act, what: str, do: Callable[[], Any]) -> None:
        """Try again while brokers are away.

        Raises:
            DeadlineExceededError: It was not done within `ACT_DEADLINE_S`.
        """
        until = time.monotonic() + ACT_DEADLINE_S
        while True:
            self._tries += 1
            try:
                async with asyncio.timeout(TRY_S):
                    said = await do()
            except (SeriatimError, TimeoutError) as error:
                said = f"{type(error).__name__}: {error}"
            if not said:
                return
            if time.monotonic() > until:
                raise DeadlineExceededError(f"{what} ({act.group}) was not done in {ACT_DEADLINE_S:g} s: {said}")
            await asyncio.sleep(RETRY_S)

    async def _operated(self, operate: Callable[..., Any], group: str, *arguments: Any, **options: Any) -> str:
        rows: Sequence[OperatedPartition] = await operate(self.topic, group, *arguments, **options)
        return _refused(rows)

    async def _grow(self) -> None:
        await self._admin.update_topic(self.topic, PARTITIONS + 1)
        self._partitions = PARTITIONS + 1

    async def _change_policy(self) -> str:
        return await self._configure(BY_KEY, retry=POLICIES[1])

    async def _change_mode(self, act: Act) -> None:
        """Let the group in order be one by key for some time. It has no consumers while its mode changes.

        Before its consumer leaves, it does not acknowledge any more. So some messages come again in the new mode.
        """
        for mode in ("key_ordered", "exclusive"):
            self._holds_back = True
            await asyncio.sleep(HELD_BACK_S)
            await self._leave(IN_ORDER)
            self._holds_back = False
            self._given = set(self._seen[IN_ORDER])
            await self._until_done(act, f"mode {mode}", partial(self._configure, IN_ORDER, mode=mode))
            self._is_by_key[IN_ORDER] = mode == "key_ordered"
            self._come(IN_ORDER)
            await asyncio.sleep(act.lasts_s)

    async def _configure(self, group: str, **settings: Any) -> str:
        return await self._operated(self._admin.configure_group, group, **settings)

    async def _keep_briefly(self) -> None:
        await self._admin.update_topic(self.topic, retention_ms=RETENTION_MS)

    async def _rewind(self, group: str) -> str:
        self._seen[group].clear()  # all come again
        self._skipped.pop(group, None)
        return await self._operated(self._admin.rewind_group, group, "earliest", drop_aside=True)

    async def _skip(self, group: str) -> str:
        """Skip to the end. The group may have reached the end, and more, since it was looked up: nothing is skipped."""
        try:
            rows = await self._admin.skip_group(self.topic, group, "latest", drop_aside=True)
        except OffsetOutOfRangeError:
            return ""
        said = _refused(row for row in rows if row.error_number != OffsetOutOfRangeError.number)
        self._skipped[group] = PUBLISHED + ROWS if self._is_published else self._number
        return said

    async def _publish(self) -> None:
        assert self._client is not None
        if self._writer is None:
            self._writer = await self._stack.enter_async_context(self._client.writer(self.topic, WRITER))
        await self._writer.open()
        numbers = range(PUBLISHED, PUBLISHED + ROWS)
        chunk = await self._writer.stage(
            [value_of(number, self.topic, SIZE_BYTES) for number in numbers], list(map(_key_of, numbers))
        )
        try:
            await self._writer.publish(1, [chunk], timeout_s=TRY_S)
        except PublishedWithLossError as error:
            if not self._loses:
                self.problems.append(f"a publication says that rows were lost: {error}")
        self._is_published = True

    async def _without_dead_letter_topic(self, act: Act) -> None:
        """Delete the dead-letter topic, and make it again after a while.

        Before that the administrator pauses the group until nothing is on its way, and lists the letters. So the
        history has the letters that are deleted.
        """
        topic = dead_letter_topic_of(self.topic, LETTERS)

        async def rests() -> str:
            rows = (await self._admin.describe_group(self.topic, LETTERS)).partitions
            wait = [row.partition for row in rows if row.error or row.in_flight_messages or row.forwarding_keys]
            return f"messages are on their way on partitions {wait}" if wait else ""

        async def delete() -> None:
            with suppress(UnknownTopicError):  # an earlier try deleted it, and its answer did not come
                await self._letters()
                await self._admin.delete_topic(topic)

        async def make() -> None:
            with suppress(TopicExistsError):
                await self._admin.create_topic(topic, self._partitions, TopicSettings(flush=True))

        await self._until_done(act, "pause", lambda: self._operated(self._admin.pause_group, LETTERS))
        await self._until_done(act, "rest", rests)
        await self._until_done(act, "deletion of the dead-letter topic", delete)
        await self._until_done(act, "resume", lambda: self._operated(self._admin.resume_group, LETTERS))
        await asyncio.sleep(act.lasts_s)
        await self._until_done(act, "creation of the dead-letter topic", make)

    async def _letters(self) -> list[DeadLetter]:
        """List the dead letters, so that the history has them."""
        topic = dead_letter_topic_of(self.topic, LETTERS)
        return [letter async for letter in self._admin.dead_letters(topic, LETTERS)]

    async def declare_lost(self, brokers: Collection[str], issuer: str) -> None:
        """Declare lost what only these brokers had, of the topic and of its dead letters. Their disks are gone.

        Raises:
            DeadlineExceededError: It was not declared within `ACT_DEADLINE_S`.
        """
        act = Act(DECLARED_LOSS, "all groups", 0.0, 0.0)
        await self._until_done(act, DECLARED_LOSS, partial(self._declare_lost, brokers, issuer))
        self.done.append(DECLARED_LOSS)

    async def _declare_lost(self, brokers: Collection[str], issuer: str) -> str:
        for topic in (self.topic, dead_letter_topic_of(self.topic, LETTERS)):
            with suppress(UnknownTopicError):  # the administrator has deleted the dead-letter topic
                for chain in (await self._admin.describe_topic(topic)).chains:
                    for segment in chain.segments:
                        if segment.state == "LOST" or not set(segment.members) <= set(brokers):
                            continue
                        if segment.state == "OPEN":
                            return f"segment {segment.no} of partition {chain.partition} of {topic} is still open"
                        await self._admin.declare_gap(topic, chain.partition, segment.no, issuer)
        return ""

    # ---- the judgement ----

    async def _wait_until_done(self, group: str) -> None:
        """Wait until the group has nothing left to do.

        Raises:
            DeadlineExceededError: It has, after `DRAIN_DEADLINE_S`.
        """
        until, wanted = time.monotonic() + DRAIN_DEADLINE_S, sum(map(len, self._acknowledged.values()))
        while True:
            if self._readers[group].done():
                self._readers[group].result()
            try:
                rows = (await self._admin.describe_group(self.topic, group)).partitions
                waits = what_waits(rows)
                if not waits and len(rows) < self._partitions:
                    waits = f"it has a place on {len(rows)} of {self._partitions} partitions"
                # If a segment was declared lost before its length was known, its messages have no positions.
                if not waits and not self._loses and sum(row.end_position for row in rows) < wanted:
                    waits = f"the partitions end before {wanted} messages"
            except SeriatimError as error:
                waits = str(error)
            if not waits:
                return
            if time.monotonic() > until:
                raise DeadlineExceededError(f"{group} is not done after {DRAIN_DEADLINE_S:g} s: {waits}")
            await asyncio.sleep(LOOK_S)

    def _judge_seen(self, group: str) -> None:
        """All messages came since the last rewind, except those that were skipped or may have been dropped."""
        if self.has_gaps:
            return  # the checker judges by the gaps of which consumers were notified
        numbers: Collection[int] = [number for found in self._acknowledged.values() for number in found]
        if self._is_published:
            numbers = [*numbers, *range(PUBLISHED, PUBLISHED + ROWS)]
        if missing := {number for number in numbers if number >= self._skipped.get(group, 0)} - self._seen[group]:
            self.problems.append(f"{len(missing)} messages did not come to {group}, the first is {min(missing)}")

    async def _read_ranges(self, *, is_last: bool = False) -> None:
        """Read each partition from its start, and judge what came."""
        assert self._client is not None
        rows: Counter[int] = Counter()
        for partition in range(self._partitions):
            acknowledged = dict(self._acknowledged.get(partition, {}))
            lost: list[LostRange] = []
            async with self._client.read_range(self.topic, partition, START, on_loss=lost.append) as reader:
                found = [(message.offset, number_of(message.value)) async for message in reader]
            self._gone |= {(partition, one.start, one.end) for one in lost}
            rows.update(number for _, number in found if number >= PUBLISHED)
            if lost and not self.has_gaps:
                self.problems.append(f"a range read says that messages are gone, and none was dropped: {lost[0]}")
            if said := wrong_range(found, acknowledged, [(one.start, one.end) for one in lost]):
                self.problems.append(f"partition {partition} of {self.topic}: {said}")
        if twice := [number for number, count in rows.items() if count > 1]:
            self.problems.append(f"{len(twice)} published rows are in {self.topic} twice")
        if is_last and self._is_published and not self.has_gaps and len(rows) != ROWS:
            self.problems.append(f"{len(rows)} of {ROWS} published rows are in {self.topic}")


def _refused(rows: Iterable[OperatedPartition]) -> str:
    return "; ".join(f"partition {row.partition}: {row.error}" for row in rows if row.error is not None)


def _key_of(number: int) -> bytes:
    return b"key-%d" % (number % KEYS)
