"""Elects the owners of names, where this broker is the host: the master of partition 0 of the topic.

`core.exclusive.election` decides. Here are the programs' seats, the coordinator, and the masters of the partitions. An
election lives as long as programs want the name, and a minute longer. When another broker becomes the host, the
programs go there. If this broker has not heard of that, it does no harm; see the rules of the election.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog
from seriatim_api.batch import FLAG_CONTROL, make_header, parse_header
from seriatim_api.errors import (
    BadRequestError,
    CoordinatorRefusedError,
    NotServingError,
    OverloadedError,
    PreconditionError,
    ProducerFencedError,
    SeriatimError,
    UnknownTopicError,
)
from seriatim_api.exclusive import exclusive_producer
from seriatim_api.ids import PartitionId, check_name
from seriatim_api.v1 import owners_pb2, records_pb2

from ...core.exclusive.election import Election
from ...core.values.messages import FORM_EXCLUSIVE
from ...core.values.owners import (
    AnnounceOwner,
    ElectionEffect,
    ListOwned,
    OwnerStanding,
    ReadClaim,
    Standing,
    TellCandidate,
    WriteClaim,
)
from ...interfaces.coordinator import Put, mod_revision_is
from ...runtime.coordinator.forms import all_read
from ...runtime.coordinator.records import claim_from_value, claim_to_value
from ..calls.services import Services
from .master_appends import Batches, MasterAppends

TICK_S: Final = 0.05
"""How often the sessions of programs are looked at."""

IDLE_S: Final = 60.0
"""How long an election that no program takes part in is kept."""

NAMES_MAX: Final = 1_000
PROGRAMS_MAX: Final = 64
"""Limits of one broker, and of one name."""

SESSION_MS_MIN: Final = 500
SESSION_MS_MAX: Final = 60_000
TEXT_LETTERS_MAX: Final = 200

ANNOUNCE_DEADLINE_S: Final = 2.0
"""How long a partition may take before the program is told that it cannot be reached."""

ANNOUNCED_AT_ONCE: Final = 64

READ_DEADLINE_S: Final = 2.0
WRITE_DEADLINE_S: Final = 2.0

_log = structlog.get_logger(__name__)


class Seat:
    """The stream of one program that wants a name, or has it."""

    def __init__(self, hosted: Hosted, owner: bytes) -> None:
        self.hosted = hosted
        self.owner = owner
        self.standing: Standing | None = None  # the newest one that was not sent yet
        self.error: SeriatimError | None = None
        self.wake = asyncio.Event()

    def end(self, error: SeriatimError) -> None:
        """The stream ends with this error."""
        self.error = self.error or error
        self.wake.set()


class Hosted:
    """One name that this broker hosts."""

    def __init__(self, topic: str, partition: PartitionId, name: str) -> None:
        self.topic, self.partition, self.name = topic, partition, name
        self.producer = exclusive_producer(partition, name)
        self.election = Election(_now_us())
        self.seats: dict[bytes, Seat] = {}
        self.idle_since = time.monotonic()
        self.tasks: set[asyncio.Task[None]] = set()


class OwnerElections:
    """The elections of all names that this broker hosts.

    Args:
        services: Of this broker.
        masters: Appends to partitions.
        leads: Whether this broker is the master of a partition's open segment.
    """

    def __init__(self, services: Services, masters: MasterAppends, leads: Callable[[PartitionId], bool]) -> None:
        self._services = services
        self._masters = masters
        self._leads = leads
        self._hosted: dict[bytes, Hosted] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._announcing = asyncio.Semaphore(ANNOUNCED_AT_ONCE)

    # ---- programs -----------------------------------------------------------------------------------------

    async def enter(self, request: owners_pb2.AcquireRequest) -> Seat:
        """A program wants a name.

        Raises:
            IllegalNameError: The topic or the owner cannot have this name.
            BadRequestError: Another field is not legal, or the name has the producer id of another one.
            UnknownTopicError: There is no such topic, or it is another one of that name.
            PreconditionError: Not all brokers know exclusive producers.
            NotServingError: Another broker is the host.
            OverloadedError: There are too many names here, or programs for this name.
        """
        if len(request.owner) != 16 or len(request.owner_text) > TEXT_LETTERS_MAX:
            raise BadRequestError(f"an owner has 16 bytes and a text of at most {TEXT_LETTERS_MAX} letters")
        if not SESSION_MS_MIN <= request.session_ms <= SESSION_MS_MAX:
            raise BadRequestError(f"session_ms is {SESSION_MS_MIN} to {SESSION_MS_MAX}, not {request.session_ms}")
        hosted = await self.host(request.topic, request.name, PartitionId(request.partition_id))
        if len(hosted.seats) >= PROGRAMS_MAX and request.owner not in hosted.seats:
            raise OverloadedError(
                f"{PROGRAMS_MAX} programs want {request.name!r} in {request.topic} already", retry_after_ms=1000
            )
        seat = Seat(hosted, request.owner)
        if (before := hosted.seats.get(request.owner)) is not None:
            before.end(NotServingError("the program has another call for this name"))
        hosted.seats[request.owner] = seat
        hosted.election.now_us = _now_us()
        hosted.election.came(
            request.owner,
            request.owner_text,
            request.session_ms * 1000,
            told_epoch=request.epoch,
            takes_over=request.take_over,
        )
        self._carry_out(hosted)
        return seat

    async def host(self, topic: str, name: str, partition: PartitionId | None = None) -> Hosted:
        """The election of a name; it begins if there is none here. Errors as for `enter`.

        `partition`: the id of partition 0, as the caller knows it.
        """
        check_name(name, "owner")
        services = self._services
        if services.is_stopping:
            raise NotServingError("this broker is stopping", retry_after_ms=50)
        record = await services.topic(topic)
        first = PartitionId(record.partition_ids[0])
        if partition not in (None, first):
            raise UnknownTopicError(f"topic {topic!r} was deleted and made again", topic=topic)
        if not self._leads(first):
            raise NotServingError(f"another broker elects the owners of names in {topic}", retry_after_ms=50)
        if await all_read(services.coordinator, services.keys, FORM_EXCLUSIVE) is None:
            raise PreconditionError(
                "a producer cannot have an owner, because the brokers of this cluster do not all know exclusive "
                "producers: upgrade all brokers first"
            )
        producer = exclusive_producer(first, name)
        hosted = self._hosted.get(producer)
        if hosted is None:
            if len(self._hosted) >= NAMES_MAX:
                raise OverloadedError(f"this broker elects the owners of {NAMES_MAX} names", retry_after_ms=1000)
            hosted = self._hosted[producer] = Hosted(topic, first, name)
            self._carry_out(hosted)
            self._set_timer()
        if hosted.name != name:
            raise BadRequestError(f"{name!r} and {hosted.name!r} have the same producer id: choose another name")
        return hosted

    def heard(self, seat: Seat) -> None:
        """A heartbeat of the program came."""
        if seat.hosted.seats.get(seat.owner) is seat:
            seat.hosted.election.now_us = _now_us()
            seat.hosted.election.heard(seat.owner)
            self._carry_out(seat.hosted)

    def leave(self, seat: Seat, *, is_released: bool) -> None:
        """The program's stream has ended. `is_released`: it gives the name up."""
        hosted = seat.hosted
        if hosted.seats.get(seat.owner) is seat:
            del hosted.seats[seat.owner]
            hosted.idle_since = time.monotonic()
            hosted.election.now_us = _now_us()
            hosted.election.gone(seat.owner, is_released=is_released)
            self._carry_out(hosted)

    def release(self, hosted: Hosted) -> None:
        """An administrator takes the name away from its owner."""
        hosted.election.now_us = _now_us()
        hosted.election.released()
        self._carry_out(hosted)

    # ---- time ---------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is None and self._hosted:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic()
        for hosted in list(self._hosted.values()):
            if not self._leads(hosted.partition) or self._services.is_stopping:
                self._drop(hosted, NotServingError("another broker elects the owner now", retry_after_ms=20))
            elif not hosted.seats and now - hosted.idle_since > IDLE_S:
                self._drop(hosted, NotServingError("no program wants the name"))
            else:
                hosted.election.tick(_now_us())
                self._carry_out(hosted)
        self._set_timer()

    def _drop(self, hosted: Hosted, error: SeriatimError) -> None:
        if self._hosted.get(hosted.producer) is hosted:
            del self._hosted[hosted.producer]
        seats, hosted.seats = hosted.seats, {}
        for seat in seats.values():
            seat.end(error)
        for task in hosted.tasks:
            task.cancel()

    # ---- effects ------------------------------------------------------------------------------------------

    def _carry_out(self, hosted: Hosted) -> None:
        for effect in hosted.election.take():
            if isinstance(effect, TellCandidate):
                self._tell(hosted, effect)
            else:
                task = asyncio.create_task(self._ending_at_bugs(hosted, effect), name=type(effect).__name__)
                hosted.tasks.add(task)
                task.add_done_callback(hosted.tasks.discard)

    async def _ending_at_bugs(self, hosted: Hosted, effect: ElectionEffect) -> None:
        works: dict[type, Callable[[Hosted, Any], Coroutine[Any, Any, None]]] = {
            ReadClaim: self._read,
            WriteClaim: self._write,
            ListOwned: self._list,
            AnnounceOwner: self._announce,
        }
        try:
            await works[type(effect)](hosted, effect)
            hosted.election.now_us = _now_us()
            self._carry_out(hosted)
        except Exception as exc:
            self._services.driver.fail(exc)

    def _tell(self, hosted: Hosted, effect: TellCandidate) -> None:
        seat = hosted.seats.get(effect.owner)
        if seat is None:
            return
        if effect.standing.kind is OwnerStanding.SILENT:
            del hosted.seats[effect.owner]
            seat.end(NotServingError("no heartbeat came during the session"))
            return
        if effect.standing.kind is OwnerStanding.LOST:
            del hosted.seats[effect.owner]
        seat.standing = effect.standing
        seat.wake.set()

    async def _read(self, hosted: Hosted, _effect: ReadClaim) -> None:
        services = self._services
        try:
            item = await services.coordinator.get(services.keys.owner(hosted.producer), deadline_s=READ_DEADLINE_S)
            claim = claim_from_value(item.value, hosted.partition, hosted.name) if item is not None else None
        except BadRequestError as exc:
            self._drop(hosted, exc)
        except SeriatimError as exc:
            _log.warning("owner_not_read", topic=hosted.topic, name=hosted.name, error=str(exc))
            hosted.election.read(None, 0, failed=True)
        else:
            hosted.election.read(claim, item.mod_revision if item is not None else 0)

    async def _write(self, hosted: Hosted, effect: WriteClaim) -> None:
        services = self._services
        key = services.keys.owner(hosted.producer)
        value = claim_to_value(effect.claim, hosted.topic, hosted.partition, hosted.name, int(time.time() * 1000))
        done: bool | None = None
        revision = 0
        try:
            # In a rolling upgrade, no broker of the version before registers meanwhile.
            forms = await all_read(services.coordinator, services.keys, FORM_EXCLUSIVE)
            if forms is not None:
                result = await services.coordinator.txn(
                    (mod_revision_is(key, effect.revision), forms), [Put(key, value)], deadline_s=WRITE_DEADLINE_S
                )
                done, revision = result.succeeded, result.revision
        except CoordinatorRefusedError as exc:  # it may have been kept
            _log.error("owner_not_written", topic=hosted.topic, name=hosted.name, error=str(exc))
        except SeriatimError as exc:
            _log.warning("owner_not_written", topic=hosted.topic, name=hosted.name, error=str(exc))
        if done:
            _log.info(
                "owner_released" if effect.claim.is_released else "owner_elected",
                topic=hosted.topic, name=hosted.name, epoch=effect.claim.epoch, owner=effect.claim.text,
            )  # fmt: skip
        hosted.election.written(done, effect.claim, revision)

    async def _list(self, hosted: Hosted, effect: ListOwned) -> None:
        partitions: tuple[PartitionId, ...] = ()
        try:
            record: records_pb2.TopicRecord = await self._services.topic(hosted.topic)
            partitions = tuple(map(PartitionId, record.partition_ids))
            if partitions[0] != hosted.partition:
                raise UnknownTopicError(f"topic {hosted.topic!r} was deleted and made again", topic=hosted.topic)
        except UnknownTopicError as exc:
            self._drop(hosted, exc)
        except SeriatimError as exc:
            _log.warning("partitions_not_listed", topic=hosted.topic, error=str(exc))
        hosted.election.listed(effect.epoch, partitions)

    async def _announce(self, hosted: Hosted, effect: AnnounceOwner) -> None:
        now_ms = int(time.time() * 1000)
        header = make_header(
            partition=effect.partition,
            message_count=1,
            producer=hosted.producer,
            producer_epoch=effect.epoch,
            base_sequence=0,
            first_timestamp_ms=now_ms,
            last_timestamp_ms=now_ms,
            body_length=0,
            body_crc=self._services.checksum(0, b""),
            flags=FLAG_CONTROL,
        )
        batches: Batches = [(parse_header(header), b"")]

        async def find(_is_fresh: bool) -> tuple[PartitionId, Batches]:
            return effect.partition, batches

        try:
            async with self._announcing:
                error = (await self._masters.append(find, ANNOUNCE_DEADLINE_S)).error
        except SeriatimError as exc:
            error = exc
        reason = f"partition {effect.number}: {error.message}" if error is not None else ""
        known: int | None = None
        if isinstance(error, ProducerFencedError):
            known = int(error.details.get("epoch", "0"))
        hosted.election.announced(effect.number, effect.partition, effect.epoch, known_epoch=known, reason=reason)


def _now_us() -> int:
    return time.monotonic_ns() // 1000
