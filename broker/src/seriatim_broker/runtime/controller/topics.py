"""What the controller does about topics: it makes them with all their partitions, lets them grow, and deletes them.

A topic is written as CREATING, its partitions are made by switches to their first segments, and then it is READY. A
topic that grows stays READY: the ids of its new partitions are set aside in its record until all of them accept
messages. If one controller leaves something half done, the next one finishes it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import structlog
from seriatim_api.errors import (
    BadRequestError,
    CoordinatorBehindError,
    CoordinatorRefusedError,
    DeadlineExceededError,
    NotServingError,
    PreconditionError,
    SeriatimError,
    TopicExistsError,
    UnavailableError,
    UnknownTopicError,
)
from seriatim_api.ids import PartitionId, TopicIncarnation, partition_name
from seriatim_api.publications import STAGE_TOPIC
from seriatim_api.v1 import records_pb2

from ...core.values.effects import Resolved
from ...core.values.events import CreatePartition
from ...core.values.keyed import Exhausted
from ...core.values.placement import CHAIN_WIDTH_DEFAULT, send_chain, weights_of
from ...interfaces.clock import Clock
from ...interfaces.coordinator import (
    Compare,
    Coordinator,
    Delete,
    DeletePrefix,
    Get,
    Operation,
    Put,
    absent,
    mod_revision_is,
)
from ..coordinator.group_epochs import EpochFloor
from ..coordinator.keys import Keys
from ..coordinator.operator_lease import Guard, unguarded
from ..driver.driver import Driver, ask
from ..membership.directory import Directory
from ..membership.election import Election
from .consumer_group_growth import give_cursors, groups_on

CREATES_IN_FLIGHT_MAX = 64
"""Partitions that are made at once: as many as transactions go to the coordinator at once."""

CREATE_DEADLINE_S = 10.0
CREATE_RETRIES = 20
RETRY_S = 0.1
GROUP_TRIES_MAX = 20
"""Tries to let new partitions belong to their topic. A try fails if a consumer group is made at the same time. If one
is made within each try, the partitions are added all the same, and the groups are looked for once more after it."""

AGAIN_S_MIN, AGAIN_S_MAX = 1.0, 30.0
"""Seconds until the controller tries again what it left half done. They double as long as it fails."""

DELETES_PER_TXN = 30
"""Partitions deleted in one transaction: four operations each, below the coordinator's limit of 128."""

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Topics:
    """Makes and deletes topics, in the elected broker."""

    _coordinator: Coordinator
    _keys: Keys
    _driver: Driver
    _directory: Directory
    _election: Election
    _clock: Clock

    def __post_init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None  # of the topics that are being finished, while elected
        self._finishing: dict[str, asyncio.Task[records_pb2.TopicRecord | SeriatimError]] = {}  # by incarnation
        self._creates = asyncio.Semaphore(CREATES_IN_FLIGHT_MAX)
        # A call that takes partition ids holds it. Without it: 1. Many topics are made at once. 2. One takes its ids,
        # and all others try again. 3. On a busy machine some try for longer than their callers wait.
        self._counting = asyncio.Lock()
        self._left_over = asyncio.Event()  # something may be half done, and no task is at it

    def begin(self, group: asyncio.TaskGroup) -> None:
        """Take requests from now on. Tasks of `group` finish what they begin."""
        self._group = group

    def end(self) -> None:
        """Take no more requests."""
        self._group = None

    async def create(
        self,
        name: str,
        partition_count: int,
        settings: records_pb2.TopicSettings,
        deadline_s: float,
        incarnation: TopicIncarnation | None = None,
        guard: Guard = unguarded,
    ) -> records_pb2.TopicRecord:
        """Make a topic with all its partitions. Returns its record when it is READY.

        If there is a topic with this incarnation, the call is the same request again, and waits for that topic. If the
        call is cancelled, the controller still makes a topic that was begun.

        Args:
            name: Of the topic.
            partition_count: How many partitions it gets.
            settings: Of the topic.
            deadline_s: How long to wait for the partitions.
            incarnation: A new id by which a repeated request is recognised; None: this broker draws one.
            guard: Compared where the topic is begun. The controller does the rest, whichever operator asked.

        Raises:
            TopicExistsError: There is another topic with that name.
            NotServingError: This broker is not the controller.
            DeadlineExceededError: The topic is not complete yet. The controller continues with it.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        new = incarnation or TopicIncarnation.of_bytes(uuid.uuid4().bytes)
        with self._goes_on():
            async with self._counting:
                record = await self._begin_topic(name, partition_count, settings, new, guard)
        return await self._finished(record, until_s - loop.time())

    async def update(
        self,
        name: str,
        incarnation: str | None,
        partition_count: int,
        change: Callable[[records_pb2.TopicSettings], None],
        deadline_s: float,
        guard: Guard = unguarded,
    ) -> records_pb2.TopicRecord:
        """Add partitions, change settings, or both. Returns the record when all partitions accept messages.

        If the same request comes again, it changes nothing and waits. If the call is cancelled, partitions that were
        begun are still made.

        Args:
            name: Of the topic.
            incarnation: Of the topic that is meant; None: the one that has the name now.
            partition_count: How many there should be; 0: as many as there are.
            change: Changes the settings in place.
            deadline_s: How long to wait for new partitions.
            guard: Compared where the change is written.

        Raises:
            UnknownTopicError: There is no such topic.
            PreconditionError: Another incarnation has the name, or `change` refused.
            BadRequestError: The topic has more partitions already.
            NotServingError: This broker is not the controller, or the topic is being made.
            DeadlineExceededError: The partitions are not complete yet. The controller continues with them.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        with self._goes_on():
            async with self._counting if partition_count else nullcontext():
                record = await self._write_update(name, incarnation, partition_count, change, guard)
        while record.growing_partition_ids:  # the task may have finished just before these were set aside
            record = await self._finished(record, until_s - loop.time())
            item = await self._coordinator.get(self._keys.topic(name))
            if item is None:
                raise UnknownTopicError(f"topic {name!r} was deleted", topic=name)
            record = records_pb2.TopicRecord.FromString(item.value)
            _check_is_meant(record, incarnation)
        return record

    async def _finished(self, record: records_pb2.TopicRecord, deadline_s: float) -> records_pb2.TopicRecord:
        finishing = self._finishing.get(record.incarnation) or self._begin_finishing(record)
        await asyncio.wait((finishing,), timeout=max(0.0, deadline_s))
        if not finishing.done():
            raise DeadlineExceededError(
                f"topic {record.name!r} is not complete yet; the controller continues with it", topic=record.name
            )
        if finishing.cancelled():
            raise NotServingError("this broker is not the controller any more")
        result = finishing.result()
        if isinstance(result, SeriatimError):
            raise result
        return result

    def _begin_finishing(
        self, record: records_pb2.TopicRecord
    ) -> asyncio.Task[records_pb2.TopicRecord | SeriatimError]:
        """Start the task that makes the rest of a topic. It continues if the caller does not wait any more."""
        if self._group is None:
            raise NotServingError("this broker is not the controller")

        async def finish() -> records_pb2.TopicRecord | SeriatimError:
            try:
                return await self._finish_topic(record)
            except UnknownTopicError as exc:
                return exc
            except SeriatimError as exc:
                _log.warning("topic_not_finished", topic=record.name, error=str(exc))
                self._left_over.set()
                return exc

        task = self._group.create_task(finish(), name=f"topic {record.name}")
        self._finishing[record.incarnation] = task
        task.add_done_callback(lambda _: self._finishing.pop(record.incarnation, None))
        return task

    async def delete(self, name: str, guard: Guard = unguarded, incarnation: str | None = None) -> None:
        """Delete a topic and all its data.

        A deletion that failed half way is continued. A topic whose creation failed half way, or is under way, is
        deleted too: no more partitions of it are made, because the transaction that makes one compares its tombstone.
        If the call is cancelled after the record says DELETING, the next controller continues.

        Args:
            name: Of the topic.
            guard: Compared where the deletion is decided.
            incarnation: Of the topic that is meant; None: the one that has the name now.

        Raises:
            UnknownTopicError: There is no such topic.
            NotServingError: This broker is not the controller, or the topic was changed at the same time.
            PreconditionError: Another incarnation than the one that is meant has the name.
        """
        key = self._keys.topic(name)
        guarded = await guard()
        item = await self._coordinator.get(key)
        if item is None:
            raise UnknownTopicError(f"there is no topic {name!r}", topic=name)
        record = records_pb2.TopicRecord.FromString(item.value)
        _check_same(record, incarnation)
        revision = item.mod_revision
        if record.state != records_pb2.TOPIC_STATE_DELETING:
            record.state = records_pb2.TOPIC_STATE_DELETING
            with self._goes_on():
                result = await self._election.txn(
                    [*guarded, mod_revision_is(key, revision)], [Put(key, record.SerializeToString())]
                )
            if not result.succeeded:
                raise NotServingError(f"topic {name!r} was changed at the same time", retry_after_ms=50)
            revision = result.revision
        finishing = self._finishing.get(record.incarnation)
        if finishing is not None:
            finishing.cancel()
            await asyncio.gather(finishing, return_exceptions=True)
        with self._goes_on():
            await self._remove_topic(record, revision)

    async def _write_update(
        self,
        name: str,
        incarnation: str | None,
        partition_count: int,
        change: Callable[[records_pb2.TopicSettings], None],
        guard: Guard,
    ) -> records_pb2.TopicRecord:
        """Write the new settings, and set ids aside for new partitions, in one transaction."""
        key, counter_key = self._keys.topic(name), self._keys.partition_counter
        while True:
            guarded = await guard()
            found, counter_item = (
                response.item for response in (await self._coordinator.txn((), [Get(key), Get(counter_key)])).responses
            )
            if found is None or counter_item is None:
                raise UnknownTopicError(f"there is no topic {name!r}", topic=name)
            record = records_pb2.TopicRecord.FromString(found.value)
            _check_is_meant(record, incarnation)
            change(record.settings)
            counter = records_pb2.CounterRecord.FromString(counter_item.value)
            first, missing = counter.next, _missing_count(record, partition_count)
            record.growing_partition_ids.extend(range(first, first + missing))
            counter.next += missing
            if record == records_pb2.TopicRecord.FromString(found.value):
                return record
            compares = [*guarded, mod_revision_is(key, found.mod_revision)]
            puts = [Put(key, record.SerializeToString())]
            if missing:
                compares.append(mod_revision_is(counter_key, counter_item.mod_revision))
                puts.append(Put(counter_key, counter.SerializeToString()))
            if (await self._election.txn(compares, puts)).succeeded:
                _log.info("topic_updated", topic=name, partitions_added=missing)
                return record

    async def _begin_topic(
        self,
        name: str,
        partition_count: int,
        settings: records_pb2.TopicSettings,
        incarnation: TopicIncarnation,
        guard: Guard,
    ) -> records_pb2.TopicRecord:
        """Take partition ids and write the topic as CREATING, in one transaction."""
        key, counter_key = self._keys.topic(name), self._keys.partition_counter
        while True:
            guarded = await guard()
            found, counter_item = (
                response.item for response in (await self._coordinator.txn((), [Get(key), Get(counter_key)])).responses
            )
            if found is not None:
                known = records_pb2.TopicRecord.FromString(found.value)
                if known.incarnation == incarnation:
                    return known
                raise TopicExistsError(f"there is a topic {name!r} already", topic=name)
            counter = records_pb2.CounterRecord(next=1)
            if counter_item is not None:
                counter = records_pb2.CounterRecord.FromString(counter_item.value)
            first = counter.next
            counter.next += partition_count
            record = records_pb2.TopicRecord(
                name=name,
                incarnation=incarnation,
                state=records_pb2.TOPIC_STATE_CREATING,
                partition_ids=range(first, first + partition_count),
                settings=settings,
                created_at_ms=self._clock.wall_ms(),
            )
            compares = [
                *guarded,
                absent(key),
                mod_revision_is(counter_key, counter_item.mod_revision if counter_item else 0),
            ]
            puts = [Put(key, record.SerializeToString()), Put(counter_key, counter.SerializeToString())]
            if (await self._election.txn(compares, puts)).succeeded:
                return record

    async def _finish_topic(self, record: records_pb2.TopicRecord) -> records_pb2.TopicRecord:
        """Make the partitions that are missing, also those that are added meanwhile. Then write the record as READY."""
        tries = 0
        while True:
            await self._create_partitions(record)
            compares: list[Compare] = []
            if record.growing_partition_ids and record.name != STAGE_TOPIC:  # that one has no consumer groups
                none_rebuilt, none_made = await self._extend_groups(record)
                tries += 1
                compares += [none_rebuilt, none_made] if tries <= GROUP_TRIES_MAX else [none_rebuilt]
            item = await self._coordinator.get(self._keys.topic(record.name))
            written = records_pb2.TopicRecord.FromString(item.value) if item is not None else None
            if (
                item is None
                or written is None
                or written.incarnation != record.incarnation
                or written.state == records_pb2.TOPIC_STATE_DELETING
            ):
                raise UnknownTopicError(f"topic {record.name!r} was deleted", topic=record.name)
            if written.state == records_pb2.TOPIC_STATE_READY and not written.growing_partition_ids:
                return written  # the same request, sent earlier, has finished it
            if _all_ids(written) == _all_ids(record):
                ready = records_pb2.TopicRecord()
                ready.CopyFrom(written)
                ready.state = records_pb2.TOPIC_STATE_READY
                ready.partition_ids.extend(ready.growing_partition_ids)
                del ready.growing_partition_ids[:]
                compares.append(mod_revision_is(item.key, item.mod_revision))
                if (await self._election.txn(compares, [Put(item.key, ready.SerializeToString())])).succeeded:
                    if tries > GROUP_TRIES_MAX:
                        await self._extend_groups(record)
                    _log.info("topic_ready", topic=record.name, partitions=len(ready.partition_ids))
                    return ready
            record = written

    async def _extend_groups(self, record: records_pb2.TopicRecord) -> tuple[Compare, Compare]:
        """Give the topic's groups cursors on the new partitions, and the groups' dead-letter topics as many partitions.

        Returns:
            What a transaction compares so that no rebuild has begun since, and that no group was made since (rules
            `growth-after-rebuild` and `growth-sees-groups`).

        Raises:
            CoordinatorBehindError: A rebuild has begun, and not ended.
        """
        made = self._keys.cursors_made(record.name)
        read = await self._coordinator.txn((), [Get(made), Get(self._keys.group_epoch)])
        item, floor = read.responses[0].item, EpochFloor.of(read.responses[1].item)
        if floor.is_rebuilding:
            raise CoordinatorBehindError(
                f"topic {record.name!r} has not grown: a rebuild of the coordinator has begun. When it has ended, the "
                "partitions are added. If it was interrupted, run seriatim coordinator rebuild again"
            )
        known = [PartitionId(id_) for id_ in record.partition_ids]
        added = [PartitionId(id_) for id_ in record.growing_partition_ids]
        groups = await groups_on(self._coordinator, self._keys, known)
        await give_cursors(self._coordinator, self._keys, record.name, known, added, groups)
        retries = (row.retry for _, _, row in groups.values())
        names = {retry.dead_letter_topic for retry in retries if retry.exhausted is Exhausted.DEAD_LETTER}
        for name in sorted(names - {"", record.name}):
            try:  # this does not wait for it: a dead letter waits until its partition is there
                grown = await self._write_update(name, "", len(known) + len(added), lambda _: None, unguarded)
                if grown.growing_partition_ids and grown.incarnation not in self._finishing:
                    self._begin_finishing(grown)
            except BadRequestError:
                pass  # it has more partitions already
            except SeriatimError as exc:
                _log.warning("dead_letter_topic_not_extended", topic=name, source=record.name, error=str(exc))
        return floor.unchanged(self._keys), mod_revision_is(made, item.mod_revision if item is not None else 0)

    async def _create_partitions(self, record: records_pb2.TopicRecord) -> None:
        """Make the partitions of a topic that do not exist yet."""
        groups = self._directory.placeable()
        weights = weights_of(self._directory.specs)
        if not groups:
            raise NotServingError("no broker group is admitted yet", retry_after_ms=200)
        known = 0 if record.state == records_pb2.TOPIC_STATE_CREATING else len(record.partition_ids)
        await _all_of(
            self._create_partition(
                record,
                number,
                PartitionId(partition),
                send_chain(PartitionId(partition), groups, chain_width=record.settings.chain_width, weights=weights),
            )
            for number, partition in enumerate(_all_ids(record))
            if number >= known
        )

    async def _create_partition(
        self, record: records_pb2.TopicRecord, number: int, partition: PartitionId, chain: tuple[str, ...]
    ) -> None:
        """Have the core make a partition, unless it exists already."""
        width = record.settings.chain_width or CHAIN_WIDTH_DEFAULT
        name = partition_name(record.name, number)
        async with self._creates:
            for attempt in range(CREATE_RETRIES):
                if await self._coordinator.get(self._keys.chain(partition)) is not None:
                    return
                reply = await self._ask(
                    lambda request: CreatePartition(
                        request, partition, record.name, number, record.settings.flush, chain, width
                    )
                )
                if reply is not None and reply.error is None:
                    return
                _log.info(
                    "partition_not_made",
                    partition=partition_name(record.name, number),
                    attempt=attempt,
                    error=str(reply and reply.error),
                )
                await asyncio.sleep(RETRY_S)
        raise UnavailableError(f"{name} could not be made")

    async def _ask(self, event_of: Callable[[int], CreatePartition]) -> Resolved | None:
        try:
            reply = await ask(self._driver, event_of, CREATE_DEADLINE_S)
        except TimeoutError:
            return None
        assert isinstance(reply, Resolved)
        return reply

    @contextmanager
    def _goes_on(self) -> Iterator[None]:
        """If a write has no answer, or is cancelled, it may be carried out: `keep_finishing` then does the rest."""
        try:
            yield
        except (UnavailableError, CoordinatorRefusedError, asyncio.CancelledError):
            self._left_over.set()
            raise

    async def keep_finishing(self) -> None:
        """Finish what an earlier controller left half done, and what this one does, until cancelled.

        Rule `tries-again` (I13): what failed is tried again, whether or not a client still waits for it. Without it:
          1. The controller adds a partition. The coordinator answers nothing for 5 s, and the client gives up.
          2. The partition accepts messages, and does not belong to the topic until another controller is elected.
        """
        pause_s = AGAIN_S_MIN
        while True:
            self._left_over.clear()
            await self.finish_topics()
            pause_s = min(2 * pause_s, AGAIN_S_MAX) if self._left_over.is_set() else AGAIN_S_MIN
            await self._left_over.wait()
            await asyncio.sleep(pause_s)

    async def finish_topics(self) -> None:
        """Finish once all that is half done."""
        for item in (await self._coordinator.list(self._keys.topics)).items:
            record = records_pb2.TopicRecord.FromString(item.value)
            try:
                if record.state == records_pb2.TOPIC_STATE_DELETING:
                    await self._remove_topic(record, item.mod_revision)
                elif record.state == records_pb2.TOPIC_STATE_CREATING or record.growing_partition_ids:
                    await asyncio.wait((self._finishing.get(record.incarnation) or self._begin_finishing(record),))
            except SeriatimError as exc:
                _log.warning("topic_not_finished", topic=record.name, error=str(exc))
                self._left_over.set()

    async def _remove_topic(self, record: records_pb2.TopicRecord, revision: int) -> None:
        """Write tombstones and delete chains in the same transactions. Delete the topic's own key last.

        That key is deleted only if it is as it was at `revision`, because it may be a new topic's already.
        """
        partitions = _all_ids(record)
        for start in range(0, len(partitions), DELETES_PER_TXN):
            operations: list[Operation] = []
            for partition in partitions[start : start + DELETES_PER_TXN]:
                tombstone = records_pb2.PartitionTombstone(
                    partition_id=partition,
                    topic=record.name,
                    topic_incarnation=record.incarnation,
                    deleted_at_ms=self._clock.wall_ms(),
                )
                operations += [
                    Put(self._keys.tombstone(partition), tombstone.SerializeToString()),
                    Delete(self._keys.chain(partition)),
                    DeletePrefix(self._keys.pages_of(partition)),
                    DeletePrefix(self._keys.cursors_of(partition)),
                ]
            await self._election.txn([], operations)
        await self._election.txn([], [DeletePrefix(self._keys.writers_of(record.incarnation))])
        key = self._keys.topic(record.name)
        await self._election.txn(
            [mod_revision_is(key, revision)], [Delete(key), Delete(self._keys.cursors_made(record.name))]
        )
        _log.info("topic_deleted", topic=record.name, partitions=len(partitions))


def _all_ids(record: records_pb2.TopicRecord) -> list[PartitionId]:
    """The ids of the partitions by number, those that are being added last."""
    return [PartitionId(partition) for partition in (*record.partition_ids, *record.growing_partition_ids)]


def _check_is_meant(record: records_pb2.TopicRecord, incarnation: str | None) -> None:
    if record.state == records_pb2.TOPIC_STATE_DELETING:
        raise UnknownTopicError(f"there is no topic {record.name!r}", topic=record.name)
    _check_incarnation(record, incarnation)


def _check_same(record: records_pb2.TopicRecord, incarnation: str | None) -> None:
    if incarnation not in (None, record.incarnation):
        raise PreconditionError(
            f"topic {record.name!r} was deleted and recreated: it is {record.incarnation}", topic=record.name
        )


def _check_incarnation(record: records_pb2.TopicRecord, incarnation: str | None) -> None:
    _check_same(record, incarnation)
    if record.state != records_pb2.TOPIC_STATE_READY:
        raise NotServingError(f"topic {record.name!r} is being created", retry_after_ms=50, topic=record.name)


def _missing_count(record: records_pb2.TopicRecord, partition_count: int) -> int:
    """How many partitions must be added, besides those that are being added."""
    if partition_count == 0:
        return 0
    if partition_count < len(record.partition_ids):
        raise BadRequestError(
            f"topic {record.name!r} has {len(record.partition_ids)} partitions, and none is ever taken away: "
            f"{partition_count} are too few",
            topic=record.name,
        )
    return max(0, partition_count - len(_all_ids(record)))


async def _all_of(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of them at once. The first failure ends the others and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
