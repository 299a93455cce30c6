"""The controller: one broker, elected, that looks after the cluster. Never needed for a switch.

It admits incarnations, creates and deletes topics, notices groups of which nobody is left, and has sealed segments
copied that have too few copies. Every transaction of its own compares its election key, so one that was deposed
without noticing changes nothing. Chains are looked at only when something happened: a group was lost, a member has
been away for `heal_after`; there is no round over all partitions on a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from seriatim_api.errors import (
    CorruptionError,
    DeadlineExceededError,
    NotServingError,
    SeriatimError,
    TopicExistsError,
    UnavailableError,
    UnknownTopicError,
)
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.v1 import records_pb2

from ..core.chain import Chain
from ..core.controller import MemberView, lost_groups, plan_heals, switch_away
from ..core.effects import Resolved
from ..core.events import CreatePartition
from ..core.placement import send_chain
from ..interfaces.coordinator import (
    Compare,
    Coordinator,
    Delete,
    DeletePrefix,
    Get,
    Operation,
    Put,
    TxnResult,
    absent,
    create_revision_is,
    mod_revision_is,
)
from .directory import Directory
from .driver import Driver, Reply
from .keys import CHAINS_PER_PAGE, Keys
from .lease import LeaseKeeper
from .membership import Identity
from .pages import read_all_whole
from .records import member_from_record, member_to_record, parse_chain

CREATES_IN_FLIGHT_MAX = 64
"""Partitions that are being made at once: as many transactions as go to the coordinator at once."""

CREATE_DEADLINE_S = 10.0
CREATE_RETRIES = 20
RETRY_S = 0.1
DELETES_PER_TXN = 30
"""Partitions deleted in one transaction: four operations each, below the coordinator's limit of 128."""

CHAINS_PER_READ = 250
"""Chains listed at a time: a record has some hundred bytes as a rule, and 30 KB where a chain is long."""

HEALS_PER_PASS_MAX = 32
HEAL_PASS_S = 5.0
"""Between two looks while there is something to heal."""

LIVE_GRACE_S = 1.0
"""A live key that has gone counts after this: the holder may have lost its lease only, and be writing a new one."""

SWITCH_AWAY_AGAIN_S = 2.0
"""While a group stays lost, its partitions are looked up again after this: a switch may have failed otherwise."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times of the controller.

    Attributes:
        heal_after_s: A member that was away for so long is taken for gone: its sealed segments are copied.
        min_copies: Copies that a sealed segment should have.
    """

    heal_after_s: float = 600.0
    min_copies: int = 2


class Controller:
    """Runs in every broker; does something in the elected one.

    Attributes:
        is_leader: Whether this broker was elected, as far as it knows.
        leader: The broker that was elected, as far as this one knows; empty for none.
    """

    def __init__(
        self,
        identity: Identity,
        coordinator: Coordinator,
        keys: Keys,
        driver: Driver,
        directory: Directory,
        lease: LeaseKeeper,
        is_linked: Callable[[str], bool],
        settings: ControllerSettings,
    ) -> None:
        self._identity = identity
        self._coordinator = coordinator
        self._keys = keys
        self._driver = driver
        self._directory = directory
        self._lease = lease
        self._is_linked = is_linked
        self._settings = settings
        self._election = 0
        self._group: asyncio.TaskGroup | None = None  # of the duties, while elected
        self._finishing: dict[str, asyncio.Task[records_pb2.TopicRecord | SeriatimError]] = {}  # by incarnation
        self._creates = asyncio.Semaphore(CREATES_IN_FLIGHT_MAX)
        self._changed = asyncio.Event()
        self._away_since: dict[MemberId, float] = {}
        self.is_leader = False
        self.leader = ""
        directory.on_change(self._changed.set)

    # ---- election ----

    async def run(self) -> None:
        """Stand for election, and lead while elected, until cancelled."""
        while True:
            try:
                if not self._lease.is_held:
                    await asyncio.sleep(RETRY_S)
                elif await self._elect():
                    await self._lead()
                else:
                    await self._wait_for_vacancy()
            except SeriatimError as exc:
                _log.warning("controller_interrupted", error=str(exc))
                await asyncio.sleep(RETRY_S)
            finally:
                self.is_leader = False

    async def resign(self) -> None:
        """Give the office up on the way out."""
        if self.is_leader:
            with contextlib.suppress(SeriatimError):
                await self._txn([], [Delete(self._keys.controller)])
            self.is_leader = False

    async def _elect(self) -> bool:
        member = self._identity.member
        if not self._directory.is_admitted(member) and await self._somebody_is_admitted():
            await asyncio.sleep(RETRY_S)
            return False
        record = records_pb2.ControllerRecord(broker=member.broker, run=self._identity.run)
        key = self._keys.controller
        result = await self._coordinator.txn(
            [absent(key)], [Put(key, record.SerializeToString(), self._lease.id)], [Get(key)], deadline_s=2.0
        )
        if result.succeeded:
            self._election = result.revision
            self.leader = member.broker
            return True
        item = result.responses[0].item
        if item is None:
            return False
        found = records_pb2.ControllerRecord.FromString(item.value)
        self.leader = found.broker
        if (found.broker, found.run) == (record.broker, record.run) and item.lease == self._lease.id:
            self._election = item.create_revision  # our own, whose answer was lost
            return True
        return False

    async def _somebody_is_admitted(self) -> bool:
        await asyncio.wait_for(self._directory.loaded.wait(), 5.0)
        return bool(self._directory.groups())

    async def _wait_for_vacancy(self) -> None:
        """Until the election key is gone."""
        key = self._keys.controller
        result = await self._coordinator.txn((), [Get(key)])
        if result.responses[0].item is None:
            return
        async with contextlib.aclosing(self._coordinator.watch(key, start_revision=result.revision + 1)) as batches:
            async for _batch in batches:
                return

    async def _lead(self) -> None:
        _log.info("controller_elected", broker=self.leader, election=self._election)
        self.is_leader = True
        self._changed.set()
        duties = asyncio.ensure_future(self._duties())
        deposed = asyncio.ensure_future(self._wait_deposed())
        try:
            await asyncio.wait([duties, deposed], return_when=asyncio.FIRST_COMPLETED)
            if duties.done():
                duties.result()
        finally:
            self.is_leader = False
            for task in (duties, deposed):
                task.cancel()
            await asyncio.gather(duties, deposed, return_exceptions=True)
            _log.info("controller_stands_down", broker=self._identity.member.broker)

    async def _wait_deposed(self) -> None:
        vacancy = asyncio.ensure_future(self._wait_for_vacancy())
        try:
            while self._lease.is_held and not vacancy.done():
                await asyncio.wait([vacancy], timeout=0.2)
        finally:
            vacancy.cancel()
            await asyncio.gather(vacancy, return_exceptions=True)

    async def _duties(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._persist(self._finish_topics), name="unfinished topics")
                group.create_task(self._persist(self._watch_members), name="members")
                group.create_task(self._persist(self._heal), name="heal")
        finally:
            self._group = None

    async def _persist(self, duty: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A duty is tried again after the coordinator was away; the loss of the election ends it."""
        while self.is_leader:
            try:
                await duty()
                return
            except SeriatimError as exc:
                _log.warning("controller_waits", error=str(exc))
            await asyncio.sleep(RETRY_S)

    async def _txn(self, compares: Sequence[Compare], then: Sequence[Operation]) -> TxnResult:
        """A transaction of the elected controller.

        Raises:
            NotServingError: It is not elected any more.
        """
        if not self._election:
            raise NotServingError("this broker is not the controller")
        mine = create_revision_is(self._keys.controller, self._election)
        result = await self._coordinator.txn([mine, *compares], then, [Get(self._keys.controller)], deadline_s=2.0)
        if not result.succeeded:
            item = result.responses[0].item
            if item is None or item.create_revision != self._election:
                self.is_leader = False
                raise NotServingError("this broker is not the controller any more", retry_after_ms=200)
        return result

    # ---- members ----

    async def _watch_members(self) -> None:
        """Admit whoever registered, and switch away from groups that are gone."""
        while True:
            self._changed.clear()
            await self._admit()
            pause_s = await self._switch_away_from_lost_groups()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause_s)

    async def _admit(self) -> None:
        for broker, record in sorted(self._directory.members.items()):
            if record.admitted or not record.member.incarnation:
                continue
            key = self._keys.member(broker)
            item = await self._coordinator.get(key)
            if item is None:
                continue
            written = records_pb2.MemberRecord.FromString(item.value)
            if written.admitted:
                continue
            written.admitted = True
            result = await self._txn([mod_revision_is(key, item.mod_revision)], [Put(key, written.SerializeToString())])
            if result.succeeded:
                _log.info("admitted", member=str(member_from_record(written.member)), group=written.group)

    def _views(self) -> list[MemberView]:
        now_s = time.monotonic()
        views: list[MemberView] = []
        for broker, record in self._directory.members.items():
            member = member_from_record(record.member)
            run = self._directory.run_of(broker)
            certified = run is not None and run in self._directory.certified
            lives = broker == self._identity.member.broker or self._directory.is_live(broker) or self._is_linked(broker)
            if lives and not certified:
                self._away_since.pop(member, None)
            away_s = now_s - self._away_since.setdefault(member, now_s) if certified or not lives else 0.0
            views.append(MemberView(member, record.group, record.admitted, lives or away_s < LIVE_GRACE_S, certified))
        return views

    async def _switch_away_from_lost_groups(self) -> float | None:
        """Returns after how many seconds to look again; None if only a change can bring anything."""
        views = self._views()
        lost = lost_groups(views)
        if lost:
            count = 0
            async for chain in self._chains():
                event = switch_away(chain, lost)
                if event is not None:
                    count += 1
                    self._driver.feed(event)
            if count:
                _log.warning("groups_lost", groups=sorted(lost), partitions=count)
                return SWITCH_AWAY_AGAIN_S
        is_waiting = any(view.member in self._away_since and view.is_live and not view.is_certified for view in views)
        return LIVE_GRACE_S / 4 if is_waiting else None

    # ---- healing ----

    async def _heal(self) -> None:
        """Have sealed segments copied whose members were away for longer than `heal_after`."""
        looked_at: tuple[frozenset[MemberId], frozenset[MemberId]] | None = None
        while True:
            await self._admit()  # first, so that a new disk in the group of the lost one is the one that is filled
            self._views()
            dead, registered = self._dead(), self._registered()
            if (dead, registered) != looked_at and not await self._heal_pass(dead, registered):
                looked_at = (dead, registered)  # nothing is left to do for these
            await asyncio.sleep(min(HEAL_PASS_S, max(self._settings.heal_after_s / 4, 0.05)))

    def _registered(self) -> frozenset[MemberId]:
        return frozenset(member_from_record(record.member) for record in self._directory.members.values())

    def _dead(self) -> frozenset[MemberId]:
        """Members that were away for longer than `heal_after`."""
        until_s = time.monotonic() - self._settings.heal_after_s
        return frozenset(member for member, since_s in self._away_since.items() if since_s <= until_s)

    async def _heal_pass(self, dead: frozenset[MemberId], registered: frozenset[MemberId]) -> int:
        """Begin some copies; returns how many segments still want one.

        A disk that lost its slot to another one will not come back: it counts as dead at once.
        """
        live: dict[str, list[MemberId]] = {}
        for view in self._views():
            if view.admitted and view.is_live and not view.is_certified:
                live.setdefault(view.group, []).append(view.member)
        count = 0
        async for chain in self._chains():
            replaced = {member for segment in chain.segments for member in segment.members} - registered
            for heal in plan_heals(chain, dead | replaced, live, min_copies=self._settings.min_copies):
                count += 1
                if count <= HEALS_PER_PASS_MAX:
                    self._driver.feed(heal)
        if count:
            _log.info("healing", segments=count, away=sorted(map(str, dead)))
        return count

    async def _chains(self) -> AsyncIterator[Chain]:
        """All chains, page by page: partition ids are counted, and keys begin with their leading digits."""
        counter = await self._coordinator.get(self._keys.partition_counter)
        if counter is None:
            return
        end = records_pb2.CounterRecord.FromString(counter.value).next
        for first in range(0, end, CHAINS_PER_PAGE):
            prefix = self._keys.chains_page(PartitionId(first))
            listing = await self._coordinator.list(prefix, limit_per_page=CHAINS_PER_READ, deadline_s=10.0)
            for number, item in enumerate(listing.items):
                try:
                    for whole in await read_all_whole(self._coordinator, self._keys, (item,), deadline_s=2.0):
                        yield parse_chain(whole.item.value, whole.pages)
                except CorruptionError as exc:
                    _log.error("chain_unreadable", key=item.key, error=str(exc))
                if number % 50 == 49:
                    await asyncio.sleep(0)  # a long list must not hold up the loop

    # ---- topics ----

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        settings: records_pb2.TopicSettings,
        deadline_s: float,
        incarnation: str = "",
    ) -> records_pb2.TopicRecord:
        """Make a topic with all its partitions; returns its record when it is READY.

        With the incarnation of a topic that is there, this is the same request again: it is waited for.

        Raises:
            TopicExistsError: There is one of that name. NotServingError: This broker is not the controller.
            DeadlineExceededError: It is not done yet; the controller goes on with it.
        """
        record = await self._begin_topic(name, partition_count, settings, incarnation or uuid.uuid4().hex)
        finishing = self._finishing.get(record.incarnation) or self._begin_finishing(record)
        await asyncio.wait((finishing,), timeout=deadline_s)
        if not finishing.done():
            raise DeadlineExceededError(
                f"topic {name!r} is not complete yet; the controller goes on with it", topic=name
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
        """The rest of a topic's making is the controller's, not the caller's: it outlives the caller's patience."""
        if self._group is None:
            raise NotServingError("this broker is not the controller")

        async def finish() -> records_pb2.TopicRecord | SeriatimError:
            try:
                return await self._finish_topic(record)
            except SeriatimError as exc:
                _log.warning("topic_not_finished", topic=record.name, error=str(exc))
                return exc
            finally:
                del self._finishing[record.incarnation]

        task = self._group.create_task(finish(), name=f"topic {record.name}")
        self._finishing[record.incarnation] = task
        return task

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its data.

        Raises:
            UnknownTopicError: There is none. NotServingError: This broker is not the controller.
        """
        key = self._keys.topic(name)
        item = await self._coordinator.get(key)
        if item is None:
            raise UnknownTopicError(f"there is no topic {name!r}", topic=name)
        record = records_pb2.TopicRecord.FromString(item.value)
        record.state = records_pb2.TOPIC_STATE_DELETING
        result = await self._txn([mod_revision_is(key, item.mod_revision)], [Put(key, record.SerializeToString())])
        if not result.succeeded:
            raise NotServingError(f"topic {name!r} was changed at the same time", retry_after_ms=50)
        await self._remove_topic(record)

    async def _begin_topic(
        self, name: str, partition_count: int, settings: records_pb2.TopicSettings, incarnation: str
    ) -> records_pb2.TopicRecord:
        """Take partition ids and write the topic as CREATING, in one transaction."""
        key, counter_key = self._keys.topic(name), self._keys.partition_counter
        while True:
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
                created_at_ms=time.time_ns() // 1_000_000,
            )
            compares = [
                absent(key),
                mod_revision_is(counter_key, counter_item.mod_revision if counter_item else 0),
            ]
            puts = [Put(key, record.SerializeToString()), Put(counter_key, counter.SerializeToString())]
            if (await self._txn(compares, puts)).succeeded:
                return record

    async def _finish_topic(self, record: records_pb2.TopicRecord) -> records_pb2.TopicRecord:
        """Make the partitions that are missing, then say READY."""
        groups = sorted(self._directory.groups())
        if not groups:
            raise NotServingError("no broker group is admitted yet", retry_after_ms=200)
        await _all_of(
            self._create_partition(
                record,
                number,
                PartitionId(partition),
                send_chain(PartitionId(partition), groups, chain_width=record.settings.chain_width),
            )
            for number, partition in enumerate(record.partition_ids)
        )
        key = self._keys.topic(record.name)
        item = await self._coordinator.get(key)
        if item is None:
            raise UnknownTopicError(f"topic {record.name!r} was deleted", topic=record.name)
        written = records_pb2.TopicRecord.FromString(item.value)
        if written.incarnation != record.incarnation or written.state == records_pb2.TOPIC_STATE_DELETING:
            raise UnknownTopicError(f"topic {record.name!r} was deleted", topic=record.name)
        if written.state == records_pb2.TOPIC_STATE_READY:
            return written  # by the same request, sent before
        written.state = records_pb2.TOPIC_STATE_READY
        result = await self._txn([mod_revision_is(key, item.mod_revision)], [Put(key, written.SerializeToString())])
        if not result.succeeded:
            raise NotServingError(f"topic {record.name!r} was changed at the same time", retry_after_ms=50)
        _log.info("topic_ready", topic=record.name, partitions=len(record.partition_ids))
        return written

    async def _create_partition(
        self, record: records_pb2.TopicRecord, number: int, partition: PartitionId, chain: tuple[str, ...]
    ) -> None:
        """Have the core make a partition; one that is there already is no error."""
        async with self._creates:
            for attempt in range(CREATE_RETRIES):
                if await self._coordinator.get(self._keys.chain(partition)) is not None:
                    return
                reply = await self._ask(
                    lambda request: CreatePartition(
                        request, partition, record.name, number, record.settings.flush, chain
                    )
                )
                if reply is not None and reply.error is None:
                    return
                _log.info("partition_not_made", partition=partition, attempt=attempt, error=str(reply and reply.error))
                await asyncio.sleep(RETRY_S)
        raise UnavailableError(f"partition {partition} of topic {record.name!r} could not be made")

    async def _ask(self, event_of: Callable[[int], CreatePartition]) -> Resolved | None:
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def take(reply: Reply) -> None:
            if not answer.done():
                answer.set_result(reply)

        request = self._driver.new_request(take)
        self._driver.feed(event_of(request))
        try:
            async with asyncio.timeout(CREATE_DEADLINE_S):
                reply = await answer
        except TimeoutError:
            return None
        finally:
            self._driver.forget_request(request)
        assert isinstance(reply, Resolved)
        return reply

    async def _finish_topics(self) -> None:
        """Whatever an earlier controller left half done."""
        for item in (await self._coordinator.list(self._keys.topics)).items:
            record = records_pb2.TopicRecord.FromString(item.value)
            try:
                if record.state == records_pb2.TOPIC_STATE_CREATING:
                    await self._finish_topic(record)
                elif record.state == records_pb2.TOPIC_STATE_DELETING:
                    await self._remove_topic(record)
            except SeriatimError as exc:
                _log.warning("topic_not_finished", topic=record.name, error=str(exc))

    async def _remove_topic(self, record: records_pb2.TopicRecord) -> None:
        """Tombstones before the chains, in the same transaction; the topic's own key last."""
        partitions = [PartitionId(partition) for partition in record.partition_ids]
        for start in range(0, len(partitions), DELETES_PER_TXN):
            operations: list[Operation] = []
            for partition in partitions[start : start + DELETES_PER_TXN]:
                tombstone = records_pb2.PartitionTombstone(
                    partition_id=partition,
                    topic=record.name,
                    topic_incarnation=record.incarnation,
                    deleted_at_ms=time.time_ns() // 1_000_000,
                )
                operations += [
                    Put(self._keys.tombstone(partition), tombstone.SerializeToString()),
                    Delete(self._keys.chain(partition)),
                    DeletePrefix(self._keys.pages_of(partition)),
                    DeletePrefix(self._keys.cursors_of(partition)),
                ]
            await self._txn([], operations)
        await self._txn([], [Delete(self._keys.topic(record.name))])
        _log.info("topic_deleted", topic=record.name, partitions=len(partitions))


async def _all_of(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of them at once; the first failure ends the others and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def live_record(identity: Identity) -> bytes:
    """The value of a broker's live key."""
    record = records_pb2.LiveRecord(member=member_to_record(identity.member), run=identity.run)
    return record.SerializeToString()
