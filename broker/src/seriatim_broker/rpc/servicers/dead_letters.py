"""Calls about dead letters: replay and drop them; and batches that other brokers forward to partitions of this one."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from seriatim_api.batch import (
    FLAG_CONTROL,
    FLAG_KEYED,
    HEADER_SIZE_BYTES,
    BatchHeader,
    HeaderError,
    make_header,
    parse_header,
)
from seriatim_api.dead_letters import (
    FOR_NO_GROUP,
    REPLAY_MARK,
    group_hash,
    is_brokers_own,
    replay_producer,
    resolution_headers,
    resolution_value,
)
from seriatim_api.errors import BadRequestError, ChecksumMismatchError, SeriatimError
from seriatim_api.exclusive import is_exclusive
from seriatim_api.ids import OFFSET_MAX, PartitionId, check_name
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import dead_letters_pb2, dead_letters_pb2_grpc

from ...core.values.delayed import is_control_body
from ...interfaces.bodies import Bodies
from ..calls.outbound import calling_broker
from ..calls.services import Services, remaining_s, typed_errors
from ..distributed.forwards import Forwards
from ..links.peer_names import PeerNames

LETTERS_PER_CALL_MAX: Final = 256
DROPS_PER_CALL_MAX: Final = 10_000
COPIES_AT_ONCE: Final = 16
"""How many copies for one partition go to its master in one request."""

FORWARDED_PER_CALL_MAX: Final = 64


class DeadLettersServicer(dead_letters_pb2_grpc.DeadLettersServicer):
    """Serves `seriatim.v1.DeadLetters`.

    Args:
        services: Of this broker.
        forwards: Appends to other partitions.
        bodies: Makes the bodies of resolutions.
        names: Checks the certificates of brokers; None without TLS.
    """

    def __init__(self, services: Services, forwards: Forwards, bodies: Bodies, names: PeerNames | None) -> None:
        self._services = services
        self._forwards = forwards
        self._bodies = bodies
        self._names = names
        self._resolver = secrets.token_bytes(8) + REPLAY_MARK  # the producer of this process's resolutions
        self._numbers = itertools.count(1)

    # ---- between brokers ----

    @typed_errors
    async def AppendForwarded(  # noqa: N802 - the contract's names
        self, request: dead_letters_pb2.AppendForwardedRequest, context: Any
    ) -> dead_letters_pb2.AppendForwardedResponse:
        """Append another broker's batches, as the master of the partition."""
        if self._names is not None:
            await self._names.check(calling_broker(context), context)
        batches = self._batches(request)
        stored = await self._forwards.masters.append_here(
            PartitionId(request.partition_id), batches, remaining_s(context) * 0.9
        )
        answer = dead_letters_pb2.AppendForwardedResponse(offsets=stored.offsets)
        if stored.error is not None:
            answer.error.CopyFrom(error_to_proto(stored.error))
        return answer

    def _batches(self, request: dead_letters_pb2.AppendForwardedRequest) -> list[tuple[BatchHeader, bytes]]:
        count = len(request.bodies)
        if not 0 < count <= FORWARDED_PER_CALL_MAX or len(request.headers) != count * HEADER_SIZE_BYTES:
            raise BadRequestError(f"a call has 1 to {FORWARDED_PER_CALL_MAX} batches, each with its header")
        found: list[tuple[BatchHeader, bytes]] = []
        for at, body in enumerate(request.bodies):
            try:
                header = parse_header(request.headers[at * HEADER_SIZE_BYTES : (at + 1) * HEADER_SIZE_BYTES])
            except HeaderError as exc:
                raise BadRequestError(f"not a batch: {exc}") from exc
            is_announcement = is_exclusive(header.producer) and bool(header.flags & FLAG_CONTROL)
            if header.partition != request.partition_id or not (is_announcement or is_brokers_own(header.producer)):
                raise BadRequestError("the batch is for another partition, or is not a forwarder's")
            if header.body_length != len(body) or self._services.checksum(0, body) != header.body_crc:
                raise ChecksumMismatchError("the body is not the one that its checksum was made from")
            if header.flags & FLAG_CONTROL and not is_control_body(header, body):
                raise BadRequestError("a control batch has no body, or the list of a volley")
            found.append((header, body))
        return found

    # ---- administrators ----

    @typed_errors
    async def ReplayDeadLetters(  # noqa: N802
        self, request: dead_letters_pb2.ReplayDeadLettersRequest, context: Any
    ) -> dead_letters_pb2.ReplayDeadLettersResponse:
        """Copy dead letters to where they came from, in order, and then say that they are done with."""
        until = time.monotonic() + remaining_s(context) * 0.9
        letters = list(request.letters)
        self._check(letters)
        topic = await self._services.topic(request.topic)
        if request.partition >= len(topic.partition_ids):
            raise BadRequestError(f"topic {request.topic!r} has no partition {request.partition}")
        place = topic.partition_ids[request.partition]
        offsets: list[int] = []
        error: SeriatimError | None = None
        for (origin, number), group in itertools.groupby(
            letters, key=lambda letter: (letter.origin_topic, letter.origin_partition)
        ):
            of_partition = list(group)
            for begin in range(0, len(of_partition), COPIES_AT_ONCE):
                part = of_partition[begin : begin + COPIES_AT_ONCE]
                left_s = max(until - time.monotonic(), 0.1)
                stored = await self._forwards.append(origin, number, partial(self._copies, place, part), left_s)
                offsets += stored.offsets
                error = stored.error
                if error is not None:
                    break
            if error is not None:
                break
        # Rule `replayed-then-resolved` (J4): first the copy, then the resolution. Without it:
        #   1. The resolution of d:7 is stored. The broker dies before it has stored the copy.
        #   2. d:7 is not listed any more, and its message comes to no consumer.
        # If the broker dies between the two, d:7 is listed, and replayed again: the master finds the first copy.
        if offsets:
            done = [letter.offset for letter in letters[: len(offsets)]]
            await self._resolve(request.topic, request.partition, "replayed", done, until)
        answer = dead_letters_pb2.ReplayDeadLettersResponse(offsets=offsets)
        if error is not None:
            answer.error.CopyFrom(error_to_proto(error))
        return answer

    def _check(self, letters: Sequence[dead_letters_pb2.ReplayedLetter]) -> None:
        offsets = [letter.offset for letter in letters]
        if not 0 < len(letters) <= LETTERS_PER_CALL_MAX:
            raise BadRequestError(f"a call replays 1 to {LETTERS_PER_CALL_MAX} dead letters")
        if offsets != sorted(set(offsets)) or offsets[-1] > OFFSET_MAX:
            raise BadRequestError("the dead letters of a call have ascending offsets")
        for letter in letters:
            check_name(letter.origin_topic, "topic")
            if not letter.group:
                raise BadRequestError("a dead letter names its consumer group")
            self._bodies.check(letter.body, 1, 0)

    def _copies(
        self, place: int, letters: Sequence[dead_letters_pb2.ReplayedLetter], partition: PartitionId
    ) -> list[tuple[BatchHeader, bytes]]:
        return [self._copy(place, letter, partition) for letter in letters]

    def _copy(
        self, place: int, letter: dead_letters_pb2.ReplayedLetter, partition: PartitionId
    ) -> tuple[BatchHeader, bytes]:
        header = make_header(
            partition=partition,
            message_count=1,
            producer=replay_producer(place, letter.offset),
            producer_epoch=0,
            base_sequence=0,
            first_timestamp_ms=letter.timestamp_ms,
            last_timestamp_ms=letter.timestamp_ms,
            body_length=len(letter.body),
            body_crc=self._services.checksum(0, letter.body),
            flags=FLAG_KEYED if letter.keyed else 0,
            for_group=group_hash(letter.group),
            origin=(place, letter.offset),
        )
        return parse_header(header), letter.body

    @typed_errors
    async def DropDeadLetters(  # noqa: N802
        self, request: dead_letters_pb2.DropDeadLettersRequest, context: Any
    ) -> dead_letters_pb2.DropDeadLettersResponse:
        """Say of dead letters that they are done with."""
        until = time.monotonic() + remaining_s(context) * 0.9
        offsets = list(request.offsets)
        if not 0 < len(offsets) <= DROPS_PER_CALL_MAX or max(offsets) > OFFSET_MAX:
            raise BadRequestError(f"a call drops 1 to {DROPS_PER_CALL_MAX} dead letters, by their offsets")
        check_name(request.topic, "topic")
        await self._resolve(request.topic, request.partition, "dropped", offsets, until)
        return dead_letters_pb2.DropDeadLettersResponse()

    async def _resolve(
        self, topic: str, partition_number: int, outcome: str, offsets: Sequence[int], until: float
    ) -> None:
        """Append a resolution to the dead-letter topic. A second one of the same dead letters is harmless."""
        now_ms = int(time.time() * 1000)
        body = self._bodies.single(None, resolution_value(offsets), now_ms, resolution_headers(outcome))

        def make(number: int, partition: PartitionId) -> list[tuple[BatchHeader, bytes]]:
            header = make_header(
                partition=partition,
                message_count=1,
                producer=self._resolver,
                producer_epoch=number,
                base_sequence=0,
                first_timestamp_ms=now_ms,
                last_timestamp_ms=now_ms,
                body_length=len(body),
                body_crc=self._services.checksum(0, body),
                for_group=FOR_NO_GROUP,
            )
            return [(parse_header(header), body)]

        while True:
            made = partial(make, next(self._numbers))
            stored = await self._forwards.append(topic, partition_number, made, max(until - time.monotonic(), 0.1))
            if stored.error is not None:
                raise stored.error
            # Rule `resolved-with-a-place` (J4): a resolution is stored only if the answer has its place. Without it:
            #   1. Two calls resolve at once. The number 6 of one is stored before the number 5 of the other.
            #   2. 5 comes. The master has a higher number of the same producer, so it answers that 5 is stored.
            #   3. The dead letters of 5 stay in the list, although their copies are stored.
            if stored.offsets[0]:
                return
