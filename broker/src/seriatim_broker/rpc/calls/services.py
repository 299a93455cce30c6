"""What all servicers of one broker share, and helpers that each of them uses."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NoReturn, TypeVar

import structlog
from seriatim_api.errors import (
    BadRequestError,
    CoordinatorBehindError,
    DeadlineExceededError,
    IllegalNameError,
    NotServingError,
    SeriatimError,
    UnknownTopicError,
)
from seriatim_api.ids import NAME_RULE, MemberId, PartitionId, RunId, check_name, is_legal_broadcast_name
from seriatim_api.network.round_trips import WAY_KEY, way_of
from seriatim_api.publications import STAGE_TOPIC
from seriatim_api.status import to_status
from seriatim_api.v1 import records_pb2

from ...core.values.chain import Chain
from ...counters.broker import Counters
from ...interfaces.bodies import Bodies
from ...interfaces.coordinator import Coordinator, Get
from ...interfaces.storage import Storage
from ...runtime.coordinator.keys import Keys
from ...runtime.coordinator.operator_lease import Guard, guard_of, unguarded
from ...runtime.coordinator.pages import WholeChain, read_all_whole
from ...runtime.coordinator.records import join_pages, parse_chain, parse_record
from ...runtime.coordinator.topic_limits import TopicLimits
from ...runtime.driver.coordinator_requests import READS_PER_TXN
from ...runtime.driver.driver import Driver, Reply, ask
from ...runtime.driver.traffic import Traffic
from ...runtime.membership.directory import Directory
from ...runtime.membership.registration import Identity
from .limits import IN_FLIGHT_BYTES_MAX, STREAM_COUNT_MAX
from .outbound import OPERATOR_EPOCH_KEY, is_forwarded, operator_epoch, said

DEADLINE_S_DEFAULT = 10.0
"""Deadline of a call whose caller named none."""

DEADLINE_S_MAX = 60.0

_log = structlog.get_logger(__name__)
_Kind = TypeVar("_Kind")
_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])


async def _nothing_lost() -> str:
    return ""


@dataclass(slots=True)
class Services:
    """One broker, as its servicers see it.

    Attributes:
        in_flight_bytes: Bytes of batches that the core has and has not answered, over all streams.
        stream_count: Number of append, consume and range streams.
        is_stopping: A graceful stop has begun: there are no new streams.
        lost: Looks whether the coordinator has lost decisions, and says what it lost; empty: nothing that is known.
        note_revision: Keeps on the disk how far the coordinator has come (`LostRecords.note`).
        quarantined_logs: See `BrokerCore.quarantined_logs`.
        disk_state: What is wrong with a member's disk: "full", "hangs", or empty.
        is_alive: Whether a run is linked to this broker and answers within this many seconds (`Links.is_alive`).
    """

    identity: Identity
    driver: Driver
    storage: Storage
    directory: Directory
    coordinator: Coordinator
    keys: Keys
    counters: Counters
    traffic: Traffic
    checksum: Callable[[int, bytes], int]
    bodies: Bodies
    batch_bytes_max: int
    topic_limits: TopicLimits
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    stream_count_max: int = STREAM_COUNT_MAX
    in_flight_bytes: int = 0
    stream_count: int = 0
    note_revision: Callable[[int], Awaitable[None]] | None = None
    lost: Callable[[], Awaitable[str]] = _nothing_lost
    is_stopping: bool = field(default=False)
    is_alive: Callable[[RunId, float], Awaitable[bool]] | None = None
    disk_state: Callable[[MemberId], str] = lambda _member: ""
    quarantined_logs: Callable[[], list[tuple[PartitionId, int, int, int]]] = list

    def told(self, whole: WholeChain) -> records_pb2.ChainRecord:
        """A chain for a caller: its whole record, whose send chain names no broker group that was removed.

        The record changes at the next switch only. Before the broker has heard of any broker group, all are named.

        Raises:
            CorruptionError: A value cannot be parsed, or the pages are not the record's.
        """
        record = join_pages(whole.item.value, whole.pages)
        there = self.directory.broker_groups()
        if there:
            record.send_chain[:] = [group for group in record.send_chain if group in there]
        return record

    async def ask_core(self, event_of: Callable[[int], Any], deadline_s: float) -> Reply:
        """Feed an event that has one reply, and wait for the reply.

        Raises:
            DeadlineExceededError: It did not come in time.
        """
        try:
            return await ask(self.driver, event_of, deadline_s)
        except TimeoutError as exc:
            raise DeadlineExceededError("the broker found no answer in time") from exc

    async def topic(self, name: str, *, or_stage: bool = False) -> records_pb2.TopicRecord:
        """The record of a topic that is READY. `or_stage` allows the stage topic, which no other call can name.

        Raises:
            IllegalNameError: No topic can have that name.
            UnknownTopicError: There is no such topic.
            CoordinatorBehindError: There is none in the coordinator, which has lost decisions.
            CoordinatorUnavailableError: There is none, and the coordinator does not answer any more.
            NotServingError: It is being created.
        """
        if not (or_stage and name == STAGE_TOPIC):
            check_name(name, "topic")
        item = await self.coordinator.get(self.keys.topic(name))
        record = records_pb2.TopicRecord.FromString(item.value) if item else None
        # While the coordinator lacks decisions, no topic is said to be unknown. Without it:
        #   1. The coordinator comes back empty, or as an older copy.
        #   2. Producers and consumers ask for their topic by its name. They are told that it was deleted, and end.
        #   3. The coordinator is rebuilt from the disks, and the topic is there. Its programs have ended.
        if record is None and (why := await self.lost()):
            raise CoordinatorBehindError(f"whether there is a topic {name!r} is not known: {why}")
        if record is None or record.state == records_pb2.TOPIC_STATE_DELETING:
            raise UnknownTopicError(f"there is no topic {name!r}", topic=name)
        if record.state != records_pb2.TOPIC_STATE_READY:
            raise NotServingError(f"topic {name!r} is being created", retry_after_ms=50, topic=name)
        return record

    async def check_nothing_lost(self, what: str, refused: str = "made") -> None:
        """Refuse to make, open or decide something of which the coordinator may have lost a newer record.

        Rule `lost-is-not-made-anew` (I1). Without it:
          1. The coordinator is restored as it was before topic `orders` was made.
          2. An operator, or an administrator, makes `orders` again. It has other partitions than the first one.
          3. The rebuild finds the name taken: the messages of the first `orders` stay where no consumer gets them.

        Raises:
            CoordinatorBehindError: The coordinator has lost decisions.
            CoordinatorUnavailableError: The coordinator does not answer.
        """
        if why := await self.lost():
            raise CoordinatorBehindError(f"{what} is not {refused}, because the coordinator may have lost it: {why}")

    async def chain_records(self, partitions: Sequence[int]) -> list[records_pb2.ChainRecord]:
        """The records of chains with their newest segments, in order. Chains that do not exist are left out."""
        chain_records: list[records_pb2.ChainRecord] = []
        for start in range(0, len(partitions), READS_PER_TXN):
            page = partitions[start : start + READS_PER_TXN]
            result = await self.coordinator.txn((), [Get(self.keys.chain(PartitionId(id_))) for id_ in page])
            chain_records += [parse_record(response.item.value) for response in result.responses if response.item]
        return chain_records

    async def chains(self, partitions: Sequence[int]) -> list[Chain]:
        """The chains of partitions, in order. Chains that do not exist are left out."""
        chains: list[Chain] = []
        for start in range(0, len(partitions), READS_PER_TXN):
            page = partitions[start : start + READS_PER_TXN]
            gets = [Get(self.keys.chain(PartitionId(partition))) for partition in page]
            result = await self.coordinator.txn((), gets)
            items = [response.item for response in result.responses if response.item]
            whole = await read_all_whole(self.coordinator, self.keys, items)
            chains += [parse_chain(chain.item.value, chain.pages) for chain in whole]
        return chains


def answered(reply: Reply, kind: type[_Kind]) -> _Kind:
    """The reply, which is of this kind.

    Raises:
        SeriatimError: It has an error.
    """
    assert isinstance(reply, kind)
    error: SeriatimError | None = getattr(reply, "error", None)
    if error is not None:
        raise error
    return reply


def guard_of_call(services: Services, context: Any) -> Guard:
    """What the transactions of a call compare: nothing, or that the operator that makes the call is the newest.

    Raises:
        BadRequestError: The epoch that the call names is no number of 63 bits.
    """
    epoch = operator_epoch(context)
    if epoch is None:
        return unguarded
    if not epoch.isdecimal() or not 0 <= int(epoch) < 2**63:
        raise BadRequestError(f"{OPERATOR_EPOCH_KEY} is a number, not {epoch[:40]!r}")
    return guard_of(services.coordinator, services.keys, int(epoch))


async def controller_elsewhere(services: Services, context: Any) -> str:
    """The controller, to which this broker passes a call on because it is not the controller itself.

    Raises:
        NotServingError: There is none at the moment, or another broker has passed the call on already.
    """
    if is_forwarded(context):
        raise NotServingError("the controller has just changed", retry_after_ms=200)
    item = await services.coordinator.get(services.keys.controller)
    if item is None:
        raise NotServingError("no controller is elected at the moment", retry_after_ms=200)
    broker = str(records_pb2.ControllerRecord.FromString(item.value).broker)
    if broker == services.identity.member.broker:
        raise NotServingError("the controller was elected a moment ago and has not begun", retry_after_ms=200)
    return broker


def named(request: Any, field: str) -> str | None:
    """The text of an optional field of a request; None if it is not set.

    Raises:
        BadRequestError: The field is set and empty: what the caller meant to name is not known.
    """
    if not request.HasField(field):
        return None
    text = str(getattr(request, field))
    if not text:
        raise BadRequestError(f"`{field}` is set and empty: name what is meant, or do not set the field")
    return text


def check_group(name: str, *, is_broadcast: bool | None = None) -> None:
    """Refuse an illegal name of a consumer group.

    Args:
        name: The name. In broadcast mode, and only there, it is `group/consumer`.
        is_broadcast: Whether the consumer group is of broadcast mode; None: it may be.

    Raises:
        IllegalNameError: It is illegal.
    """
    if is_broadcast is None:
        is_broadcast = "/" in name
    if not is_broadcast:
        check_name(name, "consumer group")
    elif not is_legal_broadcast_name(name):
        text = "cannot name a consumer of a broadcast group: write GROUP/CONSUMER (caches/web-1, say)"
        raise IllegalNameError(f"{name[:40]!r} {text}; {NAME_RULE}")


def ends_s(context: Any) -> float:
    """Seconds until the caller gives the call up, at most 60; 10 if it did not say."""
    left = context.time_remaining()
    return min(DEADLINE_S_DEFAULT if left is None else max(left, 0.001), DEADLINE_S_MAX)


def remaining_s(context: Any) -> float:
    """Seconds until the answer must leave, so that it is there before the caller gives up."""
    return max(ends_s(context) - (way_s(context) or 0.0), 0.001)


def way_s(context: Any) -> float | None:
    """Seconds that the caller reserved for the way of the answer; None: it did not say."""
    return way_of(said(context, WAY_KEY))


def deadline_us(context: Any) -> int:
    """When the answer must leave, as a time of the core's clock.

    Rule `waits-end-before-the-way` (ASKED): the asker says how long its question may be held, and waits longer by the
    way. Without it: see `seriatim_api.network.round_trips`. If it does not say it, 5 % of its time are for the way.
    """
    share = 1.0 if way_s(context) is not None else 0.95
    return time.monotonic_ns() // 1000 + int(remaining_s(context) * share * 1e6)


async def abort(context: Any, error: SeriatimError) -> NoReturn:
    """End the call with a typed error."""
    await context.abort(*to_status(error))
    raise AssertionError("abort raises")


def typed_errors(method: _Method) -> _Method:
    """Turn the `SeriatimError`s of a unary method into statuses."""

    @wraps(method)
    async def call(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except SeriatimError as exc:
            await abort(context, exc)

    return call  # type: ignore[return-value]
