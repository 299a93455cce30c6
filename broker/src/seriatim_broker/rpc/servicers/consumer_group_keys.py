"""Administration of the keys of consumer groups that wait: listed, released, passed over.

The server of the cursor segment does it (`core.consumers.keyed.waiting_keys`). Any broker finds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from seriatim_api.errors import (
    BadRequestError,
    GroupHeadElsewhereError,
    NotServingError,
    PartitionOutOfRangeError,
    PreconditionError,
    SeriatimError,
)
from seriatim_api.ids import OFFSET_MAX
from seriatim_api.key_names import key_of_name, name_of_key
from seriatim_api.status import error_to_proto
from seriatim_api.v1 import broker_pb2

from ...core.values.chain import Chain
from ...core.values.effects import KeysListed, KeysOperated
from ...core.values.events import ListKeys, OperateKeys
from ...core.values.keyed import KeyOperation, KeyPhase, SeenKey, WaitingKey
from ...interfaces.same_names import fill
from ..calls.outbound import is_forwarded, operator_epoch
from ..calls.services import answered, check_group, guard_of_call, remaining_s, typed_errors
from .consumer_group_admin import row_of, unknown_consumer_group
from .consumer_group_operations import ROUND_PAUSE_S, ROUNDS_MAX, ConsumerGroupOperations

KEYS_PER_CALL_MAX = 1_000
KEYS_PER_PAGE_DEFAULT = 100

_PHASES = {
    broker_pb2.KEY_STATE_DELAYED: KeyPhase.RETRY,
    broker_pb2.KEY_STATE_PARKED: KeyPhase.PARKED,
    broker_pb2.KEY_STATE_FORWARDING: KeyPhase.FORWARDING,
}
_STATES = {phase: state for state, phase in _PHASES.items()}


class ConsumerGroupKeys(ConsumerGroupOperations):
    """The part of `seriatim.v1.Admin` for keys that wait."""

    @typed_errors
    async def ListGroupKeys(  # noqa: N802 - the contract's names
        self, request: broker_pb2.ListGroupKeysRequest, context: Any
    ) -> broker_pb2.ListGroupKeysResponse:
        """Keys of one partition that wait, by name, page by page."""
        phases = tuple(_phase(state) for state in request.states)
        if request.limit > KEYS_PER_CALL_MAX:
            raise BadRequestError(f"a page has at most {KEYS_PER_CALL_MAX:,} keys, not {request.limit:,}")
        limit = request.limit or KEYS_PER_PAGE_DEFAULT
        name = name_of_key(request.key) if request.HasField("key") else None

        async def here(chain: Chain, deadline_s: float) -> broker_pb2.ListGroupKeysResponse:
            until_us = _until_us(deadline_s)
            asked = await self._services.ask_core(
                lambda number: ListKeys(
                    number, chain.partition, request.group, phases, request.after, limit, name, until_us
                ),
                deadline_s,
            )
            reply = answered(asked, KeysListed)
            following = reply.keys[-1].name if reply.has_more else b""
            return broker_pb2.ListGroupKeysResponse(keys=map(_key_to_proto, reply.keys), next=following)

        found: broker_pb2.ListGroupKeysResponse = await self._at_server("ListGroupKeys", request, here, context)
        return found

    @typed_errors
    async def OperateGroupKeys(  # noqa: N802
        self, request: broker_pb2.OperateGroupKeysRequest, context: Any
    ) -> broker_pb2.OperateGroupKeysResponse:
        """Release keys of one partition, or pass over their first messages."""
        try:
            operation = KeyOperation(request.operation)
        except ValueError as exc:
            raise BadRequestError(f"there is no operation {request.operation} on a key") from exc
        if not 1 <= len(request.keys) <= KEYS_PER_CALL_MAX:
            raise BadRequestError(f"a call names 1 to {KEYS_PER_CALL_MAX:,} keys, not {len(request.keys):,}")
        if any(not key.name or key.first_offset > OFFSET_MAX for key in request.keys):
            raise BadRequestError("a key is named as it was listed: with its name, its turn and its first offset")
        keys = tuple(SeenKey(key.name, key.turn, key.first_offset, key.group_epoch) for key in request.keys)
        await guard_of_call(self._services, context)()

        async def here(chain: Chain, deadline_s: float) -> broker_pb2.OperateGroupKeysResponse:
            until_us = _until_us(deadline_s)
            asked = await self._services.ask_core(
                lambda number: OperateKeys(number, chain.partition, request.group, operation, keys, until_us),
                deadline_s,
            )
            reply = answered(asked, KeysOperated)
            return broker_pb2.OperateGroupKeysResponse(results=map(_result_to_proto, reply.results))

        found: broker_pb2.OperateGroupKeysResponse = await self._at_server("OperateGroupKeys", request, here, context)
        return found

    async def _at_server(
        self,
        method: str,
        request: Any,
        here: Callable[[Chain, float], Awaitable[Any]],
        context: Any,
    ) -> Any:
        """Have the server of the consumer group's cursor segment answer. A forwarded call stays here.

        Raises:
            UnknownGroupError: The consumer group has no position on the partition.
            PreconditionError: It is an external group.
        """
        check_group(request.group)
        topic = await self._services.topic(request.topic)
        if request.partition >= len(topic.partition_ids):
            raise PartitionOutOfRangeError(
                f"{request.topic} has partitions 0 to {len(topic.partition_ids) - 1}, not {request.partition}"
            )
        for round_no in range(1, ROUNDS_MAX + 1):
            chains = await self._services.chains([topic.partition_ids[request.partition]])
            cursors = await self._cursors(chains, request.group)
            cursor = cursors.standing(chains[0].partition) if chains else None
            if cursor is None:
                raise unknown_consumer_group(request.topic, request.group)
            if cursor.external:
                raise PreconditionError(f"{request.group} has no consumers: it reads ranges, and no key of it waits")
            server, left_s = row_of(chains[0], cursor).server_broker, remaining_s(context) * 0.9
            try:
                if is_forwarded(context) or server == self._services.identity.member.broker:
                    return await here(chains[0], left_s)
                return await self._calls.admin(server, method, request, left_s, operator_epoch(context))
            except (GroupHeadElsewhereError, NotServingError):
                if is_forwarded(context) or round_no == ROUNDS_MAX:
                    raise
            await asyncio.sleep(ROUND_PAUSE_S)
        raise AssertionError("the last round returns or raises")


def _until_us(deadline_s: float) -> int:
    return time.monotonic_ns() // 1000 + int(deadline_s * 0.9e6)


def _phase(state: int) -> KeyPhase:
    for known, phase in _PHASES.items():
        if known == state:
            return phase
    raise BadRequestError(f"there is no state {state} of a key")


def _key_to_proto(key: WaitingKey) -> broker_pb2.GroupKey:
    group_key = broker_pb2.GroupKey(key=key_of_name(key.name))
    return fill(group_key, key, state=_STATES[key.phase], messages=key.message_count)


def _result_to_proto(result: SeriatimError | bool) -> broker_pb2.OperatedKeyResult:
    if isinstance(result, SeriatimError):
        return broker_pb2.OperatedKeyResult(error=error_to_proto(result))
    return broker_pb2.OperatedKeyResult(was_done=result)
