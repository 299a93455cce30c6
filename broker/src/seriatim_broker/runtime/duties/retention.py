"""Retention: the duty of each broker to drop old or excess messages in the partitions whose open segment it leads.

It scans every `look_s` (60 s). If a topic keeps less than six minutes, it scans its partitions six times within that
time, but not more often than every 5 s. It asks the core which partitions these are, compares their chain records with
the settings of their topics, and finds the first message that is kept. For that it needs the chain record, and in the
open segment a binary search. A partition in which nothing is old enough costs no disk read, because the place and age
of its first batch are remembered here. Only if something is to be dropped or tidied, it reads the cursors of the
partition's consumer groups. `core.control.retention` decides and writes. This module does what needs the disk, the
coordinator and a clock.

A partition is trimmed when it exceeds a limit by 5 %. So the record of a partition that keeps three days is written
about every four hours. The record of one that keeps a minute is written at every scan.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from google.protobuf.message import DecodeError
from seriatim_api.errors import CoordinatorBehindError, CorruptionError, SeriatimError
from seriatim_api.ids import PartitionId, make_offset, split_offset
from seriatim_api.publications import STAGE_TOPIC
from seriatim_api.v1 import records_pb2

from ...core.control import retention as rules
from ...core.control.retention import NO_LIMITS, Limits, Policy, Reader
from ...core.values.effects import Led, LedListed
from ...core.values.events import ListLed, PassConsumerGroup, PlanSwitch, Trim
from ...core.values.keyed import ConsumerMode
from ...core.values.positions import BatchPlace, Measure
from ...core.values.segment import Segment, Start
from ...interfaces.clock import Clock
from ...interfaces.coordinator import Coordinator
from ...interfaces.storage import Storage
from ..coordinator.keys import Keys, group_of
from ..coordinator.mirror import mirror
from ..coordinator.records import cursor_from_value
from ..driver.driver import Driver, ask
from ..membership.lost_records import LostRecords
from ..membership.registration import Seen
from ..membership.wall_clocks import WallClocks
from .stage_floors import StageFloors
from .unread import WARN_RATIO, Figures, Nearness, Unread, figures_of, nearness, retained, unread_messages

LED_PER_LIST: Final = 200
"""Partitions that the core names in one step."""

ANSWER_DEADLINE_S: Final = 10.0
"""Time for an answer of the core, and for a planned switch."""

SLACK: Final = 0.05
"""A partition is trimmed when it exceeds a limit by this share."""

LOOKS_BEFORE_END: Final = 10
"""If an open segment has only messages that are too old, it is ended when it has been open for this many scans."""

LOOKS_PER_AGE: Final = 6
"""A topic that keeps a minute is scanned every ten seconds. So its disks hold little more than two minutes: the open
segment, a minute after it, and these ten seconds."""

LOOK_S_MIN: Final = 5.0
"""The shortest time between two scans, however little a topic keeps."""

LOOKS_PER_MEASURE: Final = 5
"""One of this many scans reads the cursors of each partition's consumer groups, to say how near retention is to
them."""

ASKED_S: Final = 900.0
"""If nothing asked for `Retention.unread` for this long, partitions without retention are not scanned."""

MOVED_AT: Final = 0.75
"""What is delayed is moved when it has reached this share of a limit of its topic."""

PASSED_PER_LOOK: Final = 100
"""Consumer groups of one partition that are moved on in one scan. Each costs a transaction."""

_EARLY_US: Final = 500_000

_KEEPS_ALL: Final = Policy(NO_LIMITS)
"""The policy of a topic without retention, or whose retention must not act yet."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Looked:
    """When a partition is scanned next (monotonic µs), and how often it was."""

    due_us: int
    looks: int


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Times and sizes of retention.

    Attributes:
        look_s: Seconds between two scans of each partition that this broker leads. If its topic keeps less than six
            times that, the scans are more frequent.
        segment_age_s_max: An open segment of a topic with retention is ended when it is so old, because a sealed
            segment can be dropped as a whole. Another one begins.
        segment_size_bytes_max: An open segment of such a topic is also ended when it has this many bytes.
    """

    look_s: float = 60.0
    segment_age_s_max: float = 86400.0
    segment_size_bytes_max: int = 16 << 30


@dataclass(eq=False)
class Retention:
    """A duty of each broker, until cancelled."""

    _coordinator: Coordinator
    _keys: Keys
    _driver: Driver
    _storage: Storage
    _clock: Clock
    _settings: RetentionSettings
    _floors: StageFloors
    _lost_records: LostRecords

    def __post_init__(self) -> None:
        self._clocks = WallClocks(self._coordinator, self._keys, self._clock)
        self._listed = (0, 0)  # the time of the last rebuild, and the highest revision of a listing since then
        self._ahead_ms = 0  # how far this broker's clock is ahead of the others, as of the last scan
        self.figures = Figures()
        self._looked: dict[PartitionId, _Looked] = {}
        self._firsts: dict[PartitionId, tuple[int, BatchPlace]] = {}
        self._retained: dict[PartitionId, tuple[int, float]] = {}
        self._near: dict[PartitionId, Nearness] = {}
        self._behind: dict[PartitionId, tuple[str, dict[str, Unread]]] = {}
        self._asked_us: int | None = None  # when `unread` was asked for last
        self._pending: dict[PartitionId, dict[int, int]] = {}  # the first pending index of segments
        self._ask_pending: Callable[[PartitionId, Segment, int], Awaitable[int]] | None = None
        self._policies: dict[PartitionId, Policy] = {}
        self._by_topic: dict[str, tuple[PartitionId, ...]] = {}

    def on_pending(self, ask: Callable[[PartitionId, Segment, int], Awaitable[int]]) -> None:
        """Have the first pending index of a segment asked for with this. Until then, what may be delayed stays.

        The number is the index below which what is delayed is moved.
        """
        self._ask_pending = ask

    async def run(self) -> None:
        """Scan until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(mirror(self._coordinator, self._keys.topics, self._topics_changed), name="topics' limits")
            group.create_task(self._look_again(), name="retention")

    def _topics_changed(self, values: Mapping[str, bytes], changed: Sequence[str]) -> None:
        for key in changed:
            for partition in self._by_topic.pop(key, ()):
                self._policies.pop(partition, None)
            value = values.get(key)
            if value is None:
                continue
            try:
                record = records_pb2.TopicRecord.FromString(value)
            except DecodeError:
                _log.error("topic_unreadable", key=key)
                continue
            policy = policy_of(record.settings)
            if policy is not None and record.state != records_pb2.TOPIC_STATE_DELETING:
                partitions = tuple(map(PartitionId, record.partition_ids))
                self._by_topic[key] = partitions
                self._policies.update(dict.fromkeys(partitions, policy))

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(min(map(self._pace_s, set(self._policies.values())), default=self._settings.look_s))
            try:
                await self.look()
            except (SeriatimError, TimeoutError) as exc:
                _log.warning("retention_waits", error=str(exc))

    def _pace_s(self, policy: Policy) -> float:
        """Seconds between two scans of a partition of such a topic."""
        age_s = policy.limits.age_ms / 1000 or math.inf
        return min(self._settings.look_s, max(age_s / LOOKS_PER_AGE, LOOK_S_MIN))

    async def look(self) -> None:
        """Scan every partition that this broker leads and that is due.

        A partition without retention is scanned only for what its consumer groups have not read, and only if the
        metrics are read.
        """
        agreed_ms = await self._clocks.agreed_ms()
        self._ahead_ms = self._clock.wall_ms() - agreed_ms
        after, seen = PartitionId(0), set[PartitionId]()
        keeps_all = _KEEPS_ALL if self._is_asked() else None
        while (self._policies or keeps_all) and (led := await self._list(after)):
            for partition in led:
                policy = self._policies.get(partition.partition, keeps_all)
                if policy is None:
                    continue
                seen.add(partition.partition)
                now_us = self._clock.monotonic_us()
                looked = self._looked.get(partition.partition, _Looked(now_us, 0))
                if now_us < looked.due_us:
                    continue
                # Half a second early counts as due, because scans never come exactly in time.
                due_us = now_us + round(self._pace_s(policy) * 1e6) - _EARLY_US
                self._looked[partition.partition] = _Looked(due_us, looked.looks + 1)
                try:
                    if policy is not _KEEPS_ALL:
                        await self._look_at(partition, policy)
                    await self._measure(partition, policy, measures_unread=looked.looks % LOOKS_PER_MEASURE == 0)
                except SeriatimError as exc:
                    _log.warning("not_trimmed", partition=partition.partition, error=str(exc))
            after = led[-1].partition
        for known in (self._looked, self._firsts, self._retained, self._near, self._behind, self._pending):
            for id_ in known.keys() - seen:
                del known[id_]
        self.figures = figures_of(tuple(self._retained.values()), tuple(self._near.values()))

    # ---- what is reported to administrators ----

    def unread(self, leads: Callable[[PartitionId], bool]) -> dict[tuple[str, str], Unread]:
        """What each consumer group has not read of the partitions that this broker leads, by topic and consumer group.

        It is as of the last scan that read the cursors. Partitions without retention are scanned only while something
        asks for it (`ASKED_S`).

        Args:
            leads: Whether this broker still leads a partition that it scanned. Another one counts it otherwise.
        """
        self._asked_us = self._clock.monotonic_us()
        sums: dict[tuple[str, str], Unread] = {}
        for partition, (topic, behind) in self._behind.items():
            for group, unread in behind.items() if leads(partition) else ():
                known = sums.get((topic, group))
                sums[topic, group] = unread if known is None else known.with_more(unread)
        return sums

    def _is_asked(self) -> bool:
        return self._asked_us is not None and self._clock.monotonic_us() - self._asked_us < ASKED_S * 1e6

    async def _measure(self, led: Led, policy: Policy, *, measures_unread: bool) -> None:
        """Find how much is kept, and how near retention is to messages that a consumer group has not read."""

        async def find(index: int) -> BatchPlace | None:
            return await self._find(led, Measure.INDEX, index)

        now_ms = self._clock.wall_ms()
        if policy is not _KEEPS_ALL:
            self._retained[led.partition] = await retained(led, now_ms, find)
        if not measures_unread:
            return
        readers, _ = await self._readers(led)
        self._behind[led.partition] = led.chain.topic, await unread_messages(led, readers, find)
        near = await nearness(led, policy, readers, now_ms, find)
        before = self._near.pop(led.partition, None)
        if near is None:
            return
        self._near[led.partition] = near
        if near.ratio >= WARN_RATIO and (
            before is None or before.consumer_group != near.consumer_group or before.ratio < WARN_RATIO
        ):
            _log.warning(
                "retention_nears_unread",
                topic=led.chain.topic,
                partition=led.chain.number,
                group=near.consumer_group,
                ratio=round(near.ratio, 3),
            )

    # ---- one partition ----

    async def _look_at(self, led: Led, policy: Policy) -> None:
        chain = led.chain
        await self._ask_for_delayed(led, policy.limits)
        no, start = await self._first_kept(led, policy.limits)
        oldest = chain.segments[0]
        is_tidy = not oldest.is_settled or (oldest.no == no and not oldest.is_stub)
        if start is None and is_tidy:
            await self._roll_if_long(led, policy)
            return
        readers, revision = await self._readers(led)
        if policy.keeps_unread:
            no, start = await self._spare_unread(led, policy, readers, no, start)
        no, start = await self._spare_delayed(led, no, start)
        kept_no = rules.first_kept(chain, no, readers)
        no, start, kept_no = rules.cut(chain, no, start, kept_no)
        becomes_stub = any(s.no < no and s.is_settled and not s.is_stub and s.sealed_len for s in chain.segments)
        if chain.topic == STAGE_TOPIC and (start is not None or becomes_stub):
            below = make_offset(no, start.first if start is not None else 0)
            if not await self._floors.may_drop(led.partition, below):
                return
        if start is not None or kept_no > oldest.no or becomes_stub:
            self._driver.feed(Trim(led.partition, chain.epoch, no, start, kept_no, revision))
        for segment_no, group in rules.to_pass(chain, readers)[:PASSED_PER_LOOK]:
            self._driver.feed(PassConsumerGroup(led.partition, segment_no, group))
        await self._roll_if_long(led, policy)

    def _now_ms(self) -> int:
        """The wall clock by which messages are old: this broker's, unless it is ahead (rule `ahead-drops-nothing`)."""
        return self._clock.wall_ms() - self._ahead_ms

    async def _first_kept(self, led: Led, limits: Limits) -> tuple[int, Start | None]:
        """The segment of the first message that is kept. If it is the open one, also its new start."""
        now_ms = self._now_ms()
        no = rules.limited_by_tables(led.chain, rules.first_segment(led.chain, limits, now_ms, led.size_bytes))
        segment = led.chain.open_segment
        if no != segment.no or led.flushed <= segment.start:
            return no, None
        kept_bytes = led.size_bytes - segment.begin.size_bytes
        place: BatchPlace | None = None
        if limits.age_ms:
            first = await self._find(led, Measure.INDEX, segment.start)
            if first is not None and first.append_time_ms < now_ms - limits.age_ms * (1 + SLACK):
                place = await self._find(led, Measure.TIME, now_ms - limits.age_ms)
                place = place or await self._find(led, Measure.INDEX, led.flushed - 1)
        if limits.size_bytes and kept_bytes > limits.size_bytes * (1 + SLACK):
            found = await self._find(led, Measure.BYTES, led.size_bytes - limits.size_bytes)
            place = max((known for known in (place, found) if known is not None), default=None)
        return no, _start_of(segment, place)

    async def _spare_unread(
        self, led: Led, policy: Policy, readers: Sequence[Reader], no: int, start: Start | None
    ) -> tuple[int, Start | None]:
        """The same place, or an earlier one: what a consumer group has not read stays, within its own limits."""
        segment = led.chain.open_segment
        wanted = make_offset(no, start.first if start is not None else 0)
        unread = rules.first_unread(readers, wanted)
        if unread >= wanted:
            return no, start
        if policy.unread_limits.any:
            cap_no, cap_start = await self._first_kept(led, policy.unread_limits)
            if make_offset(cap_no, cap_start.first if cap_start is not None else 0) >= unread:
                return cap_no, cap_start
        unread_no, index = split_offset(unread)
        at = led.chain.from_no(unread_no)
        assert at is not None
        if at.no != segment.no:
            return at.no, None
        return at.no, _start_of(segment, await self._find(led, Measure.INDEX, index if at.no == unread_no else 0))

    async def _spare_delayed(self, led: Led, no: int, start: Start | None) -> tuple[int, Start | None]:
        """The same place, or an earlier one: before the first message that is still delayed (rule `trim-pending`).

        No limit of the topic drops these. The server of a segment knows what is left of it (`_ask_for_delayed`). If it
        does not answer, nothing of the segment is dropped. An answer only rises, so it is kept.
        """
        segment = led.chain.open_segment
        if not led.has_delayed and not any(sealed.delayed_until_ms for sealed in led.chain.segments):
            self._pending.pop(led.partition, None)
            return no, start
        known = self._pending.setdefault(led.partition, {})
        for gone in known.keys() - {segment.no for segment in led.chain.segments}:
            del known[gone]
        for sealed in led.chain.segments:
            length = sealed.sealed_len if sealed.delayed_until_ms and not sealed.is_stub else None
            if sealed.no >= no or length is None:
                continue
            if known.get(sealed.no, 0) < length:
                return sealed.no, None
        if start is None or no != segment.no or not led.has_delayed:
            return no, start
        first = known.get(segment.no, segment.start)
        if first >= start.first:
            return no, start
        return no, _start_of(segment, await self._find(led, Measure.INDEX, first))

    async def _ask_for_delayed(self, led: Led, limits: Limits) -> None:
        """Ask servers what is still delayed of what is about to be dropped, and have them move it.

        They are asked early, because they move slowly.
        """
        if not led.has_delayed and not any(segment.delayed_until_ms for segment in led.chain.segments):
            return
        early = Limits(int(limits.age_ms * MOVED_AT), int(limits.size_bytes * MOVED_AT))
        no, start = await self._first_kept(led, early)
        for segment in led.chain.segments:
            is_asked = segment.no < no and segment.delayed_until_ms and not segment.is_stub
            if is_asked and segment.sealed_len is not None:
                await self._ask_for_first(led.partition, segment, segment.sealed_len)
        if start is not None and led.has_delayed:
            await self._ask_for_first(led.partition, led.chain.open_segment, start.first)

    async def _ask_for_first(self, partition: PartitionId, segment: Segment, wanted: int) -> None:
        """Ask below which index nothing of the segment is delayed any more, if that may be less than `wanted`."""
        known = self._pending.setdefault(partition, {})
        if known.get(segment.no, segment.start) < wanted and self._ask_pending is not None:
            try:
                known[segment.no] = await self._ask_pending(partition, segment, wanted)
            except SeriatimError as exc:
                _log.info("delayed_messages_kept", partition=partition, segment=segment.no, error=str(exc))

    async def _find(self, led: Led, measure: Measure, value: int) -> BatchPlace | None:
        segment = led.chain.open_segment
        is_first = measure is Measure.INDEX and value == segment.start
        no, first = self._firsts.get(led.partition, (0, None))
        if is_first and first is not None and (no, first.index) == (segment.no, segment.start):
            return first
        found = await self._storage.find(led.partition, segment.no, led.flushed, measure, value)
        if is_first and found is not None:
            self._firsts[led.partition] = segment.no, found
        return found

    async def _readers(self, led: Led) -> tuple[list[Reader], int]:
        """Where the consumer groups are, and at which revision of the coordinator this was read.

        Raises:
            CoordinatorBehindError: The coordinator is older than what this broker has seen of it.
        """
        seen = self._lost_records.seen  # what is seen while the listing is under way may be newer than it
        listing = await self._coordinator.list(self._keys.cursors_of(led.partition))
        self._check_not_older(listing.revision, seen)
        acked = {group: (epoch, no, index) for group, epoch, no, index in led.acked}
        aside = {group: offset for group, _, _, offset in led.oldest}
        safe = dict(led.safe)
        readers: list[Reader] = []
        for item in listing.items:
            group = group_of(item.key)
            try:
                record = cursor_from_value(item.value)
            except CorruptionError as exc:
                raise CorruptionError(f"{item.key}: {exc.message}: nothing is dropped until it can be read") from exc
            if record.deleted:
                continue
            begun = offset = make_offset(record.segment_no, record.start_index)
            epoch, no, index = acked.get(group, (0, 0, 0))
            oldest = record.oldest  # as the cursor came to its segment
            if (epoch, no) == (record.group_epoch, record.segment_no):
                offset = max(offset, make_offset(no, index))
                oldest = aside.get(group, 0)
            known = safe.get(group)
            if known is not None and known[:2] == (record.group_epoch, record.segment_no):
                kept = _first_of(max(begun, make_offset(known.segment_no, known.acked)), known.oldest)
            else:
                kept = _first_of(begun, record.oldest)
            is_spared = record.mode is not ConsumerMode.BROADCAST
            readers.append(Reader(group, record.segment_no, offset, not record.external, is_spared, oldest, kept))
        return readers, listing.revision

    def _check_not_older(self, revision: int, seen: Seen) -> None:
        """Refuse to decide by a listing of an older copy of the coordinator.

        Rule `older-drops-nothing` (RETAIN, I1): it may lack cursors. Without it:
          1. Consumer group g stands in segment 1. The coordinator is restored as it was before g was made.
          2. Before a broker notices that, which takes up to 2 s, retention finds no cursor in segment 1, and drops it.
          3. g begins at segment 2 as a new one, and is not notified of what is gone.
        """
        rebuilt_at_ms, highest = self._listed
        highest = max(highest if rebuilt_at_ms == seen.rebuilt_at_ms else 0, seen.revision)
        if revision < highest:
            raise CoordinatorBehindError(
                f"retention drops nothing: the coordinator's revision is {revision}, and this broker has seen {highest}"
            )
        self._listed = seen.rebuilt_at_ms, revision

    # ---- a long open segment ----

    async def _roll_if_long(self, led: Led, policy: Policy) -> None:
        """End the open segment if it is long, or if all its messages are too old. Another one begins.

        A planned switch does it, so nothing is refused or repeated. The next broker group takes the segment, or another
        master of this one.
        """
        segment = led.chain.open_segment
        if led.flushed <= segment.start:
            return
        age_ms = self._now_ms() - segment.opened_at_ms
        is_long = age_ms > self._settings.segment_age_s_max * 1000
        is_long = is_long or led.size_bytes > self._settings.segment_size_bytes_max
        if not is_long and not await self._is_emptied(led, policy, age_ms):
            return
        reply = await ask(self._driver, lambda request: PlanSwitch(request, led.partition), ANSWER_DEADLINE_S)
        if getattr(reply, "error", None) is not None and len(segment.members) > 1:
            other = segment.members[1].broker
            await ask(
                self._driver,
                lambda request: PlanSwitch(request, led.partition, segment.broker_group, other),
                ANSWER_DEADLINE_S,
            )

    async def _is_emptied(self, led: Led, policy: Policy, age_ms: int) -> bool:
        limit_ms = policy.limits.age_ms
        if (
            not limit_ms
            or policy.keeps_unread
            or age_ms < max(limit_ms, LOOKS_BEFORE_END * self._settings.look_s * 1000)
        ):
            return False
        newest = await self._find(led, Measure.INDEX, led.flushed - 1)
        return newest is not None and newest.append_time_ms < self._now_ms() - limit_ms * (1 + SLACK)

    # ---- asking the core ----

    async def _list(self, after: PartitionId) -> tuple[Led, ...]:
        reply = await ask(self._driver, lambda request: ListLed(request, after, LED_PER_LIST), ANSWER_DEADLINE_S)
        assert isinstance(reply, LedListed)
        return reply.led


def policy_of(settings: records_pb2.TopicSettings) -> Policy | None:
    """The retention of a topic; None if everything is kept."""
    limits = Limits(settings.retention_ms, settings.retention_bytes)
    if not limits.any:
        return None
    return Policy(limits, settings.retain_unread, Limits(settings.unread_ms_max, settings.unread_bytes_max))


def _first_of(acked: int, oldest: int) -> int:
    """The first message that is needed: `oldest` is the first one that was set aside; 0: none was."""
    return min(acked, oldest) if oldest else acked


def _start_of(segment: Segment, place: BatchPlace | None) -> Start | None:
    """The new start of the segment; None if it begins there already."""
    if place is None or place.index <= segment.start:
        return None
    return Start(place.index, place.previous_checksum, place.bytes_before)
