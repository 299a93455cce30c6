"""Values of the modes in which order counts within a key: modes, retry policies, and what is granted.

`seriatim_api.key_names` says what the *name* of a key is, here and among brokers.
"""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from seriatim_api.batch import FLAG_KEYED, BatchHeader, Checksum, make_header
from seriatim_api.errors import BadRequestError
from seriatim_api.retry import AT_MOST_ONCE_HAS_NO_RETRY, SHARED_PARKS_NO_KEY

GRANT_MS_DEFAULT: Final = 30_000
ERROR_BYTES_MAX: Final = 200

DELAY_MS_MAX: Final = 40 * 86_400_000
"""A consumer may delay a message on which it failed by at most 40 days."""


class ConsumerMode(enum.IntEnum):
    """How a consumer group shares the messages of a partition. The numbers are those of the wire."""

    EXCLUSIVE = 1
    KEY_ORDERED = 2
    SHARED = 3
    BROADCAST = 4

    @property
    def is_keyed(self) -> bool:
        """Whether messages are granted key by key: a message of a shared consumer group is a key of its own."""
        return self in (ConsumerMode.KEY_ORDERED, ConsumerMode.SHARED)


class BackOff(enum.IntEnum):
    """How the delay of a message grows with its attempts. The numbers are those of the wire."""

    FIXED = 1
    EXPONENTIAL = 2
    LIST = 3


class Exhausted(enum.IntEnum):
    """What is done with a message after its last attempt. The numbers are those of the wire."""

    BLOCK = 1
    PARK_KEY = 2
    DEAD_LETTER = 3


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What happens to a message on which a consumer fails.

    Attributes:
        attempts_max: How many attempts a message has; 0: there is no limit.
        back_off: How the delay grows.
        delays_ms: Fixed: the delay. Exponential: the first delay and the longest one; each is twice the one before.
            List: the delays, of which the last one is used again.
        jitter_percent: A delay is longer or shorter by up to this part of it.
        exhausted: What is done after the last attempt.
        dead_letter_topic: The topic of the dead letters; empty: none.
        grant_ms: How long a consumer has for the messages of a grant, if it does not extend it.
    """

    attempts_max: int = 0
    back_off: BackOff = BackOff.EXPONENTIAL
    delays_ms: tuple[int, ...] = (1_000, 300_000)
    jitter_percent: int = 20
    exhausted: Exhausted = Exhausted.BLOCK
    dead_letter_topic: str = ""
    grant_ms: int = GRANT_MS_DEFAULT

    @property
    def has_only_grants(self) -> bool:
        """Whether it is the default policy, except for the time of a grant."""
        return self == RetryPolicy(grant_ms=self.grant_ms)

    def delay_ms(self, attempts: int, name: bytes) -> int:
        """The delay before the next attempt, when `attempts` (1 or more) have failed.

        The jitter is a function of the key's name and the number of attempts, so each broker computes the same delay.
        """
        if not self.delays_ms:
            return 0
        if self.back_off is BackOff.EXPONENTIAL:
            delay = min(self.delays_ms[0] << min(attempts - 1, 40), self.delays_ms[-1])
        elif self.back_off is BackOff.LIST:
            delay = self.delays_ms[min(attempts, len(self.delays_ms)) - 1]
        else:
            delay = self.delays_ms[0]
        spread = zlib.crc32(name, attempts) % 2001 - 1000  # in thousandths, -1,000 to 1,000
        return max(delay + delay * self.jitter_percent * spread // 100_000, 0)


RETRY_DEFAULT: Final = RetryPolicy()


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """How a consumer group is served.

    Attributes:
        mode: How its consumers share the messages.
        retry: Not in exclusive mode: what happens to a message on which a consumer fails.
        at_most_once: Messages are acknowledged when they are granted.
        is_spread: In exclusive mode: the partitions of the topic are spread over the consumers.
    """

    mode: ConsumerMode = ConsumerMode.EXCLUSIVE
    retry: RetryPolicy = RETRY_DEFAULT
    at_most_once: bool = False
    is_spread: bool = True


SETTINGS_DEFAULT: Final = ConsumerGroupSettings()


@dataclass(frozen=True, slots=True)
class WantedSettings:
    """A change of settings. What is None stays as it is."""

    mode: ConsumerMode | None = None
    retry: RetryPolicy | None = None
    at_most_once: bool | None = None
    is_spread: bool | None = None

    def over(self, settings: ConsumerGroupSettings) -> ConsumerGroupSettings:
        """The settings after the change.

        With at-most-once delivery nothing comes again. So of the policy, only the time of a grant stays.

        Raises:
            BadRequestError: An exclusive consumer group would have a retry policy, one with at-most-once delivery would
                have retries, or a shared one would park keys. Or a group of another mode would have a spread.
        """
        mode = settings.mode if self.mode is None else self.mode
        if self.retry is not None and not mode.is_keyed:
            raise BadRequestError(
                f"a group that is {mode.name.lower()} has no retry policy: its consumer stops at a message that it "
                "cannot handle; choose the mode key_ordered or shared"
            )
        retry = settings.retry if self.retry is None else self.retry
        at_most_once = settings.at_most_once if self.at_most_once is None else self.at_most_once
        if at_most_once:
            if self.retry is not None and not self.retry.has_only_grants:
                raise BadRequestError(AT_MOST_ONCE_HAS_NO_RETRY)
            retry = RetryPolicy(grant_ms=retry.grant_ms)
        if (mode, retry.exhausted) == (ConsumerMode.SHARED, Exhausted.PARK_KEY):
            raise BadRequestError(SHARED_PARKS_NO_KEY)
        if self.is_spread is not None and mode is not ConsumerMode.EXCLUSIVE:
            raise BadRequestError(
                f"a group that is {mode.name.lower()} has no spread: each of its consumers gets messages of all "
                "partitions; only groups that are exclusive have one"
            )
        is_spread = settings.is_spread if self.is_spread is None else self.is_spread
        if mode is not ConsumerMode.EXCLUSIVE:
            is_spread = SETTINGS_DEFAULT.is_spread
        return ConsumerGroupSettings(mode, retry if mode.is_keyed else RETRY_DEFAULT, at_most_once, is_spread)


NOTHING_WANTED: Final = WantedSettings()


class KeyPhase(enum.IntEnum):
    """The state of a key that has a record. The numbers are those of the disk."""

    RETRY = 1
    PARKED = 2
    FORWARDING = 3


class KeyOperation(enum.IntEnum):
    """What an administrator does with a key that waits. The numbers are those of the wire."""

    RELEASE = 1
    SKIP = 2
    DEAD_LETTER = 3


class SeenKey(NamedTuple):
    """A key as an administrator saw it when it was listed.

    Attributes:
        name: Its name.
        turn: How often an administrator had released it.
        first_offset: Of its first message; 0: that was not read yet.
        group_epoch: The group epoch in which it waited.
    """

    name: bytes
    turn: int
    first_offset: int
    group_epoch: int


class WaitingKey(NamedTuple):
    """A key that waits: for its next attempt, for an administrator, or for the forwarder.

    Attributes:
        name: Its name.
        phase: Its state; `RETRY`: it waits for its next attempt.
        attempts: How many attempts on its first message have failed.
        turn: How often an administrator released it.
        first_offset: Of its first message; 0: that was not read yet.
        message_count: How many messages wait under it, as far as they were read.
        ready_at_ms: When its next attempt may begin, by the wall clock; 0: now.
        error: The last error.
        group_epoch: The group epoch in which it waits.
    """

    name: bytes
    phase: KeyPhase
    attempts: int
    turn: int
    first_offset: int
    message_count: int
    ready_at_ms: int
    error: str
    group_epoch: int


class KeyCounts(NamedTuple):
    """How many keys wait, by their state, and messages of the consumer group.

    Attributes:
        parked: Keys that wait for an administrator.
        delayed: Keys that wait for their next attempt.
        forwarding: Keys whose first message goes to the dead-letter topic.
        aside: Messages that are set aside in lists.
        passed: Indexes of the cursor segment above the first one that is not passed, and passed.
    """

    parked: int = 0
    delayed: int = 0
    forwarding: int = 0
    aside: int = 0
    passed: int = 0


class KeyColumn(NamedTuple):
    """The header of a batch, and the key of each of its messages; `keys` None: none of them has a key."""

    header: BatchHeader
    keys: tuple[bytes | None, ...] | None


class DeadLetterRow(NamedTuple):
    """The copy of a message for the dead-letter topic: a body with one message, and parts of its batch's header."""

    body: bytes
    timestamp_ms: int
    is_keyed: bool


class DeadLetter(NamedTuple):
    """A dead letter under the count of its number, which is the producer epoch of its batch."""

    number: int
    row: DeadLetterRow

    def header(self, partition: int, producer: bytes, checksum: Checksum) -> bytes:
        """The header of its batch, for that partition."""
        return make_header(
            partition=partition,
            message_count=1,
            producer=producer,
            producer_epoch=self.number,
            base_sequence=0,
            first_timestamp_ms=self.row.timestamp_ms,
            last_timestamp_ms=self.row.timestamp_ms,
            body_length=len(self.row.body),
            body_crc=checksum(0, self.row.body),
            flags=FLAG_KEYED if self.row.is_keyed else 0,
        )


class KeyGrant(NamedTuple):
    """A grant: messages of one key, under one token. `attempt` is that of the first message."""

    token: int
    attempt: int
    maybe_repeated: bool
    offsets: tuple[int, ...]
