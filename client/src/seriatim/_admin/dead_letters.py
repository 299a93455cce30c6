"""Dead letters: list them, replay them to the consumer groups that failed on them, and drop them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from seriatim_api.dead_letters import (
    ADDED_HEADERS,
    history_of,
    origin_of,
    replayed_headers,
    resolved_by,
)
from seriatim_api.errors import PreconditionError
from seriatim_api.ids import format_offset
from seriatim_api.status import error_from_proto
from seriatim_api.v1 import broker_pb2, dead_letters_pb2

from seriatim._admin.group_operations import GroupOperations
from seriatim._values.dead_letters import DeadLetter, ReplayedDeadLetter
from seriatim._values.headers import headers_of

if TYPE_CHECKING:
    from seriatim._ranges.reader import RangeReader
    from seriatim._recorder import Recorder
    from seriatim._runtime.opening import Opening
    from seriatim._transport.unary import Caller
    from seriatim._values.records import Message

RESOLVED_MAX: Final = 1_000_000
"""Maximum number of dead letters of a partition that are done with and remembered while it is listed: about 60
MB."""

REPLAY_COUNT_MAX: Final = 256
REPLAY_BYTES: Final = 4 << 20
"""Maximum number of dead letters, and of bytes if there is more than one, that a call replays."""

DROP_COUNT_MAX: Final = 10_000

QUESTION_DEADLINE_S: Final = 10.0
REPLAY_DEADLINE_S: Final = 30.0
"""Seconds for one such call."""

KEY_COUNT_MAX: Final = 100_000
"""Maximum number of dead letters in a call of `replay_dead_letters` or `drop_dead_letters`."""


class DeadLetterAdmin(GroupOperations):
    """The part of `Admin` for dead letters."""

    def __init__(
        self,
        caller: Caller,
        read_range: Callable[..., Opening[RangeReader]] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(caller, recorder)
        self._open_range = read_range

    def _read_range(self, topic: str, partition: int) -> Opening[RangeReader]:
        assert self._open_range is not None, "made by `Client.admin`"
        return self._open_range(topic, partition, raw=True, on_loss=_pass)

    async def dead_letters(
        self,
        topic: str,
        group: str | None = None,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        after: int | None = None,
    ) -> AsyncIterator[DeadLetter]:
        """The dead letters of a dead-letter topic that were neither replayed nor dropped, by partition and offset.

        Each partition is read twice from its beginning to its end as it is when the call begins: first for what is done
        with. So the time depends on how much the topic keeps. Memory does not, apart from about 60 bytes for each dead
        letter that is done with.

        Args:
            topic: The dead-letter topic.
            group: Only those of this consumer group; None: all.
            partition: Only those of this partition; None: all.
            key: Only those of this key; None: all.
            after: Only those after this offset. With `partition`.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            PartitionOutOfRangeError: The topic has fewer partitions.
            PreconditionError: More than 1,000,000 dead letters of a partition are done with and still kept.
            UnavailableError: No broker answered in time.
        """
        numbers = [partition] if partition is not None else range(await self._dead_letter_partitions(topic))
        for number in numbers:
            async for letter in self._letters_of(topic, number):
                is_wanted = group in (None, letter.group) and key in (None, letter.key)
                if is_wanted and (after is None or letter.offset > after):
                    if self._recorder is not None:
                        self._recorder.dead_letter(letter)
                    yield letter

    async def _dead_letter_partitions(self, topic: str) -> int:
        described = await self.describe_topic(topic)  # type: ignore[attr-defined]  # of `Admin`
        return len(described.chains)

    async def _letters_of(self, topic: str, partition: int) -> AsyncIterator[DeadLetter]:
        resolved: set[int] = set()
        async with self._read_range(topic, partition) as reader:
            async for message in reader:
                resolved.update(resolved_by(message.headers, message.value) or ())
                if len(resolved) > RESOLVED_MAX:
                    raise PreconditionError(
                        f"partition {partition} of {topic} keeps more than {RESOLVED_MAX:,} dead letters that are done "
                        "with: let the topic keep messages for a shorter time"
                    )
        seen: set[tuple[object, ...]] = set()
        async with self._read_range(topic, partition) as reader:
            async for message in reader:
                letter = _letter_of(topic, message)
                if letter is None:
                    continue
                # After an unsettled segment the same dead letter can be there twice. The first one counts.
                place = (letter.origin_topic, letter.origin_partition, letter.origin_offset)
                same = (letter.group, *place, letter.failed_at_ms, letter.attempts)
                if letter.offset in resolved:
                    seen.add(same)
                elif same not in seen:
                    if len(seen) < RESOLVED_MAX:
                        seen.add(same)
                    yield letter

    async def replay_dead_letters(
        self, topic: str, letters: Sequence[DeadLetter], *, into_new_topic: bool = False
    ) -> list[ReplayedDeadLetter]:
        """Copy dead letters to the ends of the partitions from which they came, for their consumer groups only.

        Earlier dead letters of the same consumer group, partition and key are replayed before a chosen one, so that the
        key keeps its order. A copy is after all messages of its key that are in the partition by then. Other consumer
        groups, and programs that read ranges, pass over it. A dead letter is replayed once, also if the call is
        repeated within an hour.

        Args:
            topic: The dead-letter topic.
            letters: Dead letters as `dead_letters` reported them; at most 100,000.
            into_new_topic: Also replay dead letters of a topic that was deleted, into the topic that has its name now.
                Without it, such a dead letter is refused, and is not replayed before a chosen one of its key.

        Returns:
            What was replayed, by partition and offset.

        Raises:
            UnknownTopicError: The dead-letter topic, or a topic from which a dead letter came, is not there.
            PreconditionError: There are too many dead letters, or the topic of one was deleted and made again since.
                Nothing was replayed.
            NotServingError: A partition from which a dead letter came has no master at the moment.
            CapacityError: A partition takes no messages: its disk is full, or its brokers are busy.
            DeadlineExceededError: (602) A partition did not take the copies in time, or no broker answered within 30 s.
                The outcome is not known: some copies may be stored. Make the same call again.
            UnavailableError: No broker answered in time.

        If the call fails or is cancelled, some of the dead letters may have been replayed. These are not listed any
        more, or the same call finishes them.
        """
        _check_count(letters)
        replayed: list[ReplayedDeadLetter] = []
        made = {} if into_new_topic else await self._made_at_ms(letters)
        for letter in letters:
            _check_origin(letter, made)
        for partition in sorted({letter.partition for letter in letters}):
            chosen = [letter for letter in letters if letter.partition == partition]
            offsets = {letter.offset for letter in chosen}
            until: dict[tuple[object, ...], int] = {}
            for letter in chosen:
                if letter.key is not None:
                    until[letter.key_line] = max(letter.offset, until.get(letter.key_line, 0))
            page: list[DeadLetter] = []
            size_bytes = 0
            async for letter in self._letters_of(topic, partition):
                is_earlier = letter.offset <= until.get(letter.key_line, -1) and not _is_of_deleted(letter, made)
                if letter.offset not in offsets and not is_earlier:
                    continue
                if page and (len(page) == REPLAY_COUNT_MAX or size_bytes + len(letter.value) > REPLAY_BYTES):
                    replayed += await self._replay(topic, partition, page)
                    page, size_bytes = [], 0
                page.append(letter)
                size_bytes += len(letter.value)
            if page:
                replayed += await self._replay(topic, partition, page)
        return replayed

    async def _made_at_ms(self, letters: Iterable[DeadLetter]) -> dict[str, int]:
        """When each topic from which one of these dead letters came was made, in ms since 1970."""
        found: dict[str, int] = {}
        for name in sorted({letter.origin_topic for letter in letters}):
            request = broker_pb2.GetTopicRequest(topic=name)
            answer = await self._caller.routing("GetTopic", request, QUESTION_DEADLINE_S)
            found[name] = answer.topic.created_at_ms
        return found

    async def _replay(self, topic: str, partition: int, page: Sequence[DeadLetter]) -> list[ReplayedDeadLetter]:
        request = dead_letters_pb2.ReplayDeadLettersRequest(
            topic=topic, partition=partition, letters=[_replayed(letter) for letter in page]
        )
        self._record("replay", page, done=False)
        answer: dead_letters_pb2.ReplayDeadLettersResponse = await self._caller.dead_letters(
            "ReplayDeadLetters", request, REPLAY_DEADLINE_S
        )
        if answer.HasField("error"):
            raise error_from_proto(answer.error)
        self._record("replay", page, done=True)
        return [
            ReplayedDeadLetter(partition, letter.offset, letter.origin_topic, letter.origin_partition, offset)
            for letter, offset in zip(page, answer.offsets, strict=True)
        ]

    def _record(self, act: Literal["replay", "drop"], letters: Sequence[DeadLetter], *, done: bool) -> None:
        for letter in letters if self._recorder is not None else ():
            assert self._recorder is not None
            self._recorder.dead_letter(letter)
            self._recorder.person(
                act, letter.group, letter.origin_topic, letter.origin_partition, offset=letter.origin_offset,
                key=letter.key, done=done,
            )  # fmt: skip

    async def drop_dead_letters(self, topic: str, letters: Sequence[DeadLetter]) -> None:
        """Say that dead letters are done with: they are not listed any more, and cannot be replayed.

        They stay in the topic until retention drops them.

        Args:
            topic: The dead-letter topic.
            letters: Dead letters as `dead_letters` reported them; at most 100,000.

        Raises:
            UnknownTopicError: The cluster has no such topic.
            PreconditionError: There are too many dead letters.
            DeadlineExceededError: (602) The dead-letter topic did not take the note in time, or a broker did not
                answer. Some dead letters may have been dropped: make the same call again.
            UnavailableError: No broker answered in time. Some may have been dropped: repeat the call.

        If the call is cancelled, some of them may have been dropped.
        """
        _check_count(letters)
        self._record("drop", letters, done=False)
        for partition in sorted({letter.partition for letter in letters}):
            offsets = sorted(letter.offset for letter in letters if letter.partition == partition)
            for begin in range(0, len(offsets), DROP_COUNT_MAX):
                request = dead_letters_pb2.DropDeadLettersRequest(
                    topic=topic, partition=partition, offsets=offsets[begin : begin + DROP_COUNT_MAX]
                )
                await self._caller.dead_letters("DropDeadLetters", request, REPLAY_DEADLINE_S)


def _check_count(letters: Sequence[DeadLetter]) -> None:
    if len(letters) > KEY_COUNT_MAX:
        raise PreconditionError(f"a call takes at most {KEY_COUNT_MAX:,} dead letters, not {len(letters):,}")


def _pass(_lost: object) -> None:
    """What retention dropped or was declared lost is no dead letter any more."""


def _letter_of(topic: str, message: Message) -> DeadLetter | None:
    origin = origin_of(message.headers)
    if origin is None:
        return None
    headers = headers_of([pair for pair in message.header_list if pair[0] not in ADDED_HEADERS])
    return DeadLetter(
        topic, message.partition, message.offset, message.key, message.value, message.timestamp_ms, headers,
        message.tag, origin.topic, origin.partition, origin.offset, origin.group, origin.attempts, origin.reason,
        origin.time_ms, origin.maybe_repeated, tuple(history_of(message.headers)),
        message.value_is_null,
    )  # fmt: skip


def _replayed(letter: DeadLetter) -> dead_letters_pb2.ReplayedLetter:
    """The copy of a dead letter for its consumer group: with a history that has this dead letter too."""
    from seriatim._bodies.arrow import encode

    headers = replayed_headers([*letter.header_list, *added_headers(letter)])
    keys = None if letter.key is None else [letter.key]
    tags = None if letter.tag is None else [letter.tag]
    values = [None if letter.value_is_null else letter.value]
    body = encode(values, keys, [letter.timestamp_ms], [headers], tags)
    return dead_letters_pb2.ReplayedLetter(
        offset=letter.offset,
        origin_topic=letter.origin_topic,
        origin_partition=letter.origin_partition,
        group=letter.group,
        body=body.data,
        timestamp_ms=letter.timestamp_ms,
        keyed=letter.key is not None,
    )


def added_headers(letter: DeadLetter) -> list[tuple[str, bytes]]:
    """The headers that the dead letter has in addition to those of its message."""
    from seriatim_api.dead_letters import DeadLetterOrigin, history_header

    origin = DeadLetterOrigin(
        letter.origin_topic, letter.origin_partition, letter.origin_offset, letter.group, letter.attempts,
        letter.reason, letter.failed_at_ms, letter.maybe_repeated,
    )  # fmt: skip
    return [*origin.headers(), *history_header(letter.history)]


def _is_of_deleted(letter: DeadLetter, made: Mapping[str, int]) -> bool:
    """Whether its consumer group failed on it before the topic of that name was made, so in an earlier topic."""
    return letter.failed_at_ms < made.get(letter.origin_topic, 0)


def _check_origin(letter: DeadLetter, made: Mapping[str, int]) -> None:
    """Check that the topic of a dead letter is still there.

    Without it: 1. Topic orders is deleted, and made again for other messages. 2. An administrator replays what is left
    in its dead-letter topic. 3. The consumer group gets messages of the deleted topic among those of the new one.

    Raises:
        PreconditionError: It was deleted, and another one has its name.
    """
    if _is_of_deleted(letter, made):
        raise PreconditionError(
            f"the dead letter {format_offset(letter.offset)} of partition {letter.partition} is of a topic "
            f"{letter.origin_topic!r} that was deleted; the topic of that name was made later. Nothing was replayed. "
            "Drop it; or replay it into the new topic with --into-new-topic (in programs: into_new_topic=True)",
            topic=letter.origin_topic,
        )
