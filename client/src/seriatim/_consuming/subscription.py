"""One partition of a consumer: its core, and the core's effects."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from seriatim_api.batch import BatchHeader
from seriatim_api.errors import BadRequestError, SeriatimError, make_error
from seriatim_api.ids import format_offset, make_offset, split_offset
from seriatim_api.protocol import says_another_protocol
from seriatim_api.v1 import broker_pb2, records_pb2

from seriatim._consuming.events import core_event
from seriatim._consuming.inbox import Chunk, Inbox
from seriatim._consuming.servers import Servers
from seriatim._consuming.streams import Streams
from seriatim._core import consumer_types as ct
from seriatim._core.consumer import PartitionConsumer
from seriatim._core.joining import ConsumerPhase, Joining
from seriatim._recorder import Recorder
from seriatim._runtime.alarms import Alarms
from seriatim._runtime.failure import Failure, entry
from seriatim._runtime.logs import guarded
from seriatim._transport.consume import ConsumeLink
from seriatim._values.arguments import call_back
from seriatim._values.consumer_group_settings import STARTS
from seriatim._values.records import Assignment, Gap, GroupChange
from seriatim._values.settings import Start

_log = guarded()

_SERVED: Final = (ct.Deliver, ct.TakeGrants, ct.Passed, ct.GapFound)
"""What a consumer is served: messages, and the news that there are none in a range."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shared:
    """What the partitions of one consumer share."""

    topic: str
    group: str
    name: str
    mode: records_pb2.ConsumerMode.ValueType
    fail: Callable[[SeriatimError], None]
    end: Callable[[SeriatimError], None]
    streams: Streams
    servers: Servers
    alarms: Alarms[Any]
    recorder: Recorder | None
    on_gap: Callable[[Gap], None] | None
    on_assignment: Callable[[Assignment], None] | None
    on_group_change: Callable[[GroupChange], None] | None
    failure: Failure


class Subscribed:
    """One partition of a consumer: it feeds the core, and carries out the core's effects.

    What depends on the mode is in the classes that derive from it.
    """

    def __init__(self, shared: Shared, number: int, partition_id: int, start_at: Start, core: Joining) -> None:
        self._shared = shared
        self.failure = shared.failure
        self.start_at: Start = start_at  # where the consumer group begins here if it has no cursor
        self.number = number
        self.partition_id = partition_id
        self.core = core
        self._is_leaving = False
        self._served_count = 0  # deliveries, and ranges that were passed over or are gone
        self._not_opened = ""  # why the last stream to the server could not be opened

    @property
    def waits_for(self) -> str:
        """What this consumer waits for, and where and why, for humans."""
        is_resolving = self.core.phase is ConsumerPhase.RESOLVING
        why = (is_resolving and self._shared.servers.why_untold(self.partition_id)) or self._not_opened
        return f"{self.core.waits_for}: {why}" if why else self.core.waits_for

    @property
    def is_active(self) -> bool:
        """Whether the server delivers the partition to this consumer."""
        return self.core.phase is ConsumerPhase.ACTIVE

    @property
    def is_joined(self) -> bool:
        """Whether the server knows this consumer, as the active one or as a standby."""
        return self.core.phase in (ConsumerPhase.ACTIVE, ConsumerPhase.STANDBY)

    @property
    def waits_since(self) -> Hashable | None:
        """A mark of what this consumer got last, if it waits to be served; None: it does not wait.

        It does not wait if it stands by, if the group is paused, or if the application has work of this partition.

        The mark changes with each segment and with everything that comes. It does not change with a join: a consumer
        may join again and again and be served nothing. Nor is it the same each time that the consumer is not joined:
        between two such looks it may have been served.
        """
        core = self.core
        if core.phase in (ConsumerPhase.STANDBY, ConsumerPhase.ENDED) or core.paused:
            return None
        if core.phase is ConsumerPhase.ACTIVE and self._has_work:
            return None
        return core.segment, self._served_count

    @property
    def _has_work(self) -> bool:
        """Whether the application has messages of this partition, or does not want any."""
        raise NotImplementedError

    # ---- from the application ------------------------------------------------------------------------

    @entry
    def start(self) -> None:
        """Find the server, and join."""
        self._step(ct.Timer())

    @entry
    def leave(self) -> None:
        """Send the last acknowledgement, and leave the server."""
        self._is_leaving = True
        self._step(ct.Leave())

    # ---- from the streams ----------------------------------------------------------------------------

    @entry
    def link_up(self, link: ConsumeLink) -> None:
        """A stream is up: join, if the core waits for it."""
        self._link_up(link)

    def _link_up(self, link: ConsumeLink) -> None:
        self._not_opened = ""
        self._step(ct.Connected(link.address, link.stream, link.round_trip_us))

    @entry
    def link_down(self, link: ConsumeLink, reason: SeriatimError) -> None:
        """A stream has ended, or could not be opened."""
        place = self.core.place
        if place is not None and place.address == link.address:
            if says_another_protocol(reason):
                self._shared.end(reason)  # rule `refused-is-told`: no try will succeed
                return
            if not link.is_up:
                self._not_opened = reason.message
        self._step(ct.Disconnected(link.address, link.stream if link.is_up else None))

    @entry
    def answered(self, link: ConsumeLink, sent_at_us: int) -> None:
        """The broker of a stream answered a heartbeat."""
        if self.is_joined:
            self._step(ct.Answered(link.stream, sent_at_us))

    @entry
    def told(self, event: broker_pb2.DeliveryEvent) -> None:
        """An event came that is not a delivery."""
        self._step(core_event(event))

    def delivered(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> bool:
        """Let the core check a delivery. Returns whether the application gets it."""
        if self.failure.error is not None:
            return False
        try:
            return self._delivered(link, event, batches)
        except Exception as exc:
            self.failure.happened(exc)
            return False

    def _delivered(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> bool:
        raise NotImplementedError

    # ---- the core ------------------------------------------------------------------------------------

    @entry
    def timer_due(self) -> None:
        """The time for which the core asked has come."""
        self._step(ct.Timer())

    def _step(self, event: ct.Event) -> ct.Deliver | None:
        """Give the core an event and carry out its effects, except a `Deliver`, which is returned."""
        now_us = time.monotonic_ns() // 1000
        deliver = None
        try:
            effects = self.core.step(event, now_us, random.random())  # noqa: S311 - spreads retries
        except SeriatimError as exc:
            self._shared.fail(exc)
            return None
        for effect in effects:
            self._served_count += isinstance(effect, _SERVED)
            if isinstance(effect, ct.Deliver):
                deliver = effect
            else:
                self._do(effect)
        wake_at_us = self.core.wake_at_us
        if wake_at_us is not None:
            self._shared.alarms.set(self, wake_at_us / 1e6)
        return deliver

    def _do(self, effect: ct.Effect) -> None:
        shared = self._shared
        match effect:
            case ct.SendJoin():
                shared.streams.write(effect.stream, broker_pb2.ConsumeRequest(join=self._join(effect)))
            case ct.SendLeave():
                leave = broker_pb2.Leave(subscription=effect.subscription)
                shared.streams.write(effect.stream, broker_pb2.ConsumeRequest(leave=leave))
            case ct.OpenStream():
                link = shared.streams.open(effect.address)
                if link is not None:
                    self._link_up(link)
            case ct.Resolve():
                shared.servers.resolve(self.partition_id, self.start_at, effect, self._resolved)
            case ct.Assigned():
                self._assigned(effect)
            case ct.GapFound():
                self._gap(effect)
            case ct.ConsumerGroupChanged():
                self._group_changed(effect)
            case ct.Passed():
                if shared.recorder is not None:
                    shared.recorder.skip(
                        shared.group, shared.topic, self.number, effect.segment, effect.from_index, effect.to_index
                    )
            case ct.Ended():
                if effect.error is not None:
                    shared.end(make_error(effect.error.number, effect.error.message))
            case _:
                self._do_own(effect)

    def _do_own(self, effect: ct.Effect) -> None:
        """Carry out an effect of the mode."""
        raise NotImplementedError

    @entry
    def _resolved(self, place: ct.Place | None) -> None:
        self._step(ct.Resolved(place))

    def _join(self, effect: ct.SendJoin) -> broker_pb2.Join:
        return broker_pb2.Join(
            partition_id=self.partition_id,
            group=self._shared.group,
            consumer=self._shared.name,
            mode=self._shared.mode,
            start=STARTS[self.start_at],
            subscription=effect.subscription,
            was_active=effect.was_active,
            was_standby=effect.was_standby,
        )

    def _assigned(self, effect: ct.Assigned) -> None:
        if self._shared.on_assignment is not None and not self._is_leaving:
            offset = make_offset(effect.segment, effect.index)
            assignment = Assignment(self._shared.topic, self.number, effect.active, offset)
            _call_back("on_assignment", self._shared.on_assignment, assignment)

    def _group_changed(self, effect: ct.ConsumerGroupChanged) -> None:
        shared = self._shared
        change = GroupChange(
            shared.topic, self.number, effect.what, effect.group_epoch, make_offset(effect.segment, effect.index)
        )
        if effect.what not in ("pause", "resume"):
            _log.warning(
                "group %s on %s/%d starts over at %s (%s)",
                shared.group, shared.topic, self.number, format_offset(change.offset), effect.what,
            )  # fmt: skip
        if shared.on_group_change is not None:
            _call_back("on_group_change", shared.on_group_change, change)

    def _gap(self, effect: ct.GapFound) -> None:
        shared = self._shared
        first = make_offset(effect.segment, effect.from_index)
        end = effect.end_offset or make_offset(effect.segment + 1, 0)
        gap = Gap(shared.topic, self.number, first, effect.reason, end, effect.messages or None)
        if shared.recorder is not None:
            shared.recorder.gap(shared.group, shared.topic, self.number, first, end, effect.reason)
        if shared.on_gap is not None:
            _call_back("on_gap", shared.on_gap, gap)
        else:
            _log.warning(
                "group %s will not get some messages, because they were declared lost or dropped by retention. "
                "Give the consumer an on_gap to be notified in the program. The gap: %s",
                shared.group,
                gap,
            )


class Subscription(Subscribed):
    """One partition of an exclusive consumer."""

    core: PartitionConsumer

    def __init__(
        self,
        shared: Shared,
        inbox: Inbox,
        number: int,
        partition_id: int,
        start_at: Start,
        config: ct.ConsumerConfig,
        spread_over: int = 0,
    ) -> None:
        core = PartitionConsumer(config, subscription_base=number << 32, spread_over=spread_over)
        super().__init__(shared, number, partition_id, start_at, core)
        self._inbox = inbox
        self.held: list[Chunk] = []  # batches that the application does not get while the partition is being yielded
        self.taken: int | None = None  # the last offset that the application got under the present grant

    @property
    def _has_work(self) -> bool:
        core = self.core
        if core.at_most_once and self._inbox.chunks:
            return True  # of any partition: it is enough that the application is behind
        return bool(core.yielding) or core.has_unacknowledged

    def acknowledge(self, grant: int, offset: int) -> bool:
        """Acknowledge all messages up to `offset` that the application got under `grant`.

        Returns:
            Whether the acknowledgement counts: the grant is still the present one.

        Raises:
            BadRequestError: The application did not get the message.
            ClientFailureError: The consumer has ended because its own code failed.
        """
        if self.failure.error is not None:
            raise self.failure.error
        core, shared = self.core, self._shared
        segment, index = split_offset(offset)
        if not self.is_active or grant != core.grant or segment != core.segment:
            return False
        if self.taken is None or offset > self.taken:
            raise BadRequestError(f"offset {segment}:{index} was not delivered to this consumer")
        if shared.recorder is not None:
            shared.recorder.acked(shared.group, shared.topic, self.number, offset)
        try:
            self._step(ct.Acknowledge(grant, segment, index + 1))
        except Exception as exc:
            self.failure.raise_for(exc)
        return True

    def acknowledge_taken(self) -> None:
        """Acknowledge all messages that the application got under the present grant."""
        if self.taken is not None:
            self.acknowledge(self.core.grant, self.taken)

    @entry
    def grown(self, partitions: int) -> None:
        """The topic has this many partitions now, and the consumer reads all of them."""
        self._step(ct.Grown(partitions))

    def _join(self, effect: ct.SendJoin) -> broker_pb2.Join:
        join = super()._join(effect)
        if self.core.spread_over:
            join.spread_over, join.partition = self.core.spread_over, self.number
        return join

    def _asked_to_yield(self, number: int) -> None:
        if self.core.at_most_once:
            self.yield_if_empty()
            return
        self._inbox.hold(self)
        index = self.core.next_index
        if self.held:
            index = self.core.begun_index if self.taken is None else split_offset(self.taken)[1] + 1
        self._step(ct.Yield(number, index))

    @entry
    def yield_if_empty(self) -> None:
        """At most once: what was delivered does not come again, so it yields when the application has all of it."""
        core = self.core
        if core.yielding and core.at_most_once and not self._inbox.has(self):
            self._step(ct.Yield(core.yielding, core.next_index))

    def is_current(self, grant: int) -> bool:
        """Whether messages that came under a grant may still be given to the application."""
        if self.core.has_lapsed(time.monotonic_ns() // 1000):
            self.timer_due()
        return grant == self.core.grant

    def _delivered(
        self, link: ConsumeLink, event: broker_pb2.DeliveryEvent, batches: Sequence[tuple[BatchHeader, memoryview]]
    ) -> bool:
        told = event.batches
        deliver = self._step(
            ct.Delivered(
                event.subscription,
                told.segment,
                tuple((header.base_index, header.message_count) for header, _ in batches),
                told.from_index,
                told.maybe_repeated_below,
                told.attempt,
                told.server_epoch,
            )
        )
        if deliver is None:
            return False
        self._inbox.put(
            Chunk(
                self, deliver.grant, deliver.segment, max(deliver.from_index, header.base_index),
                deliver.maybe_repeated_below, deliver.delivery_attempt, header, body, link,
            )
            for header, body in batches
        )  # fmt: skip
        return True

    def _do_own(self, effect: ct.Effect) -> None:
        match effect:
            case ct.SendAck():
                ack = broker_pb2.Ack(subscription=effect.subscription, token=effect.token, offset=effect.offset)
                self._shared.streams.write(effect.stream, broker_pb2.ConsumeRequest(ack=ack))
            case ct.AskedToYield():
                self._asked_to_yield(effect.number)
            case ct.YieldEnded():
                self._inbox.let_go(self)
            case ct.SendYielded():
                yielded = broker_pb2.Yielded(
                    subscription=effect.subscription, token=effect.token, number=effect.number, offset=effect.offset
                )
                self._shared.streams.write(effect.stream, broker_pb2.ConsumeRequest(yielded=yielded))
            case ct.SendSpreadOver():
                over = broker_pb2.SpreadOver(subscription=effect.subscription, partitions=effect.partitions)
                self._shared.streams.write(effect.stream, broker_pb2.ConsumeRequest(spread_over=over))
            case _:
                pass

    def _assigned(self, effect: ct.Assigned) -> None:
        self.taken = None
        self._inbox.let_go(self)  # what is held came under the grant before: the inbox drops it
        super()._assigned(effect)


def _call_back(name: str, callback: Callable[[T], None], told: T) -> None:
    """Call the application. If it raises, log that, so that the core's other effects are carried out."""
    try:
        call_back(name, callback, told)
    except Exception:
        _log.exception("the application's %s raised an exception when it got %s; the consumer continues", name, told)
