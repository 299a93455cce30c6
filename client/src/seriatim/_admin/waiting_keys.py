"""Administration of keys of consumer groups that wait: list them, release them, pass over their first messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Literal, cast

from seriatim_api.errors import BadRequestError, SeriatimError, UnavailableError
from seriatim_api.v1 import broker_pb2

from seriatim._admin.group_operations import DEADLINE_S, OPERATE_DEADLINE_S, RETRY_PAUSE_S, GroupOperations
from seriatim._values.arguments import NUMBER_MAX, check_whole
from seriatim._values.consumer_group_settings import GroupKey, KeyResult, KeyState, key_of, state_to_number

KEYS_PER_CALL: Final = 1_000
KEYS_PER_PAGE: Final = 500

_ACTS: Final[dict[int, Literal["release", "skip", "dead_letter"]]] = {
    broker_pb2.KEY_OPERATION_RELEASE: "release",
    broker_pb2.KEY_OPERATION_SKIP: "skip",
    broker_pb2.KEY_OPERATION_DEAD_LETTER: "dead_letter",
}
"""What administrators do to keys, as a history names it."""


class ConsumerGroupKeys(GroupOperations):
    """The part of `Admin` for keys that wait."""

    async def group_keys(
        self,
        topic: str,
        group: str,
        *,
        partition: int | None = None,
        states: Sequence[KeyState] | None = None,
        key: bytes | None = None,
    ) -> AsyncIterator[GroupKey]:
        """The keys of a consumer group that wait, by partition and name: those that failed, and those that are parked.

        All that is reported is on every copy that may serve the group. Keys that change while they are listed may be
        reported as they were before, or after.

        Args:
            topic: The topic's name.
            group: The consumer group's name. It is key_ordered or shared.
            partition: A number in the topic; None: all partitions on which the group has a position.
            states: Only keys in these states; None: all.
            key: Only this key; None: all.

        Raises:
            UnknownGroupError: The topic has no such consumer group, or the group has no position on the partition.
            UnsupportedModeError: The group is of a mode without keys that wait.
            PartitionOutOfRangeError: The topic has fewer partitions.
            BadRequestError: There is no such state, or `states` is empty.
        """
        if partition is not None:
            check_whole("partition", partition, 0, NUMBER_MAX)
        if states is not None and not states:
            raise BadRequestError("states names no state: leave it out to get the keys in all of them")
        numbers_of_states = [state_to_number(state) for state in states] if states is not None else []
        numbers = [partition] if partition is not None else await self._partitions_of(topic, group)
        for number in numbers:
            request = broker_pb2.ListGroupKeysRequest(
                topic=topic,
                group=group,
                partition=number,
                states=cast("Any", numbers_of_states),
                limit=KEYS_PER_PAGE,
                key=key,
            )
            while True:
                answer = await self._ask_patiently("ListGroupKeys", request)
                for found in answer.keys:
                    listed = key_of(number, found)
                    if self._recorder is not None:
                        self._recorder.waiting(topic, group, listed)
                    yield listed
                if not answer.next:
                    break
                request.after = answer.next

    async def release_keys(self, topic: str, group: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        """Let keys continue: their first messages are delivered again, with all their attempts.

        The answer comes when this is on every copy that may serve the group. If a key has changed since it was listed,
        it is not released, and its result has an error (also if the group was rewound or skipped since: a
        `StaleGroupEpochError`). A request that is repeated releases a key once.

        Args:
            topic: The topic's name.
            group: The consumer group's name.
            keys: Keys as `group_keys` reported them.

        Returns:
            A result for each key, in the same order.

        Raises:
            UnavailableError: No broker answered in time. The keys may have been released: repeat the call.

        If the call is cancelled, any of the keys may have been released.
        """
        return await self._operate_keys(topic, group, broker_pb2.KEY_OPERATION_RELEASE, keys)

    async def skip_keys(self, topic: str, group: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        """Pass over the first message of each key: it counts as acknowledged, and the key continues after it.

        See `release_keys` for arguments, results and errors. A request that is repeated passes over one message of a
        key.
        """
        return await self._operate_keys(topic, group, broker_pb2.KEY_OPERATION_SKIP, keys)

    async def dead_letter_keys(self, topic: str, group: str, keys: Sequence[GroupKey]) -> list[KeyResult]:
        """Send the first message of each key to the group's dead-letter topic; the key continues after it.

        See `release_keys` for arguments, results and errors. The result says that the message is on its way: it cannot
        be released or skipped any more. A group without a dead-letter topic gives an error for each key.
        """
        return await self._operate_keys(topic, group, broker_pb2.KEY_OPERATION_DEAD_LETTER, keys)

    async def _partitions_of(self, topic: str, group: str) -> list[int]:
        described = await self.describe_group(topic, group)
        return [row.partition for row in described.partitions if row.has_cursor]

    async def _operate_keys(self, topic: str, group: str, operation: int, keys: Sequence[GroupKey]) -> list[KeyResult]:
        self._record_keys(topic, group, operation, keys, done=False)
        results: dict[int, KeyResult] = {}
        places: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key.partition, []).append(place)
        for partition, theirs in places.items():
            for start in range(0, len(theirs), KEYS_PER_CALL):
                page = theirs[start : start + KEYS_PER_CALL]
                request = broker_pb2.OperateGroupKeysRequest(
                    topic=topic,
                    group=group,
                    partition=partition,
                    operation=cast("Any", operation),
                    keys=[
                        broker_pb2.OperatedKey(
                            name=key.name, turn=key.turn, first_offset=key.first_offset, group_epoch=key.group_epoch
                        )
                        for key in (keys[place] for place in page)
                    ],
                )
                answer = await self._ask_patiently("OperateGroupKeys", request)
                for place, result in zip(page, answer.results, strict=True):
                    results[place] = _result_of(keys[place], result)
        done = [results[place] for place in range(len(keys))]
        self._record_keys(topic, group, operation, [result.key for result in done if not result.error], done=True)
        return done

    def _record_keys(self, topic: str, group: str, operation: int, keys: Sequence[GroupKey], *, done: bool) -> None:
        for key in keys if self._recorder is not None else ():
            assert self._recorder is not None
            self._recorder.person(
                _ACTS[operation], group, topic, key.partition, offset=key.first_offset or None, key=key.key,
                done=done,
            )  # fmt: skip

    async def _ask_patiently(self, method: str, request: Any) -> Any:
        """Ask again while another server replaces a dead one. A request about keys that is repeated is done once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + OPERATE_DEADLINE_S
        while True:
            try:
                return await self._caller.admin(method, request, DEADLINE_S)
            except SeriatimError as exc:
                may_succeed = exc.retriable or isinstance(exc, UnavailableError)
                if not may_succeed or loop.time() + RETRY_PAUSE_S >= until:
                    raise
                pause_s = max(RETRY_PAUSE_S, (exc.retry_after_ms or 0) / 1000)
            await asyncio.sleep(pause_s)


def _result_of(key: GroupKey, result: broker_pb2.OperatedKeyResult) -> KeyResult:
    if result.HasField("error"):
        return KeyResult(key, False, f"[{result.error.number}] {result.error.message}", result.error.number)
    return KeyResult(key, result.was_done)
